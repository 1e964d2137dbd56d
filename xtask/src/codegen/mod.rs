//! `cargo xtask codegen`: writes `src/generated/` of the two raw crates from the vendors' headers.

#[cfg(feature = "codegen")]
mod bindings;
#[cfg(feature = "codegen")]
mod driver;
#[cfg(feature = "codegen")]
mod nccl;
#[cfg(feature = "codegen")]
mod render;

use anyhow::Result;

/// Regenerate the tables of `cuda-driver-sys` and `nccl-sys` from the pinned headers.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Change nothing; fail if what is committed differs from what would be written.
    #[arg(long)]
    check: bool,
    /// First read every pinned release of NCCL again, 7 GB of downloads where the cache is cold, and write down
    /// what each exports and declares
    #[arg(long)]
    history: bool,
}

/// Runs the command; without the feature `codegen` it runs cargo again with it.
#[cfg(not(feature = "codegen"))]
pub(crate) fn run(args: &Args) -> Result<()> {
    use crate::shell;

    let mut again = vec!["run", "--quiet", "--package", "xtask", "--features", "codegen", "--", "codegen"];
    again.extend(args.check.then_some("--check"));
    again.extend(args.history.then_some("--history"));
    shell::run(&mut shell::cargo(&shell::workspace()?, &again))
}

/// Runs the command.
#[cfg(feature = "codegen")]
pub(crate) fn run(args: &Args) -> Result<()> {
    let root = crate::shell::workspace()?;
    bindings::load_libclang()?;
    if args.history {
        render::write(&root, &nccl::history()?, args.check)?;
    }
    let mut files = driver::generate()?;
    files.extend(nccl::generate()?);
    render::write(&root, &files, args.check)
}

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
}

/// Runs the command; without the feature `codegen` it runs cargo again with it.
#[cfg(not(feature = "codegen"))]
pub(crate) fn run(args: Args) -> Result<()> {
    use anyhow::{Context, ensure};

    let mut cargo = std::process::Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(crate::headers::root());
    cargo.args(["run", "--quiet", "--package", "xtask", "--features", "codegen", "--", "codegen"]);
    if args.check {
        cargo.arg("--check");
    }
    let status = cargo.status().context("running cargo with the feature `codegen`")?;
    ensure!(status.success(), "codegen failed");
    Ok(())
}

/// Runs the command.
#[cfg(feature = "codegen")]
pub(crate) fn run(args: Args) -> Result<()> {
    bindings::load_libclang()?;
    let mut files = driver::generate()?;
    files.extend(nccl::generate()?);
    render::write(&files, args.check)
}

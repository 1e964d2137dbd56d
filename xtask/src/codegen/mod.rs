//! `cargo xtask codegen`: writes `src/generated/` of the two raw crates from the vendors' headers, and the PTX of
//! the kernels of peer-kernels from their sources.

#[cfg(feature = "codegen")]
mod bindings;
#[cfg(feature = "codegen")]
mod driver;
#[cfg(feature = "codegen")]
mod methods;
#[cfg(feature = "codegen")]
mod nccl;
#[cfg(feature = "codegen")]
mod render;

use anyhow::Result;

#[cfg(feature = "codegen")]
use crate::files;
use crate::shell;

pub(crate) struct Options {
    /// Only the PTX of the kernels and of the example of symm-mem.
    pub(crate) only_kernels: bool,
    /// Change nothing; fail if the committed files differ from the generated files.
    pub(crate) check: bool,
    /// First record the exports and declarations of every pinned release of NCCL again.
    pub(crate) history: bool,
}

/// Runs the command. The tables need the feature `codegen`: without it, this runs cargo again with the feature.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.only_kernels { kernels(options.check) } else { everything(options) }
}

#[cfg(not(feature = "codegen"))]
fn everything(options: &Options) -> Result<()> {
    let mut again = vec!["run", "--quiet", "--package", "xtask", "--features", "codegen", "--", "codegen"];
    again.extend(options.check.then_some("--check"));
    again.extend(options.history.then_some("--history"));
    shell::run(&mut shell::cargo(&shell::workspace()?, &again))
}

#[cfg(feature = "codegen")]
fn everything(options: &Options) -> Result<()> {
    let root = shell::workspace()?;
    bindings::load_libclang()?;
    if options.history {
        files::write(&root, &nccl::history()?, options.check)?;
    }
    let mut files = driver::generate()?;
    files.extend(nccl::generate()?);
    files::write(&root, &files, options.check)?;
    kernels(options.check)
}

/// Compiles the kernels with the crate `lab`, because peer-kernels defines their list and definitions.
fn kernels(check: bool) -> Result<()> {
    let mut kernels = vec!["run", "--quiet", "--package", "lab", "--", "kernels"];
    kernels.extend(check.then_some("--check"));
    shell::run(&mut shell::cargo(&shell::workspace()?, &kernels))
}

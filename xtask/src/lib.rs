//! Developer tasks of the workspace; `cargo xtask help` lists them.
//!
//! - `run_tests`, `ci`, `packages`: the checks of a change
//! - `mutants`, `interleave`, [`sanitize`]: checks of the tests, of thread interleavings, and of memory accesses
//! - `codegen`, [`files`]: the generated tables
//! - `headers`, [`pins`]: the vendors' wheels
//! - `torch_env`: a Python environment with PyTorch
//! - `bundle`: the files that a GPU host without Rust needs
//! - `arguments`: the command line
//! - `artifacts`: the executables that cargo builds
//! - `changed`: the crates that have changed since their checks passed
//! - `plots`: plots of the figures in `docs/benchmarks`
//! - `forward`: commands of the programs `lockstep` and `lab`
//! - [`shell`], `process`: cargo commands, and child processes
//!
//! This crate depends on no other crate of the workspace. The crate `lab` uses the public modules.

mod arguments;
mod artifacts;
mod bundle;
mod changed;
mod ci;
mod codegen;
pub mod files;
mod forward;
#[cfg(feature = "wheels")]
pub mod headers;
mod interleave;
mod mutants;
#[cfg(test)]
mod packages;
pub mod pins;
mod plots;
mod process;
mod run_tests;
pub mod sanitize;
pub mod shell;
mod torch_env;

use std::process::ExitCode;

use anyhow::Result;

use arguments::Task;

/// Runs the task that the process's arguments name.
pub fn main() -> ExitCode {
    let outcome = match arguments::parse() {
        Task::Forward(words) => forward::run(&words),
        task => perform(task).map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn perform(task: Task) -> Result<()> {
    match task {
        Task::Test(options) => run_tests::run(&options),
        Task::Ci(options) => ci::run(&options),
        Task::Codegen(options) => codegen::run(&options),
        Task::Interleave(options) => interleave::run(&options),
        Task::Mutants(options) => mutants::run(&options),
        Task::Sanitize(options) => sanitize::run(&options),
        Task::GpuBundle(options) => bundle::run(&options),
        Task::PlotKernels(file) => {
            plots::kernels(&file)?.iter().for_each(|path| println!("{}", path.display()));
            Ok(())
        }
        Task::TorchEnv => torch_env::run(),
        Task::Forward(words) => forward::run(&words).map(drop),
    }
}

//! Developer programs that link the crates of the workspace. `cargo xtask` starts them.
//!
//! - [`soak`]: tests that run for hours
//! - [`sim`]: programs of several ranks under seeded schedules
//! - [`abi`]: the raw crates compared with real releases of NCCL and of `cuda.h`
//! - [`kernels`]: the PTX of the kernels of peer-kernels
//! - [`torch_viewer`]: PyTorch's viewer of memory snapshots
//! - [`archive`]: the archive of a GPU bundle

mod abi;
mod archive;
mod kernels;
mod sim;
mod soak;
mod torch_viewer;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use lockstep_cli::probe;

/// The simulation allocates often: with this allocator a seed takes 15 % less time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Developer programs that link the crates of the workspace
#[derive(Parser)]
#[command(name = "lab", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run stress tests for as long as wanted
    Soak(soak::Options),
    /// Run programs of several ranks under seeded schedules
    Sim(sim::Options),
    /// Compare nccl-sys and cuda-driver-sys with real releases of NCCL and of `cuda.h`, without a GPU
    Abi(abi::Options),
    /// Compile the kernels of peer-kernels to PTX with the pinned release of NVRTC, without a GPU
    Kernels(kernels::Options),
    /// Download PyTorch's viewer of memory snapshots (140 MB, once), and check that it reads our snapshots
    TorchViewer,
    /// Write an archive of the files that standard input lists
    #[command(hide = true)]
    Pack(archive::Pack),
    /// Extract an archive
    #[command(hide = true)]
    Unpack(archive::Unpack),
    /// Load one library, and print its functions and features as JSON
    #[command(hide = true)]
    Probe(probe::Options),
}

fn main() -> ExitCode {
    let task = Arguments::parse().task;
    lockstep_cli::exit_code(|| perform(task).map(|()| ExitCode::SUCCESS))
}

fn perform(task: Task) -> Result<()> {
    match task {
        Task::Soak(options) => soak::run(&options),
        Task::Sim(options) => sim::run(&options),
        Task::Abi(options) => abi::run(&options),
        Task::Kernels(options) => kernels::run(&options),
        Task::TorchViewer => torch_viewer::run(),
        Task::Pack(options) => archive::pack(&options),
        Task::Unpack(options) => archive::unpack(&options),
        Task::Probe(options) => probe::print(&options),
    }
}

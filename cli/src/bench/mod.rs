//! `lockstep bench`: measures the crates, and compares them with the software that they replace in one run.

mod alloc;
mod call;
mod figures;
mod kernels;
mod p2p;
mod peer;
mod pool;
mod programs;
mod store;
mod symm;
mod turns;

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::exit::UsageError;
use figures::{Bar, is_embedded};
use programs::Program;
use turns::Player;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Caching allocator: host time of a call, compared with a best-fit map and, on a GPU, `cuMemAllocAsync` and PyTorch
    Alloc(alloc::Options),
    /// Collectives: host time of an 8-byte all-reduce through each layer, compared with NCCL and PyTorch
    Call(call::Options),
    /// Collective kernels of symmetric memory: time by size, eagerly and from a graph, compared with NCCL and PyTorch, with checked results
    Kernels(kernels::Options),
    /// Point-to-point messages: time and device memory under each policy
    P2p(p2p::Options),
    /// Symmetric pools: one pool for each group compared with one shared pool; time of entry, exit and address look-up
    Pool(pool::Options),
    /// Store: time of set, get and add through the TCP server, and of many clients that join, compared with PyTorch
    Store(store::Options),
    /// Symmetric memory: time of commits, rendezvous, signals and transfers, compared with NCCL, the copy engine and PyTorch
    Symm(symm::Options),
    /// Run one benchmark program, and print its lines
    #[command(hide = true)]
    Program(programs::Options),
}

impl What {
    /// Returns true for a process that another benchmark has started.
    fn is_part(&self) -> bool {
        match self {
            Self::Program(_) => true,
            Self::Store(options) => options.is_part(),
            _ => false,
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if !options.what.is_part() {
        note_debug_build();
    }
    match &options.what {
        What::Alloc(options) => alloc::run(options),
        What::Call(options) => call::run(options),
        What::Kernels(options) => kernels::run(options),
        What::P2p(options) => p2p::run(options),
        What::Pool(options) => pool::run(options),
        What::Store(options) => store::run(options),
        What::Symm(options) => symm::run(options),
        What::Program(options) => programs::run(options),
    }
}

/// `--check` for a benchmark without limits, so that its error names the benchmarks that have some.
#[derive(clap::Args)]
struct NoCheck {
    #[arg(long, hide = true)]
    check: bool,
}

impl NoCheck {
    /// Fails if the option was given. `bench` is the benchmark's name.
    fn refuse(&self, bench: &str) -> Result<()> {
        if self.check { Err(no_limits(bench)) } else { Ok(()) }
    }
}

/// Returns the error of `--check` for a benchmark without limits.
fn no_limits(bench: &str) -> anyhow::Error {
    let text = format!(
        "--check: `bench {bench}` has no limits to check; expected `bench call`, `bench p2p`, `bench pool`, \
         `bench symm` or `bench store --attack`"
    );
    UsageError(text).into()
}

/// Starts one of this workspace's benchmark programs.
fn ours(program: Program, arguments: &[&str]) -> Result<Player> {
    Player::start(&mut our_command(program, arguments)?)
}

/// Returns the command of one of this workspace's benchmark programs.
fn our_command(program: Program, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("the path of this program")?);
    command.args(["bench", "program", program.name()]).args(arguments);
    Ok(command)
}

/// Prints a note that times of a debug build are meaningless.
fn note_debug_build() {
    if cfg!(debug_assertions) {
        eprintln!("note: this is a debug build; for meaningful times use a release build");
    }
}

/// Fails if a figure exceeds its bar. Prints a note if bars were left out.
fn check(machine: &str, bars: &[Bar]) -> Result<()> {
    if is_embedded(machine) {
        eprintln!("note: limits of times are not checked: they are for GPUs");
    }
    let failed: Vec<_> = bars.iter().filter(|bar| !bar.holds).map(ToString::to_string).collect();
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

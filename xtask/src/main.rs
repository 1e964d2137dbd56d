//! Development tasks of the workspace; `cargo xtask help` lists them.
//!
//! - [`demo`]: the main job, end to end, one process a rank
//! - [`doctor`]: what this host has, and what each crate can do with it
//! - [`replay`]: recorded programs against the caching allocator
//! - [`trace`]: recorded allocation traces
//! - [`launch`]: the ranks of a job on this host, without Python
//! - [`fr`]: what the flight recorders of all ranks say together
//! - [`viz`]: recordings and snapshots as a page to look at
//! - [`bench`](mod@bench): our crates beside what they replace
//! - [`run_tests`], [`ci`], `packages`: what a change has to pass; [`soak`], [`mutants`]: whether that is enough
//! - [`sim`]: whole programs of several ranks under seeded schedules
//! - [`interleave`], [`sanitize`]: threads in orders that checkers choose; all tests under AddressSanitizer
//! - [`codegen`], [`abi`]: the raw tables, and how they compare with real releases
//! - [`child`]: this program again, where a foreign library may crash or hang it
//! - [`torch_env`]: PyTorch, for what is tested and measured beside it; [`pickle`]: what it writes
//! - [`budget`]: how much memory reading a file may take; [`plain`]: what is printed of it
//! - [`bundle`]: everything that a GPU host without Rust needs

mod abi;
mod bench;
#[cfg(test)]
#[path = "../tests/bombs.rs"]
mod bombs_end_to_end;
mod budget;
mod bundle;
mod child;
mod ci;
mod codegen;
mod demo;
#[cfg(test)]
#[path = "../tests/demo.rs"]
mod demo_end_to_end;
mod doctor;
#[cfg(test)]
#[path = "../tests/doctor.rs"]
mod doctor_end_to_end;
mod fr;
mod headers;
#[cfg(test)]
#[path = "../tests/hostile_user.rs"]
mod hostile_user_end_to_end;
mod interleave;
mod job_secret;
mod kill_test;
mod launch;
#[cfg(test)]
#[path = "../tests/launch.rs"]
mod launch_end_to_end;
mod mutants;
#[cfg(test)]
mod packages;
mod percentiles;
mod pickle;
mod plain;
mod replay;
mod run_tests;
mod sanitize;
mod shell;
mod sim;
mod soak;
#[cfg(test)]
#[path = "../tests/soak.rs"]
mod soak_end_to_end;
mod torch_env;
mod trace;
mod viz;

use std::any::Any;
use std::io;
use std::panic::{self, UnwindSafe};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", about = "Development tasks of the workspace")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run the main job: agree on a symmetric pool, reduce gradient buckets from its windows, catch a diverging rank
    Demo(demo::Options),
    /// One rank of the demo; the demo starts it
    #[command(hide = true)]
    DemoRank(demo::RankOptions),
    /// Kill or stop a rank, and measure how soon the others know and go on without it
    KillTest(kill_test::Options),
    /// One rank of the kill-test, which starts it
    #[command(hide = true)]
    KillTestRank(kill_test::RankOptions),
    /// Look at this host's libraries, GPUs and settings: what each crate can do here, and what to change
    Doctor(doctor::Options),
    /// Replay recorded programs against the caching allocator: what it reserves, how often it calls the driver, how fast
    Replay(replay::Options),
    /// Measure our crates beside what they replace
    Bench(bench::Options),
    /// Run all tests: unit, property, end-to-end and documentation tests
    Test(run_tests::Options),
    /// Run what the tests run for seconds, for longer
    Soak(soak::Options),
    /// Run whole programs of several ranks under seeded schedules
    Sim(sim::Options),
    /// Break a crate in each of the ways that are kept as patches, and see that it is found
    Mutants(mutants::Options),
    /// Run everything that a change has to pass
    Ci(ci::Options),
    /// Run the caching allocator's threads in the orders that loom and shuttle choose
    Interleave(interleave::Options),
    /// Run all tests under AddressSanitizer
    Sanitize(run_tests::Options),
    /// Write a folder that runs the demo, the tests and the benchmarks on a GPU host without Rust
    GpuBundle(bundle::Options),
    /// Start the ranks of a job on this host, as torchrun does
    Launch(launch::Options),
    /// Read the flight recorders' dumps of all ranks, ours and PyTorch's
    Fr(fr::Options),
    /// Regenerate the tables of cuda-driver-sys and nccl-sys from the pinned headers
    Codegen(codegen::Args),
    /// Draw a snapshot or an allocation trace: one HTML page with everything in it
    Viz(viz::Options),
    /// Make a Python environment with PyTorch, which tests and benchmarks then use, and print the path of its Python
    TorchEnv,
    /// Compare nccl-sys and cuda-driver-sys with real releases of NCCL and of `cuda.h`, without a GPU
    Abi(abi::Options),
}

/// Held by a test that has a world: a process has one at a time.
#[cfg(test)]
fn turn_with_a_world() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn main() -> ExitCode {
    let task = Arguments::parse().task;
    until_unread(|| perform(task))
}

fn perform(task: Task) -> Result<ExitCode> {
    match task {
        Task::Demo(options) => return Ok(demo::run(&options)),
        Task::DemoRank(options) => return Ok(demo::run_rank(&options)),
        Task::KillTest(options) => kill_test::run(&options),
        Task::KillTestRank(options) => kill_test::run_rank(&options),
        Task::Launch(options) => return Ok(launch::run(&options)),
        Task::Doctor(options) => doctor::run(&options),
        Task::Replay(options) => replay::run(&options),
        Task::Bench(options) => bench::run(&options),
        Task::Test(options) => run_tests::run(&options),
        Task::Soak(options) => soak::run(&options),
        Task::Sim(options) => sim::run(&options),
        Task::Mutants(options) => mutants::run(&options),
        Task::Ci(options) => ci::run(&options),
        Task::Interleave(options) => interleave::run(&options),
        Task::Sanitize(options) => sanitize::run(&options),
        Task::GpuBundle(options) => bundle::run(&options),
        Task::TorchEnv => torch_env::run(),
        Task::Abi(options) => abi::run(&options),
        Task::Fr(options) => fr::run(&options),
        Task::Viz(options) => viz::run(&options),
        Task::Codegen(options) => codegen::run(&options),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// What a shell says of a program that `SIGPIPE` has ended.
const UNREAD: u8 = 128 + 13;

/// Runs a command, which ends without a word where it prints what nobody reads any more (`| head -1`). Not by the signal,
/// which would also come from a child's pipe, and would leave behind what the command has started: what `println` makes
/// of it is a panic, which unwinds.
fn until_unread(command: impl FnOnce() -> Result<ExitCode> + UnwindSafe) -> ExitCode {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !is_of_unread(panic.payload()) {
            usual(panic);
        }
    }));
    match panic::catch_unwind(command) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) if is_broken_pipe(&error) && nobody_reads() => ExitCode::from(UNREAD),
        Ok(Err(error)) => {
            eprintln!("error: {}", plain::lines(&shell::explain(&error)));
            ExitCode::FAILURE
        }
        Err(panic) if is_of_unread(&*panic) => ExitCode::from(UNREAD),
        Err(panic) => panic::resume_unwind(panic),
    }
}

/// Whether a panic is that of `println` into a pipe that nobody reads.
fn is_of_unread(panic: &dyn Any) -> bool {
    let cause = io::Error::from(Errno::PIPE).to_string();
    let said = panic.downcast_ref::<String>();
    said.is_some_and(|said| said.starts_with("failed printing to std") && said.ends_with(&cause))
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kinds = error.chain().filter_map(|cause| Some(cause.downcast_ref::<io::Error>()?.kind()));
    kinds.into_iter().any(|kind| kind == io::ErrorKind::BrokenPipe)
}

/// Whether what is printed goes into a pipe without a reader.
fn nobody_reads() -> bool {
    let stdout = io::stdout();
    let mut pipe = [PollFd::new(&stdout, PollFlags::empty())];
    poll(&mut pipe, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        && pipe[0].revents().contains(PollFlags::ERR)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use crate::demo_end_to_end::xtask;

    #[test]
    fn a_command_that_nobody_reads_ends_without_a_word() {
        // One prints by `println`, one writes and hears of the error.
        for task in [["sim", "explore", "--seeds=0..2"], ["bench", "store", "--serve"]] {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let mut command = Command::new(xtask());
            let ended = command.args(task).stdin(Stdio::null()).stdout(writer).output().unwrap();
            let said = String::from_utf8_lossy(&ended.stderr);
            assert_eq!((ended.status.code(), said.as_ref()), (Some(super::UNREAD.into()), ""), "{task:?}");
        }
    }

    #[test]
    fn only_a_closed_pipe_ends_a_command_without_a_word() {
        let payload = |said: &str| super::is_of_unread(&said.to_owned());
        assert!(payload("failed printing to stdout: Broken pipe (os error 32)"));
        assert!(!payload("failed printing to stdout: No space left on device (os error 28)"));
        assert!(!payload("called `Option::unwrap()` on a `None` value"));
        let error = |errno: rustix::io::Errno| {
            super::is_broken_pipe(&anyhow::Error::from(std::io::Error::from(errno)).context("printing"))
        };
        assert!(error(rustix::io::Errno::PIPE) && !error(rustix::io::Errno::NOSPC));
    }
}

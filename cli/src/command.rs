//! The command line of `lockstep`.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::{
    bench, demo, doctor, exit, fr, help_page, kill_test, launch, notes, probe, replay, suggestions, viz,
};

/// Tools for programs that use several GPUs: a demo, diagnosis, a launcher, analysis of recordings, benchmarks
#[derive(Parser)]
#[command(name = "lockstep", version, after_help = notes::EXIT_CODES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run a whole job on this host: allocation replay, a symmetric pool, all-reduces, and the detection of a diverging rank
    #[command(after_long_help = notes::DEMO)]
    Demo(demo::Options),
    /// Run one rank of the demo
    #[command(name = demo::RANK_COMMAND, hide = true)]
    DemoRank(demo::RankOptions),
    /// Examine the libraries, GPUs and settings of this host, and say which crates work here
    #[command(after_long_help = notes::DOCTOR)]
    Doctor(doctor::Options),
    /// Start the ranks of a job on this host, as torchrun does
    #[command(after_long_help = notes::LAUNCH)]
    Launch(launch::Options),
    /// Analyze flight recorder dumps of all ranks, from these crates or from PyTorch
    Fr(fr::Options),
    /// Replay recorded allocations through the caching allocator, and report its memory use, driver calls and time
    #[command(after_long_help = notes::REPLAY)]
    Replay(replay::Options),
    /// Draw a memory snapshot or an allocation trace as one self-contained HTML page
    #[command(after_long_help = notes::VIZ)]
    Viz(viz::Options),
    /// Measure the crates, and compare them with PyTorch and NCCL where those are installed
    #[command(after_long_help = notes::BENCH)]
    Bench(bench::Options),
    /// Kill or stop one rank of a job, and measure how soon the other ranks notice and recover
    #[command(after_long_help = notes::KILL_TEST)]
    KillTest(kill_test::Options),
    /// Run one rank of the kill test
    #[command(name = kill_test::RANK_COMMAND, hide = true)]
    KillTestRank(kill_test::RankOptions),
    /// Print the help texts of all commands as Markdown
    #[command(hide = true)]
    HelpPage,
    /// Load one library, and print its functions and features as JSON
    #[command(hide = true)]
    Probe(probe::Options),
}

/// Runs the command that the process's arguments name.
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let parsed = Arguments::command().try_get_matches_from(&arguments);
    match parsed.and_then(|found| Ok((Arguments::from_arg_matches(&found)?, has_json(&found)))) {
        Ok((Arguments { task }, json)) => exit::run(|| perform(task), json),
        Err(error) => suggestions::without_hidden(error, &Arguments::command(), &arguments).exit(),
    }
}

/// Returns true if the command has the option `--json`, and it is given.
fn has_json(found: &ArgMatches) -> bool {
    match found.subcommand() {
        Some((_, found)) => has_json(found),
        None => found.try_get_one("json").is_ok_and(|json| json == Some(&true)),
    }
}

fn perform(task: Task) -> Result<ExitCode> {
    match task {
        Task::DemoRank(options) => return Ok(demo::run_rank(&options)),
        Task::Launch(options) => return launch::run(&options),
        Task::Demo(options) => demo::run(&options),
        Task::Doctor(options) => doctor::run(&options),
        Task::Fr(options) => fr::run(&options),
        Task::Replay(options) => replay::run(&options),
        Task::Viz(options) => viz::run(&options),
        Task::Bench(options) => bench::run(&options),
        Task::KillTest(options) => kill_test::run(&options),
        Task::KillTestRank(options) => kill_test::run_rank(&options),
        Task::HelpPage => help_page::print(),
        Task::Probe(options) => probe::print(&options),
    }?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use crate::suggestions;

    #[test]
    fn the_command_line_is_consistent() {
        super::Arguments::command().debug_assert();
        suggestions::rename_hidden(super::Arguments::command()).debug_assert();
    }

    #[test]
    fn the_number_of_ranks_is_named_as_it_is_typed() {
        let parse = |arguments: &[&str]| {
            let arguments = ["lockstep", "launch"].iter().chain(arguments).chain(&["true"]);
            super::Arguments::command().try_get_matches_from(arguments).map_err(|error| error.to_string())
        };
        let error = parse(&["-n", "0"]).unwrap_err();
        assert!(error.contains("invalid value '0' for '-n <N>': "), "{error}");
        for both in [&["-n", "2"][..], &["-n2"], &["--n", "2"], &["--n=2"]] {
            let found = parse(both).unwrap();
            let (_, found) = found.subcommand().unwrap();
            assert_eq!(found.get_one::<usize>("n"), Some(&2), "{both:?}");
        }
    }
}

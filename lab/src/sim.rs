//! `cargo xtask sim`: whole programs of several ranks under seeded schedules.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;
use std::{fs, panic, thread};

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use simulation::{Limits, Summary};

use xtask::shell;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Inject failures into pools, groups and rendezvous of several ranks, and check their invariants
    Explore(Explore),
}

#[derive(clap::Args)]
struct Explore {
    /// The seeds: from A up to, but without, B
    #[arg(long, value_name = "A..B", default_value = "0..10000", value_parser = range)]
    seeds: Range<u64>,
    /// Number of ranks [default: 2 to 6, drawn from the seed]
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=63))]
    ranks: Option<u32>,
    /// Number of threads [default: one for each processor; at most 4]
    #[arg(long)]
    threads: Option<usize>,
    /// Print the figures as one JSON object on the last line
    #[arg(long)]
    json: bool,
}

/// Output of `--json`.
#[derive(Serialize)]
struct Report {
    seeds: u64,
    steps: u64,
    violations: usize,
    /// Number of distinct states: see [`simulation`].
    states: usize,
    seconds: f64,
    /// The first seeds with a violation.
    failing: Vec<u64>,
}

/// The most threads of one process. Each simulates a world, which reserves two ranges of 8 TiB. A process has addresses
/// for 15 such ranges at most, and for fewer if other mappings lie between them. With six threads, a reservation fails
/// in a few of a hundred processes.
const MOST_THREADS: usize = 4;

/// Number of failing seeds that are printed.
const TOLD: usize = 10;

pub(crate) fn run(options: &Options) -> Result<()> {
    let What::Explore(explore) = &options.what;
    let processors = thread::available_parallelism().map_or(1, |processors| processors.get());
    let threads = explore.threads.unwrap_or(processors.min(MOST_THREADS));
    ensure!(
        threads <= MOST_THREADS,
        "{threads} threads, expected at most {MOST_THREADS}: run several processes"
    );
    let limits = Limits { ranks: explore.ranks, ..Limits::default() };
    let begin = Instant::now();
    let summary = all(explore.seeds.clone(), &limits, threads)?;
    let report = Report {
        seeds: summary.seeds,
        steps: summary.steps,
        violations: summary.violations.len(),
        states: summary.states.len(),
        seconds: begin.elapsed().as_secs_f64(),
        failing: summary.violations.keys().copied().take(TOLD).collect(),
    };
    if let Some((seed, violation)) = summary.violations.iter().next() {
        eprintln!("{violation}");
        let file = write_trace(*seed, &limits)?;
        let ranks = explore.ranks.map_or_else(String::new, |ranks| format!(" --ranks {ranks}"));
        eprintln!("again: cargo xtask sim explore --seeds {seed}..{}{ranks}", seed + 1);
        eprintln!("what happened, of the least part of it that still fails: {}", file.display());
    }
    if explore.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        let Report { seeds, steps, violations, states, seconds, .. } = report;
        println!("{seeds} seeds, {steps} steps, {states} states in {seconds:.1} s: {violations} violations");
    }
    ensure!(
        summary.violations.is_empty(),
        "{} seeds fail, first {:?}",
        summary.violations.len(),
        report.failing
    );
    Ok(())
}

/// Runs the seeds with a progress bar.
fn all(seeds: Range<u64>, limits: &Limits, threads: usize) -> Result<Summary> {
    let bar = ProgressBar::new(seeds.end.saturating_sub(seeds.start));
    bar.set_style(ProgressStyle::with_template("{wide_bar} {pos} of {len} seeds, {per_sec}, {eta} left")?);
    // A panic of the tested code is a violation, and is reported as one.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let summary = simulation::explore(seeds, limits, threads, &|done| bar.set_position(done));
    panic::set_hook(hook);
    bar.finish_and_clear();
    Ok(summary)
}

/// Writes the trace of a failing seed, after a cheap reduction of its limits.
fn write_trace(seed: u64, limits: &Limits) -> Result<PathBuf> {
    let least = simulation::shrink(seed, limits);
    let run = simulation::run(seed, &least, true);
    let end = run.violation.map_or_else(String::new, |violation| violation.to_string());
    let folder = shell::target(&shell::workspace()?);
    // The folder may be missing: the build may use another target folder, as mutation tests do.
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let file = folder.join(format!("sim-seed-{seed}.txt"));
    fs::write(&file, format!("{least:?}\n{}\n{end}\n", run.trace.join("\n")))
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

/// `A..B`.
fn range(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("not of the form A..B")?;
    let number = |text: &str| text.trim().parse::<u64>().map_err(|error| format!("{text:?}: {error}"));
    let (from, to) = (number(from)?, number(to)?);
    if from < to { Ok(from..to) } else { Err(format!("{from}..{to} has no seeds")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_range() {
        assert_eq!(range("3..5"), Ok(3..5));
        assert!(["5..3", "3..3", "3", "a..b", "3..=5"].iter().all(|text| range(text).is_err()));
    }

    #[test]
    fn a_few_seeds_hold() {
        let summary = all(7..27, &Limits { ranks: Some(3), ..Limits::default() }, 2).unwrap();
        assert_eq!((summary.seeds, summary.violations.len()), (20, 0));
        assert!(summary.steps > 1000 && summary.states.len() > 100);
    }
}

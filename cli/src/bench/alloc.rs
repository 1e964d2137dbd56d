//! `lockstep bench alloc`: runs caching-alloc's benchmark and PyTorch's peer of it, and compares them.

use std::fmt;

use anyhow::{Context, Result};
use serde::Serialize;

use super::figures::{Figure, compare, find, json, medians, table};
use super::programs::Program;
use super::{NoCheck, ours, peer};
use crate::progress::Progress;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    no_check: NoCheck,
}

/// Baseline of each case's ratios: the first of these contenders that the case has.
const OURS: [&str; 2] = ["ours", "ours, counted memory"];

#[derive(Serialize)]
struct Report {
    figures: Vec<Figure>,
    /// Reason if PyTorch was not measured.
    torch: Option<String>,
    /// Pairs per second of eight threads with their own streams, as a multiple of one thread's.
    scaling: Option<f64>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    options.no_check.refuse("alloc")?;
    let progress = Progress::start();
    progress.show("building the benchmark of PyTorch");
    let (mut ours, mut lines) = (ours(Program::Alloc, &[])?, String::new());
    let mut torch = peer::torch_allocator();
    peer::alternate(&progress, Program::Alloc.rounds(), &mut ours, &mut torch, &mut lines)
        .context("caching-alloc's benchmark")?;
    drop(progress);
    let figures = compare(medians(&lines)?, &OURS);
    let torch = torch.err().map(|why| format!("{why:#}"));
    let report = Report { scaling: scaling(&figures), figures, torch };
    if options.json {
        println!("{}", json(&report)?);
    } else {
        println!("{report}");
    }
    Ok(())
}

fn scaling(figures: &[Figure]) -> Option<f64> {
    let time = |case| OURS.iter().find_map(|who| find(figures, case, who));
    Some(time("1 threads, its own stream")? / time("8 threads, its own stream")?)
}

/// Explains the table.
const LEGEND: &str = "
Times are medians, in ns of host time for one operation. The ratio is the time divided by that of `ours` (without a GPU,
of `ours, counted memory`); below 1 is faster.
  hit pair          allocate a block that the cache has, and free it
  churn             free a random block and allocate one of a random size, while that many blocks are in use
  threads           pairs of 1 MiB by threads at once, each on a stream of its own or all on one stream: elapsed time
                    divided by the number of pairs of all threads
  pair, used by ... allocate 1 MiB, have a second stream use it, and free it
  miss and release  allocate 64 MiB that the cache does not have, and give it back to the memory's source
Counted memory is not real: its source only counts the bytes. A tracker is a callback for changes of the allocator:
structural for its segments, block for every block too.";

/// Returns the name of a case as the table shows it. The case itself keeps the name that PyTorch's peer gives it.
fn title(case: &str) -> String {
    case.strip_prefix("1 threads").map_or_else(|| case.to_owned(), |rest| format!("1 thread{rest}"))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let titled = |figure: &Figure| Figure { case: title(&figure.case), ..figure.clone() };
        let figures: Vec<_> = self.figures.iter().map(titled).collect();
        writeln!(f, "caching allocator: host time of allocations and frees")?;
        write!(f, "{}\n{LEGEND}", table(&figures, ("ns per operation", 1.0), "ratio to ours"))?;
        if let Some(scaling) = self.scaling {
            write!(
                f,
                "\n8 threads, each on its own stream, make {scaling:.1} times as many pairs per second as 1 thread"
            )?;
        }
        if let Some(why) = &self.torch {
            write!(f, "\nPyTorch: skipped: {why}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaling_is_of_pairs_a_second() {
        let lines = "1 threads, its own stream\tours\t40\n8 threads, its own stream\tours\t5\n";
        assert_eq!(scaling(&medians(lines).unwrap()), Some(8.0));
        assert_eq!(scaling(&[]), None);
    }

    #[test]
    fn figures_have_units_and_headings() {
        let lines = "1 threads, its own stream\tours\t40\n8 threads, its own stream\tours\t5\n";
        let figures = compare(medians(lines).unwrap(), &OURS);
        let text = Report { scaling: scaling(&figures), figures, torch: None }.to_string();
        for part in ["ns per operation", "ratio to ours", "1 thread, its own stream", "make 8.0 times"] {
            assert!(text.contains(part), "no {part:?} in:\n{text}");
        }
        assert!(!text.contains("1 threads"), "{text}");
    }
}

//! `lockstep bench alloc`: runs caching-alloc's benchmark and PyTorch's peer of it, and compares them.

use anyhow::{Context, Result};
use serde::Serialize;

use super::figures::{Figure, compare, find, medians, table};
use super::programs::Program;
use super::{ours, peer};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
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
    let (mut ours, mut lines) = (ours(Program::Alloc, &[])?, String::new());
    let mut torch = peer::torch_allocator();
    peer::alternate(&mut ours, &mut torch, &mut lines).context("caching-alloc's benchmark")?;
    let figures = compare(medians(&lines)?, &OURS);
    let torch = torch.err().map(|why| format!("{why:#}"));
    let report = Report { scaling: scaling(&figures), figures, torch };
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print(&report);
    }
    Ok(())
}

fn scaling(figures: &[Figure]) -> Option<f64> {
    let time = |case| OURS.iter().find_map(|who| find(figures, case, who));
    Some(time("1 threads, its own stream")? / time("8 threads, its own stream")?)
}

fn print(report: &Report) {
    println!("{}", table(&report.figures, ("ns", 1.0), "times ours"));
    if let Some(scaling) = report.scaling {
        println!("8 threads with their own streams: {scaling:.1} times one thread's pairs a second");
    }
    if let Some(why) = &report.torch {
        println!("PyTorch: skipped: {why}");
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
}

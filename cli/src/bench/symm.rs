//! `lockstep bench symm`: runs symm-mem's benchmarks and PyTorch's peer of them, and compares them.

use anyhow::{Context, Result};
use serde::Serialize;

use super::figures::{Bar, Figure, compare, find, for_gpus, json, medians, print_bars, table};
use super::programs::Program;
use super::{check, ours, peer, pool};
use crate::progress::Progress;
use crate::values;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of ranks, with one GPU each: an even number from 2 to 64
    #[arg(long, default_value_t = 2, value_parser = values::even_ranks, allow_negative_numbers = true)]
    ranks: usize,
    /// Fail if a figure exceeds its bar; the bars of times are for GPUs, and left out on embedded devices
    #[arg(long)]
    check: bool,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

/// Baseline of each case's ratios: the first of these contenders that the case has.
const BASES: [&str; 3] = [BARE, TORCH, COPY];
const BARE: &str = "bare registration";
/// Commits that map no segment of another rank.
const UNMAPPED: &str = "commit_all, unmapped";
const TORCH: &str = "torch";
const COPY: &str = "copy engine";
/// The copy engine, driven by the receiver.
const READING: &str = "copy engine, reading";
const OURS: &str = "SymmetricMemory";

/// Sizes whose rate has a bar.
const LARGE: [&str; 2] = ["64 MiB", "256 MiB"];

#[derive(Serialize)]
struct Report {
    /// The GPUs or embedded devices that our benchmark used.
    machine: String,
    figures: Vec<Figure>,
    /// Allocation and look-up.
    pools: pool::Report,
    bars: Vec<Bar>,
    /// Reason if PyTorch was not measured.
    torch: Option<String>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let ranks = options.ranks;
    let progress = Progress::start();
    let mut pools = pool::measure(&progress, ranks)?;
    progress.show("preparing the transfers");
    let mut ours = ours(Program::Symm, &[&ranks.to_string()])?;
    let mut torch = peer::torch_distributed(&peer::SYMM, ranks, &[]);
    let (mut opening, mut lines) = (String::new(), String::new());
    ours.round(&mut opening).context("symm-mem's benchmark")?;
    peer::alternate(&progress, Program::Symm.rounds(), &mut ours, &mut torch, &mut lines)
        .context("symm-mem's benchmark")?;
    drop(progress);
    let machine =
        opening.trim().strip_prefix("machine\t").context("symm-mem's benchmark names no machine")?;
    let figures = compare(medians(&lines)?, &BASES);
    let mut bars = for_gpus(machine, bars(&figures));
    bars.append(&mut pools.bars);
    let torch = torch.err().map(|why| format!("{why:#}"));
    let report = Report { machine: machine.to_owned(), figures, pools, bars, torch };
    if options.json {
        println!("{}", json(&report)?);
    } else {
        report.print(options.check);
    }
    if options.check { check(&report.machine, &report.bars) } else { Ok(()) }
}

fn bars(figures: &[Figure]) -> Vec<Bar> {
    let ns = |case: &str, contender: &str| find(figures, case, contender);
    let of = |case: &str, contender: &str, base: &str| Some(ns(case, contender)? / ns(case, base)?);
    let commits = ["commit of 1 segment", "commit of 4 segments", "commit of 16 segments"];
    let votes = commits.into_iter().flat_map(|case| {
        [("commit_all", "what a vote adds, ms"), (UNMAPPED, "what a vote adds without a mapping, ms")].map(
            |(contender, what)| {
                let adds = ns(case, contender).zip(ns(case, BARE)).map(|(ours, bare)| (ours - bare) / 1e6);
                // The commit covers two groups, each with one vote.
                Bar::at_most(&format!("{case}, {what}"), adds.map(|ms| ms / 2.0), 2.0)
            },
        )
    });
    let beside_torch = ["rendezvous of 64 MiB", "barrier", "signal, put to wait"]
        .map(|case| Bar::at_most(&format!("{case}, times PyTorch's"), of(case, OURS, TORCH), 1.0));
    let rates = LARGE
        .iter()
        .flat_map(|size| [("put", COPY, "writes"), ("get", READING, "reads")].map(|way| (size, way)));
    let rates = rates.flat_map(|(size, (way, alike, does))| {
        let (one, both) = (format!("{size} one way"), format!("{size} both ways"));
        let at_once = ns(&both, way).zip(ns(&one, way)).map(|(both, one)| both / one);
        let at_most =
            |what: &str, figure| Bar::at_most(&format!("{way} of {size}{what}"), figure, 1.0 / 0.95);
        [
            at_most(", times the copy engine's", of(&one, way, COPY)),
            at_most(" both ways, times one way", at_once),
            // Compared with the copy engine in the same direction, so that the device's own cost of two directions is
            // excluded.
            at_most(&format!(" both ways, times the bare engine's {does} both ways"), of(&both, way, alike)),
        ]
    });
    votes.chain(beside_torch).chain(rates).flatten().collect()
}

impl Report {
    fn print(&self, is_checked: bool) {
        println!("symmetric memory on {}", self.machine);
        println!("{}", table(&self.figures, ("µs", 1e3), "of the base"));
        println!("{}", table(&self.pools.figures, ("ns", 1.0), "of the first"));
        if let Some(why) = &self.torch {
            println!("PyTorch: skipped: {why}");
        }
        print_bars(&self.bars, is_checked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::Number;

    #[test]
    fn the_bars_are_of_one_run() {
        let lines = "commit of 1 segment\tbare registration\t30000000\ncommit of 1 segment\tcommit_all\t33000000\n\
                     commit of 1 segment\tcommit_all, unmapped\t32000000\n\
                     barrier\tSymmetricMemory\t2500\nbarrier\ttorch\t2000\n64 MiB one way\tcopy engine\t100\n\
                     64 MiB one way\tput\t104\n64 MiB both ways\tput\t104\n\
                     64 MiB both ways\tget\t210\n64 MiB both ways\tcopy engine, reading\t200\n";
        let bars = bars(&medians(lines).unwrap());
        let told: Vec<_> = bars.iter().map(|bar| (bar.what.as_str(), bar.figure, bar.holds)).collect();
        assert_eq!(
            told,
            [
                ("commit of 1 segment, what a vote adds, ms", Number::Measure(1.5), true),
                ("commit of 1 segment, what a vote adds without a mapping, ms", Number::Measure(1.0), true),
                ("barrier, times PyTorch's", Number::Measure(1.25), false),
                ("put of 64 MiB, times the copy engine's", Number::Measure(1.04), true),
                ("put of 64 MiB both ways, times one way", Number::Measure(1.0), true),
                (
                    "get of 64 MiB both ways, times the bare engine's reads both ways",
                    Number::Measure(1.05),
                    true
                ),
            ]
        );
        assert!(super::bars(&[]).is_empty());
    }
}

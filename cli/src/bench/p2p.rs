//! `lockstep bench p2p`: runs the benchmark of messages, and compares the policies.

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::figures::{Figure, compare, count, json, medians, read, table};
use super::programs::Program;
use super::{NoCheck, ours, turns};
use crate::progress::Progress;
use crate::values;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of ranks, with one GPU each: from 2 to 64
    #[arg(long, default_value_t = 2, value_parser = values::whole::<usize>("a number of ranks", 2..=64), allow_negative_numbers = true)]
    ranks: usize,
    /// Also measure the direct policy with this ring: MiB of a slot, and number of slots; may be repeated
    #[arg(long, value_name = "MIBxSLOTS", value_parser = ring)]
    ring: Vec<String>,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    no_check: NoCheck,
}

/// Baseline of the ratios: the policy that takes no extra memory.
const BASE: &str = "Shared";

#[derive(Debug, PartialEq, Serialize)]
struct Report {
    machine: String,
    /// Times of the messages, and of a pipeline's steps.
    figures: Vec<Figure>,
    memory: Vec<Memory>,
    /// Bytes of a rank's device that the group itself takes.
    group_bytes: u64,
    skipped: Vec<Skipped>,
}

/// Device memory that a policy takes of each rank, beyond the group's communicator.
#[derive(Debug, PartialEq, Serialize)]
struct Memory {
    policy: String,
    bytes: u64,
}

/// A pattern that is impossible with this number of ranks.
#[derive(Debug, PartialEq, Serialize)]
struct Skipped {
    case: String,
    why: String,
}

fn ring(text: &str) -> Result<String, &'static str> {
    let is_number = |part: &str| part.parse::<u16>().is_ok_and(|number| number > 0);
    let is_ring = text.split_once('x').is_some_and(|(mib, slots)| is_number(mib) && is_number(slots));
    is_ring.then(|| text.to_owned()).ok_or("expected MiB of a slot and number of slots, such as 8x4")
}

pub(crate) fn run(options: &Options) -> Result<()> {
    options.no_check.refuse("p2p")?;
    let ranks = options.ranks.to_string();
    let arguments: Vec<&str> =
        [ranks.as_str()].into_iter().chain(options.ring.iter().map(String::as_str)).collect();
    let mut ours = ours(Program::Messages, &arguments)?;
    let mut lines = String::new();
    let progress = Progress::start();
    turns::rounds(&progress, Program::Messages.rounds(), || ours.round(&mut lines))
        .context("the benchmark of messages")?;
    drop(progress);
    let report = Report::of(&lines)?;
    if options.json {
        println!("{}", json(&report)?);
    } else {
        report.print();
    }
    Ok(())
}

impl Report {
    fn of(lines: &str) -> Result<Self> {
        let Some((first, rest)) = lines.split_once('\n') else { bail!("the benchmark printed nothing") };
        let machine = first.strip_prefix("machine\t").context("the benchmark names no machine")?.to_owned();
        let (skipped, told): (Vec<&str>, Vec<&str>) =
            rest.lines().partition(|line| line.starts_with("skipped\t"));
        let skipped = skipped.iter().filter_map(|line| {
            let (case, why) = line.strip_prefix("skipped\t")?.split_once('\t')?;
            Some(Skipped { case: case.to_owned(), why: why.to_owned() })
        });
        let (memory, times): (Vec<&str>, Vec<&str>) =
            told.iter().partition(|line| line.starts_with("memory"));
        let memory = memory.join("\n");
        let memory = read(&memory)?;
        let group_bytes =
            memory.iter().find(|(what, ..)| *what == "memory of a group").map(|(.., bytes)| *bytes);
        let of_policy = |(what, policy, bytes): &(&str, &str, f64)| {
            let memory = || Ok(Memory { policy: (*policy).to_owned(), bytes: count(*bytes)? });
            (*what == "memory").then(memory)
        };
        let group_bytes = group_bytes.context("the benchmark does not say what a group takes")?;
        Ok(Self {
            machine,
            figures: compare(medians(&times.join("\n"))?, &[BASE]),
            memory: memory.iter().filter_map(of_policy).collect::<Result<_>>()?,
            group_bytes: count(group_bytes)?,
            skipped: skipped.collect(),
        })
    }

    fn print(&self) {
        println!("messages on {}", self.machine);
        println!("{}", table(&self.figures, ("µs", 1e3), "of Shared"));
        for Skipped { case, why } in &self.skipped {
            println!("{case}: skipped: {why}");
        }
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let memory =
            self.memory.iter().map(|Memory { policy, bytes }| format!("{policy} {:.0}", mib(*bytes)));
        let memory: Vec<_> = memory.collect();
        println!(
            "device memory of a rank, MiB: a group {:.0}; beyond it: {}",
            mib(self.group_bytes),
            memory.join(", ")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "machine\t2 x H200\nskipped\tfan\t4 ranks are needed\nmemory\tShared\t0\n\
                         memory\tPerPair\t1048576\nmemory\tDirect\t524288\nmemory of a group\tShared\t2097152\n\
                         both\tShared\t2000\nboth\tPerPair\t1000\nboth\tShared\t4000\nboth\tShared\t3000\n";

    #[test]
    fn a_report_is_what_the_benchmark_tells() {
        let report = Report::of(LINES).unwrap();
        assert_eq!((report.machine.as_str(), report.group_bytes), ("2 x H200", 2_097_152));
        let skipped = Skipped { case: "fan".into(), why: "4 ranks are needed".into() };
        assert_eq!(report.skipped, [skipped]);
        let memory = |policy: &str, bytes| Memory { policy: policy.into(), bytes };
        assert_eq!(report.memory[1..], [memory("PerPair", 1_048_576), memory("Direct", 524_288)]);
        let ratios: Vec<_> = report.figures.iter().map(|figure| figure.ratio).collect();
        assert_eq!(ratios, [Some(1.0), Some(1.0 / 3.0)]);
    }

    #[test]
    fn what_is_missing_is_an_error() {
        assert!(Report::of("").is_err());
        assert!(Report::of("both\tShared\t1\n").is_err());
        assert!(Report::of("machine\tx\nboth\tShared\t1\n").is_err());
    }
}

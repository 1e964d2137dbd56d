//! `lockstep bench p2p`: runs the benchmark of messages, and compares the policies.

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::figures::{
    Bar, Figure, compare, count, find, is_embedded, json, medians, print_bars, read, table,
};
use super::programs::{
    Program,
    messages::{SHARED, SHARED_BATCH},
};
use super::{check, ours, turns};
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
    /// Fail if a figure exceeds its bar; the bars of times are for GPUs, and left out on embedded devices
    #[arg(long)]
    check: bool,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

const ONE_WAY: &str = "256 MiB in one direction";
const BOTH_WAYS: &str = "256 MiB in both directions";
const COPY: &str = "copy engine";
/// The contenders that are measured beside one copy in one direction.
const BESIDE: [&str; 2] = [SHARED, SHARED_BATCH];

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
    /// Bytes of a rank's device that a direct path takes for each peer.
    peer_bytes: u64,
    skipped: Vec<Skipped>,
    bars: Vec<Bar>,
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
        report.print(options.check);
    }
    if options.check { check(&report.machine, &report.bars) } else { Ok(()) }
}

/// The bars: two messages of shared memory at once, beside one copy in one direction, and a path's memory.
fn bars(machine: &str, figures: &[Figure], peer_bytes: u64) -> Vec<Bar> {
    let one_way = find(figures, ONE_WAY, COPY).filter(|_| !is_embedded(machine));
    let times = BESIDE.map(|contender| {
        let ratio = find(figures, BOTH_WAYS, contender).zip(one_way).map(|(both, one)| both / one);
        Bar::at_most(&format!("{BOTH_WAYS}, {contender}, times one copy in one direction"), ratio, 1.08)
    });
    let memory =
        Bar::count_at_most("device memory of a direct path for a peer, bytes", Some(peer_bytes), 2 << 20);
    times.into_iter().chain([memory]).flatten().collect()
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
        let found = |wanted: &str| {
            let bytes = memory.iter().find(|(what, ..)| *what == wanted).map(|(.., bytes)| *bytes);
            count(bytes.with_context(|| format!("the benchmark does not tell the {wanted}"))?)
        };
        let of_policy = |(what, policy, bytes): &(&str, &str, f64)| {
            let memory = || Ok(Memory { policy: (*policy).to_owned(), bytes: count(*bytes)? });
            (*what == "memory").then(memory)
        };
        let figures = compare(medians(&times.join("\n"))?, &[BASE]);
        let (group_bytes, peer_bytes) = (found("memory of a group")?, found("memory for a peer")?);
        Ok(Self {
            bars: bars(&machine, &figures, peer_bytes),
            machine,
            figures,
            memory: memory.iter().filter_map(of_policy).collect::<Result<_>>()?,
            group_bytes,
            peer_bytes,
            skipped: skipped.collect(),
        })
    }

    fn print(&self, is_checked: bool) {
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
        print_bars(&self.bars, is_checked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "machine\t2 x H200\nskipped\tfan\t4 ranks are needed\nmemory\tShared\t0\n\
                         memory\tPerPair\t1048576\nmemory\tDirect\t524288\nmemory of a group\tShared\t2097152\n\
                         memory for a peer\tDirect, shared\t2097152\n\
                         256 MiB in one direction\tcopy engine\t1000\n\
                         256 MiB in both directions\tDirect, shared\t1070\n\
                         256 MiB in both directions\tDirect, shared, in a batch\t1090\n\
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
        assert_eq!(ratios[3..], [Some(1.0), Some(1.0 / 3.0)]);
        assert_eq!(report.bars.iter().map(|bar| bar.holds).collect::<Vec<_>>(), [true, false, true]);
        // Times say nothing on embedded devices.
        let embedded = Report::of(&LINES.replace("2 x H200", "embedded device")).unwrap();
        assert_eq!(embedded.bars, report.bars[2..]);
    }

    #[test]
    fn what_is_missing_is_an_error() {
        assert!(Report::of("").is_err());
        assert!(Report::of("both\tShared\t1\n").is_err());
        assert!(Report::of("machine\tx\nboth\tShared\t1\n").is_err());
    }
}

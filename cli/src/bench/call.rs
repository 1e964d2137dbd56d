//! `lockstep bench call`: runs process-group's benchmark of calls and PyTorch's peer of it, and compares them.

use anyhow::{Context, Result};
use serde::Serialize;

use super::figures::{Bar, Figure, compare, count, find, for_gpus, json, medians, print_bars, read, table};
use super::programs::Program;
use super::{check, ours, peer};
use crate::progress::Progress;
use crate::values;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of ranks, with one GPU each: from 2 to 64
    #[arg(long, default_value_t = 2, value_parser = values::whole::<usize>("a number of ranks", 2..=64), allow_negative_numbers = true)]
    ranks: usize,
    /// Fail if a figure exceeds its bar; the bars are for GPUs, and left out on embedded devices
    #[arg(long)]
    check: bool,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

/// Baseline of the ratios.
const RAW: &str = "ncclAllReduce";
/// The same call, followed by an event record.
const RAW_AND_EVENT: &str = "ncclAllReduce and an event";
const GROUP: &str = "ProcessGroup";
const TORCH: &str = "torch.distributed";
/// Cases that the summary line uses.
const LOOP: &str = "loop of 2000";
const GRAPHS: &str = "graphs of 50";

#[derive(Serialize)]
struct Report {
    /// The GPUs or embedded devices that our benchmark used.
    machine: String,
    figures: Vec<Figure>,
    results: Vec<Results>,
    /// Reason if PyTorch was not measured.
    torch: Option<String>,
    #[serde(flatten)]
    overheads: Overheads,
    bars: Vec<Bar>,
}

/// Comparison of a contender's results with those of NCCL's own function.
#[derive(Debug, PartialEq, Serialize)]
struct Results {
    contender: String,
    compared: u64,
    differ: u64,
}

/// Measured overheads of a call through `ProcessGroup`.
#[derive(Debug, PartialEq, Serialize)]
struct Overheads {
    /// Time above NCCL's own function, in µs.
    above_raw_us: Option<f64>,
    /// Time above NCCL's own function and an event record, in µs.
    above_raw_and_event_us: Option<f64>,
    /// Time divided by PyTorch's.
    of_torch: Option<f64>,
    /// Time in a graph divided by that of NCCL's own function.
    in_graph: Option<f64>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let ranks = options.ranks.to_string();
    let progress = Progress::start();
    progress.show("comparing the results of the layers");
    let mut ours = ours(Program::Collectives, &[&ranks])?;
    let mut torch = peer::torch_distributed(&peer::CALL, options.ranks, &[]);
    let (mut opening, mut lines) = (String::new(), String::new());
    ours.round(&mut opening).context("process-group's benchmark")?;
    peer::alternate(&progress, Program::Collectives.rounds(), &mut ours, &mut torch, &mut lines)
        .context("process-group's benchmark")?;
    drop(progress);
    let (machine, results) = opened(&opening)?;
    let figures = compare(medians(&lines)?, &[RAW]);
    let torch = torch.err().map(|why| format!("{why:#}"));
    let overheads = Overheads::of(&figures);
    let bars = for_gpus(&machine, overheads.bars());
    let report = Report { machine, figures, results, torch, overheads, bars };
    if options.json {
        println!("{}", json(&report)?);
    } else {
        print(&report, options.check);
    }
    if options.check { check(&report.machine, &report.bars) } else { Ok(()) }
}

/// Reads the first round: the machine, and the comparison of the results.
fn opened(lines: &str) -> Result<(String, Vec<Results>)> {
    let (first, rest) = lines.split_once('\n').unwrap_or((lines, ""));
    let machine = first.strip_prefix("machine\t").context("process-group's benchmark names no machine")?;
    let told = read(rest)?;
    let of = |wanted: &str, who: &str| told.iter().find(|(what, by, _)| (*what, *by) == (wanted, who));
    let results = |(_, contender, compared): &(&str, &str, f64)| {
        let &(.., differ) =
            of("results that differ", contender).context("no count of results that differ")?;
        let (compared, differ) = (count(*compared)?, count(differ)?);
        Ok(Results { contender: (*contender).to_owned(), compared, differ })
    };
    let all = told.iter().filter(|(what, ..)| *what == "results").map(results);
    Ok((machine.to_owned(), all.collect::<Result<_>>()?))
}

impl Overheads {
    fn of(figures: &[Figure]) -> Self {
        let ns = |case, contender| find(figures, case, contender);
        let of = |contender, other, case| Some(ns(case, contender)? / ns(case, other)?);
        let above = |other| Some((ns(LOOP, GROUP)? - ns(LOOP, other)?) / 1e3);
        Self {
            above_raw_us: above(RAW),
            above_raw_and_event_us: above(RAW_AND_EVENT),
            of_torch: of(GROUP, TORCH, LOOP),
            in_graph: of(GROUP, RAW, GRAPHS),
        }
    }

    /// Returns the bars whose figures were measured.
    fn bars(&self) -> Vec<Bar> {
        let bars = [
            Bar::at_most("µs above NCCL's own function", self.above_raw_us, 0.5),
            Bar::at_most("part of PyTorch's time", self.of_torch, 1.0 / 3.0),
            Bar::at_most("times NCCL's own function in a graph", self.in_graph, 1.0),
        ];
        bars.into_iter().flatten().collect()
    }
}

fn print(report: &Report, is_checked: bool) {
    println!("all-reduce of 8 bytes on {}", report.machine);
    println!("{}", table(&report.figures, ("µs a call", 1e3), "times raw"));
    if let Some(why) = &report.torch {
        println!("PyTorch: skipped: {why}");
    }
    for Results { contender, compared, differ } in &report.results {
        println!("{contender}: {differ} of {compared} results differ from raw in any bit");
    }
    print_bars(&report.bars, is_checked);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bars_are_of_the_loop_and_of_graphs() {
        let lines = "loop of 2000\tncclAllReduce\t5000\nloop of 2000\tProcessGroup\t5400\n\
                     loop of 2000\tncclAllReduce and an event\t5300\n\
                     loop of 2000\ttorch.distributed\t20000\nbursts of 20\tProcessGroup\t1\n\
                     graphs of 50\tncclAllReduce\t6000\ngraphs of 50\tProcessGroup\t6600\n";
        let figures = compare(medians(lines).unwrap(), &[RAW]);
        let overheads = Overheads::of(&figures);
        assert_eq!(overheads.above_raw_and_event_us, Some(0.1));
        let bars: Vec<_> = overheads.bars().iter().map(ToString::to_string).collect();
        assert_eq!(
            bars,
            [
                "µs above NCCL's own function: 0.40, at most 0.5 (holds)",
                "part of PyTorch's time: 0.27, at most 0.333 (holds)",
                "times NCCL's own function in a graph: 1.10, at most 1 (does not hold)",
            ]
        );
    }

    #[test]
    fn what_is_not_measured_has_no_bar() {
        let overheads = Overheads::of(&medians("loop of 2000\tProcessGroup\t5400\n").unwrap());
        assert!(overheads.bars().is_empty());
        assert_eq!(
            overheads,
            Overheads { above_raw_us: None, above_raw_and_event_us: None, of_torch: None, in_graph: None }
        );
    }

    #[test]
    fn the_first_round_says_where_and_what_differs() {
        let lines = "machine\t2 x H200\nresults\tCommunicator\t7\nresults that differ\tCommunicator\t1\n";
        let (machine, results) = opened(lines).unwrap();
        assert_eq!(machine, "2 x H200");
        assert_eq!(results, [Results { contender: "Communicator".into(), compared: 7, differ: 1 }]);
        assert!(opened("loop\tours\t1\n").is_err());
        assert!(opened("machine\tx\nresults\tours\t1\n").is_err());
    }
}

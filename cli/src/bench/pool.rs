//! `lockstep bench pool`: runs symm-mem's benchmark of pools.

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::figures::{Bar, Figure, compare, count, find, for_gpus, json, medians, print_bars, read, table};
use super::programs::Program;
use super::{check, ours, turns};
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
const BASES: [&str; 2] = ["a pool a group", "SymmetricPool"];

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Report {
    machine: String,
    /// Memory reserved for the requests of a few steps, with separate pools and with a shared one.
    footprints: Vec<Footprint>,
    pub(super) figures: Vec<Figure>,
    pub(super) bars: Vec<Bar>,
}

#[derive(Debug, Default, PartialEq, Serialize)]
struct Footprint {
    pools: String,
    reserved_bytes: u64,
    segments: u64,
    windows: u64,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let report = measure(&Progress::start(), options.ranks)?;
    if options.json {
        println!("{}", json(&report)?);
    } else {
        report.print(options.check);
    }
    if options.check { check(&report.machine, &report.bars) } else { Ok(()) }
}

/// Runs the benchmark to its end.
pub(super) fn measure(progress: &Progress, ranks: usize) -> Result<Report> {
    let mut ours = ours(Program::Pool, &[&ranks.to_string()])?;
    let mut lines = String::new();
    turns::rounds(progress, Program::Pool.rounds(), || ours.round(&mut lines))
        .context("symm-mem's benchmark of pools")?;
    Report::of(&lines)
}

impl Report {
    fn of(lines: &str) -> Result<Self> {
        let (first, rest) = lines.split_once('\n').unwrap_or((lines, ""));
        let machine = first.strip_prefix("machine\t").context("the benchmark names no machine")?.to_owned();
        const SIZES: [&str; 3] = ["reserved", "segments", "windows"];
        let of_size = |line: &&str| SIZES.iter().any(|size| line.split('\t').next() == Some(size));
        let (growth, rest): (Vec<&str>, Vec<&str>) =
            rest.lines().partition(|line| line.starts_with("growth\t"));
        let growth = growth.join("\n");
        let growth = read(&growth)?;
        let grown = |what| growth.iter().find(|(_, told, _)| *told == what).map(|(.., number)| *number);
        let (sizes, times): (Vec<&str>, Vec<&str>) = rest.into_iter().partition(of_size);
        let mut footprints: Vec<Footprint> = Vec::new();
        for (what, pools, number) in read(&sizes.join("\n"))? {
            let at = footprints.iter().position(|it| it.pools == pools).unwrap_or_else(|| {
                footprints.push(Footprint { pools: pools.to_owned(), ..Footprint::default() });
                footprints.len() - 1
            });
            let number = count(number).with_context(|| format!("{what}, {pools}"))?;
            match what {
                "reserved" => footprints[at].reserved_bytes = number,
                "segments" => footprints[at].segments = number,
                _ => footprints[at].windows = number,
            }
        }
        let figures = compare(medians(&times.join("\n"))?, &BASES);
        let ns = |case| find(&figures, case, "SymmetricPool");
        let times = [
            Bar::at_most("allocation, ns", ns("allocation"), 100.0),
            Bar::at_most("look-up among 1000 segments, ns", ns("look-up, 1000 segments"), 60.0),
        ];
        let sizes = [
            Bar::count_at_most(
                "windows a group for 8 GiB from nothing",
                grown("windows a group").map(count).transpose()?,
                8,
            ),
            Bar::at_most(
                "most reserved on the way, of twice the bytes in use or 512 MiB more than these",
                grown("most reserved of the limit"),
                1.0,
            ),
            Bar::at_most(
                "reserved at 8 GiB in use, GiB",
                grown("reserved in the end").map(|bytes| bytes / f64::from(1 << 30)),
                10.7,
            ),
        ];
        let mut bars = for_gpus(&machine, times.into_iter().flatten().collect());
        bars.extend(sizes.into_iter().flatten());
        Ok(Self { machine, footprints, figures, bars })
    }

    fn print(&self, is_checked: bool) {
        println!("symmetric pools on {}", self.machine);
        let mut footprints = Table::new();
        let header = ["requests of 12 layers, three groups", "reserved, MiB", "segments", "windows"];
        footprints.load_style(presets::NOTHING).set_header(header);
        for Footprint { pools, reserved_bytes, segments, windows } in &self.footprints {
            let mib = *reserved_bytes as f64 / f64::from(1 << 20);
            footprints.add_row([
                pools.clone(),
                format!("{mib:.0}"),
                segments.to_string(),
                windows.to_string(),
            ]);
        }
        let numbers = footprints.column_iter_mut().skip(1);
        numbers.for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        println!("{footprints}\n{}", table(&self.figures, ("ns", 1.0), "of the first"));
        print_bars(&self.bars, is_checked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::Number;

    const LINES: &str = "machine\t2 x H200\nreserved\ta pool a group\t300\nsegments\ta pool a group\t3\n\
                         windows\ta pool a group\t3\nentry\ta pool a group\t50\nreserved\tone shared pool\t100\n\
                         segments\tone shared pool\t1\nwindows\tone shared pool\t3\nentry\tone shared pool\t40\n\
                         allocation\tSymmetricPool\t120\nlook-up, 1000 segments\tSymmetricPool\t30\n\
                         growth\twindows a group\t9\ngrowth\treserved in the end\t10737418240\n";

    #[test]
    fn a_report_is_what_the_benchmark_tells() {
        let report = Report::of(LINES).unwrap();
        let reserved: Vec<_> = report.footprints.iter().map(|it| (it.reserved_bytes, it.windows)).collect();
        assert_eq!(reserved, [(300, 3), (100, 3)]);
        let ratios: Vec<_> = report.figures.iter().map(|figure| figure.ratio).collect();
        assert_eq!(ratios, [Some(1.0), Some(0.8), Some(1.0), Some(1.0)]);
        assert_eq!(report.bars.iter().map(|bar| bar.holds).collect::<Vec<_>>(), [false, true, false, true]);
        assert_eq!((report.bars[2].figure, report.bars[3].figure), (Number::Count(9), Number::Measure(10.0)));
    }

    #[test]
    fn embedded_devices_have_no_limits_of_times() {
        let lines = LINES.replace("2 x H200", "embedded device, 2 ranks");
        let bars = Report::of(&lines).unwrap().bars;
        assert_eq!(bars.iter().map(|bar| bar.holds).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn what_is_missing_is_an_error() {
        assert!(Report::of("").is_err());
        assert!(Report::of("entry\tours\t1\n").is_err());
        assert!(
            Report::of(&LINES.replace("windows\tone shared pool\t3", "windows\tone shared pool\t3.5"))
                .is_err()
        );
    }
}

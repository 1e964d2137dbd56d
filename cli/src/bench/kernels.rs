//! `lockstep bench kernels`: times the collective kernels of peer-kernels by size, eagerly and from a graph, beside
//! NCCL's and PyTorch's.

use anyhow::{Context as _, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::figures::{Figure, find, json, medians};
use super::programs::Program;
use super::programs::kernels::{COLLECTIVES, Collective, Contender, Mode, case_name};
use super::turns::Player;
use super::{NoCheck, our_command, peer};
use crate::progress::Progress;
use crate::values;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of ranks, from 1 to 8: a process for each GPU, or with fewer GPUs threads of one process that share them
    #[arg(long, default_value_t = 2, value_parser = values::whole::<usize>("a number of ranks", 1..=8), allow_negative_numbers = true)]
    ranks: usize,
    /// Length of the longest buffer, in MiB from 1 to 1024
    #[arg(long, default_value_t = 64, value_parser = values::whole::<usize>("a number of MiB", 1..=1024), allow_negative_numbers = true)]
    largest: usize,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    no_check: NoCheck,
}

/// PyTorch's kernels in the lines of `peers/kernels_bench.py`. Both are all-reduces.
const TORCH: [&str; 2] = ["torch one-shot", "torch two-shot"];

#[derive(Debug, Serialize)]
struct Report {
    /// The GPUs, or the embedded device.
    machine: String,
    ranks: usize,
    rows: Vec<Row>,
    /// Reason if PyTorch was not measured.
    torch: Option<String>,
}

/// The kernels of peer-kernels in one case, and the peers.
#[derive(Debug, Serialize)]
struct Row {
    collective: &'static str,
    /// Length in bytes of the longer one of a rank's input and its result.
    bytes: usize,
    #[serde(flatten)]
    times: Times,
    peers: Vec<Peer>,
}

/// Time of a call in µs: launched one by one, and as a node of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Times {
    eager_us: Option<f64>,
    graph_us: Option<f64>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Peer {
    contender: &'static str,
    #[serde(flatten)]
    times: Times,
    /// Reason if a time is missing.
    left_out: Option<String>,
}

pub(super) fn run(options: &Options) -> Result<()> {
    options.no_check.refuse("kernels")?;
    let rounds = lengths(options.largest << 20);
    let rounds = rounds.iter().flat_map(|bytes| vec![bytes.to_string(); Program::Kernels.rounds()]);
    let rounds: Vec<String> = rounds.collect();
    let (ranks, list) = (options.ranks.to_string(), rounds.join(","));
    let progress = Progress::start();
    progress.show("preparing the collectives");
    let mut command = our_command(Program::Kernels, &[&ranks, &list])?;
    // Peer mappings alone, without multicast objects, like our kernels and PyTorch's.
    let mut ours = Player::start(command.env("NCCL_NVLS_ENABLE", "0"))?;
    let mut torch = peer::torch_distributed(&peer::KERNELS, options.ranks, &[&list]);
    let mut lines = String::new();
    ours.round(&mut lines).context("symm-mem's benchmark of kernels")?;
    peer::alternate(&progress, rounds.len(), &mut ours, &mut torch, &mut lines)
        .context("symm-mem's benchmark of kernels")?;
    drop(progress);
    let torch = torch.err().map(|why| format!("{why:#}"));
    let report = Report::of(&lines, options.ranks, torch)?;
    if options.json {
        println!("{}", json(&report)?);
    } else {
        report.print();
    }
    Ok(())
}

/// Returns the lengths that are measured, in bytes.
fn lengths(largest: usize) -> Vec<usize> {
    (1..).map(|power| 8_usize.pow(power)).take_while(|bytes| *bytes < largest).chain([largest]).collect()
}

impl Report {
    /// Reads the lines of both programs. `torch` says why PyTorch was not measured.
    fn of(lines: &str, ranks: usize, torch: Option<String>) -> Result<Self> {
        let (first, rest) = lines.split_once('\n').unwrap_or((lines, ""));
        let machine = first.strip_prefix("machine\t").context("the benchmark names no machine")?.to_owned();
        let (left_out, times): (Vec<&str>, Vec<&str>) =
            rest.lines().partition(|line| line.starts_with(LEFT_OUT));
        let figures = medians(&times.join("\n"))?;
        let lines = Lines { figures, left_out, torch: torch.as_deref() };
        let mut lengths: Vec<usize> =
            lines.figures.iter().filter_map(|figure| figure.case.split('|').nth(1)?.parse().ok()).collect();
        lengths.sort_unstable();
        lengths.dedup();
        let rows = COLLECTIVES.into_iter().flat_map(|(collective, of)| {
            let lines = &lines;
            lengths.iter().filter_map(move |&bytes| {
                let times = lines.times(collective, bytes, Contender::Kernels.name());
                // A length may be too short for an element of each rank.
                times.eager_us?;
                Some(Row { collective, bytes, times, peers: lines.peers(of, bytes) })
            })
        });
        let rows = rows.collect();
        Ok(Self { machine, ranks, rows, torch })
    }

    fn print(&self) {
        println!("collective kernels, bf16, {} ranks on {}", self.ranks, self.machine);
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["collective", "bytes", "contender", "eager µs", "graph µs"]);
        let mut reasons: Vec<String> = Vec::new();
        for row in &self.rows {
            let us = |time: Option<f64>| time.map_or_else(|| "–".to_owned(), |time| format!("{time:.2}"));
            let own = (row.collective, row.bytes.to_string(), Contender::Kernels.name(), row.times);
            let peers = row.peers.iter().map(|peer| ("", String::new(), peer.contender, peer.times));
            for (collective, bytes, contender, times) in [own].into_iter().chain(peers) {
                let Times { eager_us, graph_us } = times;
                table.add_row([collective, &bytes, contender, &us(eager_us), &us(graph_us)]);
            }
            for Peer { contender, left_out, .. } in &row.peers {
                reasons.extend(left_out.as_ref().map(|why| format!("{contender}: left out: {why}")));
            }
        }
        for column in [1, 3, 4] {
            table.column_mut(column).into_iter().for_each(|it| it.set_cell_alignment(CellAlignment::Right));
        }
        println!("{table}");
        reasons.sort_unstable();
        reasons.dedup();
        reasons.iter().for_each(|reason| println!("{reason}"));
    }
}

/// Beginning of a line that says why a contender, or one of its cases, is left out.
const LEFT_OUT: &str = "left out\t";

/// The lines that both programs have printed.
struct Lines<'a> {
    figures: Vec<Figure>,
    left_out: Vec<&'a str>,
    /// Reason if PyTorch was not measured.
    torch: Option<&'a str>,
}

impl Lines<'_> {
    fn times(&self, collective: &str, bytes: usize, contender: &str) -> Times {
        let us = |mode| Some(find(&self.figures, &case_name(collective, bytes, mode), contender)? / 1e3);
        Times { eager_us: us(Mode::Eager), graph_us: us(Mode::Graph) }
    }

    fn peers(&self, collective: Collective, bytes: usize) -> Vec<Peer> {
        let nccl = [Contender::Nccl, Contender::NcclWindows].map(Contender::name);
        let torch = if matches!(collective, Collective::AllReduce(_)) { &TORCH[..] } else { &[] };
        let peer = |contender| {
            let times = self.times(collective.family(), bytes, contender);
            let is_whole = times.eager_us.is_some() && times.graph_us.is_some();
            let left_out = if is_whole { None } else { Some(self.why(contender, bytes)) };
            Peer { contender, times, left_out }
        };
        nccl.into_iter().chain(torch.iter().copied()).map(peer).collect()
    }

    /// Returns why a contender is left out, wholly or for a length.
    fn why(&self, contender: &str, bytes: usize) -> String {
        let lines = || self.left_out.iter().filter_map(|line| line.strip_prefix(LEFT_OUT)?.split_once('\t'));
        let of_length = format!("{contender}|{bytes}");
        let told = lines().find(|(of, _)| *of == contender || *of == of_length).map(|(_, why)| why);
        let torch = self.torch.filter(|_| TORCH.contains(&contender));
        told.or(torch).unwrap_or("no reason was reported").to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_times_of_its_peers_or_the_reasons_for_their_absence() {
        let lines = "machine\t2 x H200\nleft out\tNCCL with windows\tthe release has none\n\
                     all-reduce, one-shot|8|eager\tsymm-mem\t9000\nall-reduce, one-shot|8|graph\tsymm-mem\t7000\n\
                     all-reduce|8|eager\tNCCL\t12000\nall-reduce|8|graph\tNCCL\t11000\n\
                     all-reduce|8|eager\ttorch one-shot\t20000\nall-reduce|8|graph\ttorch one-shot\t8000\n\
                     left out\ttorch two-shot|8\tRuntimeError: too short\n\
                     all-gather|64|eager\tsymm-mem\t3000\nall-gather|64|graph\tsymm-mem\t2000\n";
        let report = Report::of(lines, 2, None).unwrap();
        assert_eq!(
            json(&report.rows[0]).unwrap(),
            r#"{"collective":"all-reduce, one-shot","bytes":8,"eager_us":9.0,"graph_us":7.0,"peers":[{"contender":"NCCL","eager_us":12.0,"graph_us":11.0,"left_out":null},{"contender":"NCCL with windows","eager_us":null,"graph_us":null,"left_out":"the release has none"},{"contender":"torch one-shot","eager_us":20.0,"graph_us":8.0,"left_out":null},{"contender":"torch two-shot","eager_us":null,"graph_us":null,"left_out":"RuntimeError: too short"}]}"#
        );
        let [_, gather] = &report.rows[..] else { panic!("{report:?}") };
        assert_eq!((gather.collective, gather.bytes, gather.peers.len()), ("all-gather", 64, 2));
    }

    #[test]
    fn the_reason_for_no_pytorch_is_in_the_rows() {
        let lines = "machine\tm\nall-reduce, two-shot|8|eager\tsymm-mem\t1\n";
        let report = Report::of(lines, 2, Some("no torch".to_owned())).unwrap();
        let torch = report.rows[0].peers.iter().find(|peer| peer.contender == TORCH[0]).unwrap();
        assert_eq!(torch.left_out.as_deref(), Some("no torch"));
        assert_eq!(report.rows[0].times, Times { eager_us: Some(0.001), graph_us: None });
    }

    #[test]
    fn the_longest_length_is_the_given_one() {
        assert_eq!(lengths(1 << 20), [8, 64, 512, 4096, 32_768, 262_144, 1 << 20]);
        assert_eq!(lengths(2 << 20).last(), Some(&(2 << 20)));
    }
}

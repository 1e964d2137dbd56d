//! `cargo xtask bench alloc`: runs caching-alloc's benchmark and PyTorch's peer of it, and compares them.

use std::process::Command;

use anyhow::{Context, Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::peer;
use super::turns::Player;
use crate::shell;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Whose figure the others of a case are divided by: the first of these that has one.
const OURS: [&str; 2] = ["ours", "ours, counted memory"];

/// The median of one contender in one case.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Figure {
    case: String,
    contender: String,
    /// Of wall time, an operation.
    ns: f64,
    /// How many times ours.
    ratio: Option<f64>,
}

#[derive(Serialize)]
struct Report {
    figures: Vec<Figure>,
    /// Why there is nothing of PyTorch's.
    torch: Option<String>,
    /// Pairs a second of eight threads with their own streams, as a multiple of one thread's.
    scaling: Option<f64>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let (mut ours, mut lines) = (ours()?, String::new());
    let mut torch = peer::torch();
    while ours.round(&mut lines).context("caching-alloc's benchmark")? {
        if let Ok((player, _)) = &mut torch
            && let Err(why) = player.round(&mut lines)
        {
            torch = Err(why);
        }
    }
    let figures = compare(medians(&lines)?);
    let torch = torch.err().map(|why| format!("{why:#}"));
    let report = Report { scaling: scaling(&figures), figures, torch };
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print(&report);
    }
    Ok(())
}

/// caching-alloc's benchmark, started. In a bundle it lies beside this program; in a checkout cargo builds it.
fn ours() -> Result<Player> {
    let bundled = std::env::current_exe()?.with_file_name("benches").join("caching-alloc-alloc");
    let mut command = if bundled.exists() {
        Command::new(bundled)
    } else {
        let package = shell::package("caching-alloc");
        shell::cargo(
            &shell::workspace()?,
            &["bench", "--quiet", "--package", &package, "--bench", "alloc", "--"],
        )
    };
    eprintln!("$ {}", shell::line(&command));
    Player::start(&mut command)
}

/// Reads lines of case, contender and ns, with tabs between: the median of what is told of a contender in a case.
fn medians(lines: &str) -> Result<Vec<Figure>> {
    let mut all: Vec<(&str, &str, Vec<f64>)> = Vec::new();
    for line in lines.lines() {
        let [case, contender, ns] = *line.split('\t').collect::<Vec<_>>() else {
            bail!("expected case, contender, ns: {line:?}");
        };
        let ns: f64 = ns.parse().with_context(|| format!("expected ns at the end of {line:?}"))?;
        match all.iter_mut().find(|(a, b, _)| (*a, *b) == (case, contender)) {
            Some((.., times)) => times.push(ns),
            None => all.push((case, contender, vec![ns])),
        }
    }
    let figure = |(case, contender, mut times): (&str, &str, Vec<f64>)| {
        times.sort_by(f64::total_cmp);
        let ns = times[times.len() / 2];
        Figure { case: case.to_owned(), contender: contender.to_owned(), ns, ratio: None }
    };
    Ok(all.into_iter().map(figure).collect())
}

/// Adds ratios, and puts the figures of a case together.
fn compare(mut figures: Vec<Figure>) -> Vec<Figure> {
    let all = figures.clone();
    figures.sort_by_key(|figure| all.iter().position(|other| other.case == figure.case));
    for figure in &mut figures {
        figure.ratio = OURS.iter().find_map(|who| find(&all, &figure.case, who)).map(|ours| figure.ns / ours);
    }
    figures
}

fn find(figures: &[Figure], case: &str, contender: &str) -> Option<f64> {
    figures.iter().find(|figure| figure.case == case && figure.contender == contender).map(|figure| figure.ns)
}

fn scaling(figures: &[Figure]) -> Option<f64> {
    let time = |case| OURS.iter().find_map(|who| find(figures, case, who));
    Some(time("1 threads, its own stream")? / time("8 threads, its own stream")?)
}

fn print(report: &Report) {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(["case", "contender", "ns", "times ours"]);
    let mut last = "";
    for Figure { case, contender, ns, ratio } in &report.figures {
        let ratio = ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
        table.add_row([if case == last { "" } else { case }, contender, &format!("{ns:.1}"), &ratio]);
        last = case;
    }
    table.column_iter_mut().skip(2).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    println!("{table}");
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
    fn figures_are_divided_by_ours_on_the_same_memory() {
        let lines = "pair\tours, counted memory\t20\npair\tours\t25.0\npair\ttorch\t250\nmiss\ttorch\t3\n";
        let figures = compare(medians(lines).unwrap());
        let ratios: Vec<_> = figures.iter().map(|figure| figure.ratio).collect();
        assert_eq!(ratios, [Some(0.8), Some(1.0), Some(10.0), None]);
    }

    #[test]
    fn a_figure_is_the_median_of_its_rounds() {
        let lines = "pair\tours\t9\npair\ttorch\t7\npair\tours\t2\npair\tours\t3\n";
        let times: Vec<_> = medians(lines).unwrap().iter().map(|figure| figure.ns).collect();
        assert_eq!(times, [3.0, 7.0]);
    }

    #[test]
    fn what_is_no_figure_is_an_error_that_repeats_it() {
        for line in ["pair", "pair\tours", "pair\tours\tfast", "pair\tours\t1\t2"] {
            let error = medians(line).unwrap_err().to_string();
            assert!(error.contains(&format!("{line:?}")), "{error}");
        }
    }

    #[test]
    fn scaling_is_of_pairs_a_second() {
        let lines = "1 threads, its own stream\tours\t40\n8 threads, its own stream\tours\t5\n";
        assert_eq!(scaling(&medians(lines).unwrap()), Some(8.0));
        assert_eq!(scaling(&[]), None);
    }
}

//! Medians of the rounds that benchmark programs print.

use anyhow::{Context, Result, bail, ensure};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::json::rounded;

/// The median of one contender in one case.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Figure {
    pub(super) case: String,
    pub(super) contender: String,
    /// Time per operation.
    pub(super) ns: f64,
    /// Time divided by that of the case's baseline.
    pub(super) ratio: Option<f64>,
}

/// A figure and its upper limit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Bar {
    pub(super) what: String,
    pub(super) figure: Number,
    pub(super) most: Number,
    pub(super) holds: bool,
}

/// A number of a bar. Counts are whole in JSON.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize)]
#[serde(untagged)]
pub(super) enum Number {
    Count(u64),
    Measure(f64),
}

impl Bar {
    /// Returns the bar of a measured figure, if it was measured.
    pub(super) fn at_most(what: &str, figure: Option<f64>, most: f64) -> Option<Self> {
        figure.map(|figure| Self::new(what, Number::Measure(figure), Number::Measure(most)))
    }

    /// Returns the bar of a count, if it was counted.
    pub(super) fn count_at_most(what: &str, count: Option<u64>, most: u64) -> Option<Self> {
        count.map(|count| Self::new(what, Number::Count(count), Number::Count(most)))
    }

    fn new(what: &str, figure: Number, most: Number) -> Self {
        Self { what: what.to_owned(), figure, most, holds: figure <= most }
    }
}

/// Returns true if a benchmark ran on embedded devices, whose times say nothing about GPUs.
pub(super) fn is_embedded(machine: &str) -> bool {
    machine.starts_with("embedded device")
}

/// Returns `bars`, which are limits for GPUs, or none if the benchmark ran on embedded devices.
pub(super) fn for_gpus(machine: &str, bars: Vec<Bar>) -> Vec<Bar> {
    if is_embedded(machine) { Vec::new() } else { bars }
}

/// Prints the bars, and that they are only checked with `--check`, if it is not given.
pub(super) fn print_bars(bars: &[Bar], is_checked: bool) {
    if !bars.is_empty() {
        println!(
            "limits{}:",
            if is_checked { "" } else { "; with --check, one that does not hold is an error" }
        );
        bars.iter().for_each(|bar| println!("  {bar}"));
    }
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Count(count) => count.fmt(f),
            Self::Measure(measure) if f.precision().is_some() => measure.fmt(f),
            Self::Measure(measure) => ((measure * 1e3).round() / 1e3).fmt(f),
        }
    }
}

impl std::fmt::Display for Bar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { what, figure, most, holds } = self;
        let holds = if *holds { "holds" } else { "does not hold" };
        write!(f, "{what}: {figure:.2}, at most {most} ({holds})")
    }
}

/// Returns a table of figures: contenders by case, the time of each in `unit` of `ns_of_unit` ns, and its ratio to
/// `base`.
pub(super) fn table(figures: &[Figure], (unit, ns_of_unit): (&str, f64), base: &str) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["case", "contender", unit, base]);
    let mut last = "";
    for Figure { case, contender, ns, ratio } in figures {
        let ratio = ratio.map_or_else(String::new, |ratio| format!("{ratio:.3}"));
        let name = if case == last { "" } else { case };
        table.add_row([name, contender, &format!("{:.2}", ns / ns_of_unit), &ratio]);
        last = case;
    }
    table.column_iter_mut().skip(2).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

/// Returns a report as JSON. Its numbers have at most three decimals.
pub(super) fn json(report: &impl Serialize) -> Result<String> {
    rounded(report, 3)
}

/// Reads lines of case, contender and a number, separated by tabs.
pub(super) fn read(lines: &str) -> Result<Vec<(&str, &str, f64)>> {
    let line = |line| {
        let [case, contender, number] = *str::split(line, '\t').collect::<Vec<_>>() else {
            bail!("expected case, contender, ns: {line:?}");
        };
        let number = number.parse().with_context(|| format!("expected ns at the end of {line:?}"))?;
        Ok((case, contender, number))
    };
    lines.lines().map(line).collect()
}

/// Converts a number that a benchmark has counted.
pub(super) fn count(number: f64) -> Result<u64> {
    let count = number as u64;
    ensure!(count as f64 == number, "expected a count: {number}");
    Ok(count)
}

/// Reads lines of case, contender and ns. Returns the median of each contender in each case.
pub(super) fn medians(lines: &str) -> Result<Vec<Figure>> {
    let mut all: Vec<(&str, &str, Vec<f64>)> = Vec::new();
    for (case, contender, ns) in read(lines)? {
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

/// Adds ratios to the first contender of `base` that a case has, and groups the figures by case.
pub(super) fn compare(mut figures: Vec<Figure>, base: &[&str]) -> Vec<Figure> {
    let all = figures.clone();
    figures.sort_by_key(|figure| all.iter().position(|other| other.case == figure.case));
    for figure in &mut figures {
        figure.ratio = base.iter().find_map(|who| find(&all, &figure.case, who)).map(|base| figure.ns / base);
    }
    figures
}

pub(super) fn find(figures: &[Figure], case: &str, contender: &str) -> Option<f64> {
    figures.iter().find(|figure| figure.case == case && figure.contender == contender).map(|figure| figure.ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_divided_by_the_first_of_the_base_that_there_is() {
        let lines = "pair\tours, counted memory\t20\npair\tours\t25.0\npair\ttorch\t250\nmiss\ttorch\t3\n";
        let figures = compare(medians(lines).unwrap(), &["ours", "ours, counted memory"]);
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
    fn a_bar_says_whether_it_holds() {
        let words = |figure| Bar::at_most("look-up, ns", figure, 60.0).map(|bar| bar.to_string());
        assert_eq!(words(Some(60.0)).unwrap(), "look-up, ns: 60.00, at most 60 (holds)");
        assert_eq!(words(Some(60.1)).unwrap(), "look-up, ns: 60.10, at most 60 (does not hold)");
        assert_eq!(words(None), None);
        let windows = Bar::count_at_most("windows", Some(9), 8).unwrap();
        assert_eq!(windows.to_string(), "windows: 9, at most 8 (does not hold)");
        assert_eq!(json(&windows).unwrap(), r#"{"what":"windows","figure":9,"most":8,"holds":false}"#);
    }

    #[test]
    fn a_count_is_whole() {
        assert_eq!(count(10_737_418_240.0).unwrap(), 10_737_418_240);
        for number in [0.5, -1.0, f64::NAN, f64::INFINITY] {
            assert!(count(number).is_err(), "{number}");
        }
    }

    #[test]
    fn limits_of_times_are_for_gpus() {
        let bars = || vec![Bar::at_most("allocation, ns", Some(120.0), 100.0).unwrap()];
        assert_eq!(for_gpus("2 x H200, NCCL 2.28.9", bars()), bars());
        assert_eq!(for_gpus("embedded device, 2 ranks: its times are not a GPU's (no GPU)", bars()), []);
    }

    #[test]
    fn numbers_in_json_have_at_most_three_decimals() {
        let figures = compare(medians("pair\tours\t12.345678901234\npair\ttorch\t25\n").unwrap(), &["ours"]);
        assert_eq!(
            json(&figures).unwrap(),
            r#"[{"case":"pair","contender":"ours","ns":12.346,"ratio":1.0},{"case":"pair","contender":"torch","ns":25.0,"ratio":2.025}]"#
        );
    }

    #[test]
    fn what_is_no_figure_is_an_error_that_repeats_it() {
        for line in ["pair", "pair\tours", "pair\tours\tfast", "pair\tours\t1\t2"] {
            let error = medians(line).unwrap_err().to_string();
            assert!(error.contains(&format!("{line:?}")), "{error}");
        }
    }
}

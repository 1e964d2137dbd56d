//! Durations of repeated operations.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// Percentiles of durations, in ms.
#[derive(Debug, Serialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The maximum.
    pub most: f64,
}

impl Percentiles {
    /// The percentiles of `times`, in ms.
    ///
    /// # Panics
    /// `times` is empty.
    pub fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times[((times.len() as f64 * part).ceil() as usize).clamp(1, times.len()) - 1];
        Self { p50: at(0.5), p99: at(0.99), most: at(1.0) }
    }
}

/// Makes a table with a row for each of `rows`: name, number of repetitions, percentiles. `what` is the heading of the names.
pub fn table<'a>(what: &str, rows: impl IntoIterator<Item = (&'a str, usize, &'a Percentiles)>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header([what, "times", "p50 ms", "p99 ms", "most ms"]);
    for (name, times, Percentiles { p50, p99, most }) in rows {
        let ms = |time: &f64| format!("{time:.2}");
        table.add_row([name.to_owned(), times.to_string(), ms(p50), ms(p99), ms(most)]);
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

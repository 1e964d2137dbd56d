//! The table that `cargo xtask abi` prints.

use std::collections::BTreeMap;

use comfy_table::{Cell, ContentArrangement, Table, presets};
use nccl_sys::{FUNCTIONS, Version};

use super::Finding;

/// Prints the findings: a row a release, then what each lacks.
pub(super) fn print(findings: &[Finding]) {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    if table.width().is_none() {
        table.set_width(120);
    }
    table.set_header(["NCCL", "reports", "MB", "functions", "features", "header"]);
    for found in findings {
        let there = FUNCTIONS.iter().filter(|function| found.probe.has(function)).count();
        table.add_row([
            Cell::new(found.release),
            Cell::new(found.probe.version()),
            Cell::new(found.probe.bytes / 1_000_000),
            Cell::new(format!("{there} of {}", FUNCTIONS.len())),
            Cell::new(found.probe.features.join(" ")),
            Cell::new(format!("{} checks", found.header.count)),
        ]);
    }
    println!("{table}");
    for found in findings {
        println!("\nNCCL {}: {}", found.release, found.probe.path.display());
        for (release, names) in absent(found) {
            println!("  not before {release}: {}", names.join(" "));
        }
        for fault in &found.probe.known_bad {
            println!("  {fault}");
        }
    }
    println!();
}

/// The functions that are not there, by the release that first has them.
fn absent(found: &Finding) -> BTreeMap<Version, Vec<&'static str>> {
    let mut releases: BTreeMap<Version, Vec<&str>> = BTreeMap::new();
    for function in FUNCTIONS.iter().filter(|function| !found.probe.has(function)) {
        releases.entry(function.since).or_default().push(function.name);
    }
    releases
}

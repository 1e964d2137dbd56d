//! The table that `cargo xtask abi` prints.

use comfy_table::{Cell, ContentArrangement, Table, presets};
use nccl_sys::{FUNCTIONS, Feature};

use super::Finding;

/// Prints the findings: a row per release, then its known faults, and for a single release its features and missing
/// functions.
pub(super) fn print(findings: &[Finding]) {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    if table.width().is_none() {
        table.set_width(120);
    }
    table.set_header(["NCCL", "reports", "MB", "functions", "features", "header"]);
    for found in findings {
        table.add_row([
            Cell::new(found.release),
            Cell::new(&found.probe.version),
            Cell::new(found.probe.bytes / 1_000_000),
            Cell::new(format!("{} of {}", found.probe.functions.len(), FUNCTIONS.len())),
            Cell::new(format!("{} of {}", found.probe.features.len(), Feature::all().iter_names().count())),
            Cell::new(format!("{} checks", found.header.count)),
        ]);
    }
    println!("{table}");
    for found in findings {
        println!("NCCL {}: {}", found.release, found.probe.path.display());
        // For several releases these lists would repeat each other.
        if findings.len() == 1 {
            println!("  features: {}", found.probe.features.join(" "));
            for absent in &found.probe.absent {
                println!("  not before {}: {}", absent.since, absent.functions.join(" "));
            }
        }
        for refused in found.probe.refused.iter().filter(|refused| refused.known_bad) {
            println!("  no {}: {}", refused.feature, refused.reason);
        }
    }
    println!();
}

//! The table that `cargo xtask abi` prints.

use comfy_table::{Cell, ContentArrangement, Table, presets};
use nccl_sys::FUNCTIONS;

use super::Finding;

/// Prints the findings: a row a release, then what each is known to do wrong, and what a single one lacks.
pub(super) fn print(findings: &[Finding]) {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
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
            Cell::new(found.probe.features.join(" ")),
            Cell::new(format!("{} checks", found.header.count)),
        ]);
    }
    println!("{table}");
    for found in findings {
        println!("NCCL {}: {}", found.release, found.probe.path.display());
        // Of several releases the newer's lists are in the older's.
        for absent in found.probe.absent.iter().filter(|_| findings.len() == 1) {
            println!("  not before {}: {}", absent.since, absent.functions.join(" "));
        }
        for refused in found.probe.refused.iter().filter(|refused| refused.known_bad) {
            println!("  {}", refused.reason);
        }
    }
    println!();
}

//! Real releases of `cuda.h`: each must agree with the generated list of types, fields and constants, and must
//! declare every function of the table from its release on, as the newest header does.

mod facts;
mod header;

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};
use cuda_driver_sys::{FUNCTIONS, Version};

use xtask::headers::{self, Part};
use xtask::pins::{CUDA_HEADERS, Pin};

/// The releases that are compared by default.
pub(super) const DEFAULT: &str = "11.7,11.8,12.1,12.4,12.9,13.0,13.5";

/// A type: its name, its sizes by the release that they hold from, its fields.
struct Kind(&'static str, &'static [(u32, u32, u64)], &'static [Field]);

/// A field: its path, its offsets and sizes by the release that they hold from.
struct Field(&'static str, &'static [(u32, u32, u64, u64)]);

/// A constant: its name, its values by the release that they hold from.
struct Constant(&'static str, &'static [(u32, u32, i64)]);

/// Compares `releases`, or all; prints a table and returns the differences.
pub(super) fn run(releases: &[String]) -> Result<Vec<String>> {
    let pins = pins(releases)?;
    if pins.is_empty() {
        return Ok(Vec::new());
    }
    let newest = CUDA_HEADERS.last().context("a header is pinned")?;
    let newest = header::Header::read(&path(newest)?)?;
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["cuda.h", "functions", "types", "fields", "constants", "checks"]);
    let mut faults = Vec::new();
    for pin in pins {
        let release = release(pin)?;
        let found =
            header::check(&path(pin)?, release, &newest).with_context(|| format!("cuda.h {release}"))?;
        table.add_row([
            release.to_string(),
            format!("{} of {}", found.functions, FUNCTIONS.len()),
            found.types.to_string(),
            found.fields.to_string(),
            found.constants.to_string(),
            found.checks.to_string(),
        ]);
        faults.extend(found.faults.into_iter().map(|fault| format!("cuda.h {release}: {fault}")));
    }
    println!("{table}");
    Ok(faults)
}

fn path(pin: &Pin) -> Result<std::path::PathBuf> {
    let [folder] = headers::fetch(pin, [Part::Headers])?;
    headers::find(&folder, "include/cuda.h")
}

fn release(pin: &Pin) -> Result<Version> {
    let [major, minor, _] = headers::release(pin.version)?;
    Ok(Version::new(major, minor, 0))
}

/// Returns the pins of the requested releases' headers.
fn pins(releases: &[String]) -> Result<Vec<&'static Pin>> {
    let mut pins = Vec::new();
    for asked in releases.iter().filter(|asked| *asked != "none") {
        let before = pins.len();
        for pin in CUDA_HEADERS {
            if asked == "all" || release(pin)?.to_string() == *asked {
                pins.push(pin);
            }
        }
        if pins.len() == before {
            let known: Vec<_> =
                CUDA_HEADERS.iter().map(|pin| Ok(release(pin)?.to_string())).collect::<Result<_>>()?;
            bail!("no cuda.h of {asked:?} is pinned; these are: {}", known.join(", "));
        }
    }
    Ok(pins)
}

//! NCCL: each release's library and its headers.
//!
//! The library is loaded in a process of its own (two in one process are an error) and queried for every function of
//! the table; its other symbols must be known. Programs compiled against the headers, as C and as C++, check sizes,
//! offsets, initial values, constants and signatures.

mod header;
mod report;
mod symbols;

use std::path::Path;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nccl_sys::{FUNCTIONS, Function, Version};

use lockstep_cli::probe;
use xtask::headers::{self, Part};
use xtask::pins::{NCCL, Pin};

/// The releases that are compared by default.
pub(super) const DEFAULT: [&str; 5] = headers::KEPT;

/// Wheels that are downloaded at a time, while another release is compared.
const FETCHERS: usize = 2;

/// Time limit for loading a library: hundreds of megabytes, perhaps from a slow disk.
const LIMIT: Duration = Duration::from_secs(120);

/// Findings for one release.
struct Finding {
    release: Version,
    probe: probe::Probe,
    header: header::Checked,
    /// Contradictions to the table.
    faults: Vec<String>,
}

/// Compares the releases and prints the findings. Returns the contradictions to the table.
pub(super) fn run(releases: &[String]) -> Result<Vec<String>> {
    let pins = pins(releases)?;
    if pins.is_empty() {
        return Ok(Vec::new());
    }
    let newest = NCCL.last().context("a release is pinned")?;
    // One download serves both, if the library is wanted as well.
    let newest = match pins.last() {
        Some(pin) if pin.version == newest.version => {
            headers::fetch(newest, [Part::Headers, Part::Library])?[0].clone()
        }
        _ => headers::fetch(newest, [Part::Headers]).map(|[include]| include)?,
    };
    // If all releases are compared, their libraries are not kept, to save disk space.
    let keep = pins.len() < NCCL.len();
    let findings = compare(&pins, &header::prototypes(&newest)?, keep)?;
    report::print(&findings);
    let of = |found: &Finding| -> Vec<String> {
        found.faults.iter().map(|fault| format!("NCCL {}: {fault}", found.release)).collect()
    };
    Ok(findings.iter().flat_map(of).collect())
}

/// Returns the requested releases' pins.
fn pins(releases: &[String]) -> Result<Vec<&'static Pin>> {
    if releases.iter().any(|release| release == "all") {
        return Ok(NCCL.iter().collect());
    }
    releases
        .iter()
        .filter(|release| *release != "none")
        .map(|release| {
            NCCL.iter().find(|pin| pin.version == release.as_str()).with_context(|| {
                let known: Vec<_> = NCCL.iter().map(|pin| pin.version).collect();
                format!("no release {release:?} is pinned; these are: {}", known.join(", "))
            })
        })
        .collect()
}

/// Examines the releases while the next one is downloaded. Without `keep`, downloads are deleted again.
fn compare(pins: &[&'static Pin], prototypes: &header::Prototypes, keep: bool) -> Result<Vec<Finding>> {
    let queue = Mutex::new(pins.iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next().copied();
    let mut findings = Vec::new();
    thread::scope(|scope| {
        // Capacity 0: a downloaded library waits until the one before it has been examined.
        let (send, receive) = mpsc::sync_channel(0);
        for _ in 0..FETCHERS {
            let send = send.clone();
            scope.spawn(move || {
                while let Some(pin) = next() {
                    let was_there = headers::is_cached(pin, Part::Library).unwrap_or(true);
                    let parts = headers::fetch(pin, [Part::Headers, Part::Library]);
                    if send.send((pin, keep || was_there, parts)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(send);
        for (pin, stays, parts) in receive {
            let finding = parts.and_then(|[include, library]| examine(pin, &include, &library, prototypes));
            findings.push(finding.with_context(|| format!("NCCL {}", pin.version))?);
            if !stays {
                headers::delete_library(pin)?;
            }
        }
        anyhow::Ok(())
    })?;
    findings.sort_by_key(|finding| finding.release);
    Ok(findings)
}

fn examine(pin: &Pin, include: &Path, library: &Path, prototypes: &header::Prototypes) -> Result<Finding> {
    let [major, minor, patch] = headers::release(pin.version)?;
    let release = Version::new(major, minor, patch);
    let file = headers::find(library, "libnccl.so.2")?;
    let probe = probe::run(probe::Kind::Nccl, Some(&file), LIMIT)?;
    let header = header::check(include, release, prototypes)?;
    let mut faults = differences(&probe, release);
    faults.extend(symbols::faults(&headers::exports(&file)?));
    faults.extend(header.faults.iter().cloned());
    Ok(Finding { release, probe, header, faults })
}

/// Returns the differences between the table and a library of NCCL `release`.
fn differences(probe: &probe::Probe, release: Version) -> Vec<String> {
    let mut faults = Vec::new();
    if probe.version != release.to_string() {
        faults.push(format!("it says that it is {}", probe.version));
    }
    for Function { name, since, .. } in FUNCTIONS {
        match (probe.functions.contains(*name), *since <= release) {
            (true, false) => faults.push(format!("it exports {name}, which the table dates {since}")),
            (false, true) => faults.push(format!("it lacks {name}, which the table dates {since}")),
            _ => {}
        }
    }
    faults
}

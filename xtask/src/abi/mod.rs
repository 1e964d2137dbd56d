//! `cargo xtask abi`: compares the raw crates with real releases, without a GPU.
//!
//! Of the CUDA driver there are headers only: [`cuda`]. Of NCCL, each release's library is loaded in a process of
//! its own (two in one process are an error) and asked for every function of the table; a C program compiled against
//! its header checks sizes, offsets and constants.

mod cuda;
mod header;
pub(crate) mod probe;
mod program;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nccl_sys::Version;

use crate::headers::{self, NCCL, Part, Pin};

/// The releases that are compared unless others are asked for.
const DEFAULT: &str = "2.18.3,2.21.5,2.32.3";

/// How long a library may take to load: hundreds of megabytes, perhaps from a slow disk.
const LIMIT: Duration = Duration::from_secs(120);

/// Options of `cargo xtask abi`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The releases of NCCL, separated by commas, or `all`, or `none`; each is a download of 80 to 350 MB, kept
    /// under `target` (of `all` only these three and the headers are)
    #[arg(long, value_delimiter = ',', default_value = DEFAULT)]
    releases: Vec<String>,
    /// The releases of `cuda.h`, separated by commas, or `all`, or `none`; each is a small download
    #[arg(long, value_delimiter = ',', default_value = cuda::DEFAULT)]
    cuda: Vec<String>,
    /// Load one library of this kind and print what it has, for the process that compares several
    #[arg(long, hide = true)]
    probe: Option<probe::Kind>,
    /// The library's file; the one that `Api::load` takes if this is left out
    #[arg(long, hide = true, requires = "probe")]
    library: Option<PathBuf>,
}

/// What was found of one release.
struct Finding {
    release: Version,
    probe: probe::Probe,
    header: header::Checked,
    /// What contradicts the table.
    faults: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    if let Some(kind) = options.probe {
        return probe::print(kind, options.library.as_deref());
    }
    let mut faults = cuda::run(&options.cuda)?;
    let all = options.releases.iter().any(|release| release == "all");
    let newest = NCCL.last().context("a release is pinned")?;
    let [newest] = headers::fetch(newest, [Part::Headers])?;
    let prototypes = header::prototypes(&headers::find(&newest, "include/nccl.h")?)?;
    let mut findings = Vec::new();
    for pin in pins(&options.releases)? {
        let keep = !all || DEFAULT.split(',').any(|release| release == pin.version);
        findings.push(examine(pin, &prototypes, keep).with_context(|| format!("NCCL {}", pin.version))?);
    }
    if !findings.is_empty() {
        report::print(&findings);
    }
    for Finding { release, faults: found, .. } in &findings {
        faults.extend(found.iter().map(|fault| format!("NCCL {release}: {fault}")));
    }
    if !faults.is_empty() {
        bail!("the table and the real releases differ:\n{}", faults.join("\n"));
    }
    println!(
        "Every function is there from its release on and not before; sizes, offsets and constants agree."
    );
    Ok(())
}

/// The pinned releases that are asked for.
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

fn examine(pin: &Pin, prototypes: &header::Prototypes, keep: bool) -> Result<Finding> {
    let [major, minor, patch] = headers::release(pin.version)?;
    let release = Version::new(major, minor, patch);
    let [include, library] = headers::fetch(pin, [Part::Headers, Part::Library])?;
    let file = headers::find(&library, "libnccl.so.2")?;
    let probe = probe::run(probe::Kind::Nccl, Some(&file), LIMIT)?;
    if !keep {
        std::fs::remove_dir_all(&library)?;
    }
    let header = header::check(&headers::find(&include, "include/nccl.h")?, release, prototypes)?;
    let mut faults = probe.faults(release);
    faults.extend(header.faults.iter().cloned());
    Ok(Finding { release, probe, header, faults })
}

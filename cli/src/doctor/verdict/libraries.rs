//! Findings about the installed libraries.

use super::{Findings, NO_DRIVER, ON_DRIVER, ON_GPUS, ON_NCCL, Weight};
use crate::doctor::facts::{Facts, Libraries, Library};
use crate::doctor::libraries::instead;
use crate::exit::brief;
use crate::probe::Probe;

impl Findings {
    pub(super) fn driver(&mut self, facts: &Facts) {
        if let Some(error) = facts.cuda.taken.error() {
            let remedy = if named(facts, cuda_driver_sys::VARIABLE) {
                "correct CUDA_DRIVER_SYS_LIBRARY, or unset it"
            } else if !facts.cuda.found.is_empty() {
                "none of the libraries that were found works (see the notes on them): leave out those that are no \
                 driver's, or install the driver again"
            } else if facts.host.kernel_module.is_none() {
                "install NVIDIA's driver, if this host has a GPU"
            } else if facts.host.container.is_some() {
                "start the container with the GPUs' driver mapped in (`--gpus all`)"
            } else {
                "the kernel has the driver's module: install libcuda.so.1 of the same release"
            };
            let cause = cause(NO_DRIVER, error, &facts.cuda);
            return self.add(Weight::Fault, NO_DRIVER, &ON_DRIVER, cause, Some(remedy.into()));
        }
        if let Some(error) = facts.devices.error() {
            let remedy = "`nvidia-smi` must list the GPUs; in a container they must be mapped in (`--gpus all`), and \
                          CUDA_VISIBLE_DEVICES must name some";
            self.add(Weight::Fault, "no GPU", &ON_GPUS, brief(error), Some(remedy.into()));
        }
        let Some(driver) = facts.cuda.taken() else { return };
        for refused in &driver.refused {
            let crates: &[&str] = match refused.feature.as_str() {
                "VIRTUAL_MEMORY" => &["caching-alloc", "symm-mem"],
                "FILE_DESCRIPTOR_HANDLES" => &["symm-mem"],
                "CAPTURE" | "PEER_ACCESS" | "STREAM_ORDERED_ALLOCATION" | "STREAM_MEMORY_OPERATIONS" => {
                    &["cuda-driver"]
                }
                _ => continue,
            };
            let cause = without(&refused.reason, &refused.feature);
            let subject = format!("CUDA driver {}: no {}", driver.version, refused.feature);
            self.add(Weight::Limit, subject, crates, cause, Some("install a newer driver".into()));
        }
        if numbers(&driver.version).first().is_some_and(|&major| major < 12) {
            self.add(
                Weight::Limit,
                format!("CUDA driver {}", driver.version),
                &["symm-mem"],
                "NCCL makes windows only with a driver of 12.0 or newer: symmetric pools fall back to copies",
                Some("install a newer driver".into()),
            );
        }
    }

    pub(super) fn nccl(&mut self, facts: &Facts) {
        let nccl = &facts.nccl;
        if let Some(error) = nccl.taken.error() {
            let remedy = match nccl.usable().max_by_key(|probe| numbers(&probe.version)) {
                Some(probe) => format!("set {}={}", nccl_sys::VARIABLE, probe.path.display()),
                None if named(facts, nccl_sys::VARIABLE) => {
                    format!("correct {}, or unset it", nccl_sys::VARIABLE)
                }
                None => format!(
                    "install NCCL (`pip install nvidia-nccl-cu12`, or the system's package), and set {} to its \
                     libnccl.so.2 if the loader does not find it",
                    nccl_sys::VARIABLE
                ),
            };
            let subject = "no NCCL";
            return self.add(Weight::Fault, subject, &ON_NCCL, cause(subject, error, nccl), Some(remedy));
        }
        let Some(taken) = nccl.taken() else { return };
        for refused in &taken.refused {
            let crates: &[&str] = match refused.feature.as_str() {
                "WINDOWS" => &["symm-mem"],
                "REGISTER" | "SPLIT" | "CONFIG" => &["process-group"],
                _ => continue,
            };
            let subject = format!("NCCL {}: no {}", taken.version, refused.feature);
            let cause = without(&refused.reason, &refused.feature);
            self.add(Weight::Limit, subject, crates, cause, Some(better(nccl, &refused.feature)));
        }
    }

    /// Findings about several copies, and about broken ones.
    pub(super) fn copies(&mut self, what: &str, variable: &str, libraries: &Libraries) {
        // The file that the variable names is taken, or is the cause of the finding that none is.
        let is_named = |library: &Library| library.sources.iter().any(|source| source == variable);
        for library in libraries.found.iter().filter(|library| !library.taken && !is_named(library)) {
            if let Some(error) = library.probe.error() {
                let subject = format!("{what} at {}", library.path.display());
                let via = library.sources.join(", ");
                let remedy =
                    format!("put a working one in its place, or leave it out of what leads to it: {via}");
                self.add(
                    Weight::Note,
                    subject,
                    &[],
                    format!("it cannot be used: {}", brief(error)),
                    Some(remedy),
                );
            }
        }
        let mut releases: Vec<_> = libraries.usable().map(|probe| probe.version.as_str()).collect();
        releases.sort_by_key(|release| numbers(release));
        releases.dedup();
        if releases.len() > 1 {
            self.add(
                Weight::Note,
                format!("{} releases of {what}", releases.len()),
                &[],
                format!(
                    "{} are on this host; a program takes the copy that its process has loaded already \
                     (PyTorch loads an NCCL of its own)",
                    releases.join(", ")
                ),
                Some(format!("set {variable} on every rank where it matters")),
            );
        }
    }
}

/// Shortens the error of a library that cannot be loaded. Leaves out the advice of the loading crate, which the remedy
/// has, and files that have a finding of their own.
fn cause(subject: &str, error: &str, libraries: &Libraries) -> String {
    let (first, tried) = error.split_once('\n').unwrap_or((error, ""));
    let first =
        if first.starts_with(&format!("{subject} found; ")) { "the loader finds none" } else { first };
    let found: Vec<_> = libraries.found.iter().map(|library| library.path.display().to_string()).collect();
    let others = tried.lines().filter(|line| !found.iter().any(|path| line.contains(path)));
    brief(&[first].into_iter().chain(others).collect::<Vec<_>>().join("\n"))
}

/// True if the variable that names a library's file is set.
fn named(facts: &Facts, variable: &str) -> bool {
    facts.variables.iter().any(|set| set.name == variable && !set.value.is_empty())
}

/// Returns the remedy for a missing feature: the newest library on this host that has it, or else an installation.
fn better(nccl: &Libraries, feature: &str) -> String {
    let has = |probe: &&Probe| probe.features.iter().any(|name| name == feature);
    match nccl.usable().filter(has).max_by_key(|probe| numbers(&probe.version)) {
        Some(probe) => {
            format!("set {}={} (NCCL {})", nccl_sys::VARIABLE, probe.path.display(), probe.version)
        }
        None => "install a newer NCCL (`pip install -U nvidia-nccl-cu12`)".into(),
    }
}

/// Returns a reason followed by its consequence.
fn without(reason: &str, feature: &str) -> String {
    match instead(feature) {
        Some(consequence) => format!("{reason}. So {consequence}"),
        None => reason.to_owned(),
    }
}

/// A release's numbers, to compare releases.
fn numbers(release: &str) -> Vec<u32> {
    release.split('.').filter_map(|number| number.parse().ok()).collect()
}

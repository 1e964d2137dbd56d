//! Findings about the installed libraries.

use super::{Findings, ON_DRIVER, ON_GPUS, ON_NCCL, Weight};
use crate::doctor::facts::{Facts, Libraries};
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
                "install NVIDIA's driver; without a GPU, the demo and all tests run on the embedded device"
            } else if facts.host.container.is_some() {
                "start the container with the GPUs' driver mapped in (`--gpus all`)"
            } else {
                "the kernel has the driver's module: install libcuda.so.1 of the same release"
            };
            return self.add(Weight::Fault, "no CUDA driver", &ON_DRIVER, brief(error), Some(remedy.into()));
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
            return self.add(Weight::Fault, "no NCCL", &ON_NCCL, brief(error), Some(remedy));
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
        for library in libraries.found.iter().filter(|library| !library.taken) {
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

//! From facts to findings and verdicts, without I/O, so that tests can judge any host.

mod devices;
mod host;
mod libraries;
#[cfg(test)]
pub(in crate::doctor) mod tests;

use std::collections::BTreeSet;

use serde::Serialize;

use super::facts::{Facts, Tried};

/// The crates of the workspace, lowest first, by the names of their folders.
const CRATES: [&str; 10] = [
    "dynload",
    "cuda-driver-sys",
    "nccl-sys",
    "gpu-sim",
    "bootstrap",
    "cuda-driver",
    "caching-alloc",
    "process-group",
    "symm-mem",
    "cli",
];

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Weight {
    /// Information only.
    Note,
    /// A feature is missing or slower.
    Limit,
    /// A crate does not work on this host.
    Fault,
}

/// A fact about this host that a user should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) weight: Weight,
    /// The subject.
    pub(super) subject: String,
    /// The fact, and its effect.
    pub(super) cause: String,
    /// The remedy.
    pub(super) remedy: Option<String>,
    /// The crates that lose a feature by it, or do not work if it is a fault.
    pub(super) crates: Vec<&'static str>,
}

/// Usability of a crate on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(into = "&'static str")]
pub(super) enum Outcome {
    Works,
    Limited,
    /// Only things are missing that the embedded device replaces: GPUs, the driver, NCCL.
    EmbeddedOnly,
    Unavailable,
}

impl From<Outcome> for &'static str {
    /// The words of both reports, for a person and as JSON.
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Works => "works",
            Outcome::Limited => "works with limits",
            Outcome::EmbeddedOnly => "works on the embedded device only",
            Outcome::Unavailable => "does not work here",
        }
    }
}

/// A crate, its usability here, and the reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Verdict {
    #[serde(rename = "crate")]
    pub(super) name: &'static str,
    pub(super) outcome: Outcome,
    /// Subjects of the findings that decided it, worst first.
    pub(super) why: Vec<String>,
}

/// Crates that call the driver.
const ON_DRIVER: [&str; 5] = ["cuda-driver-sys", "cuda-driver", "caching-alloc", "process-group", "symm-mem"];
/// Crates that need a GPU.
const ON_GPUS: [&str; 4] = ["cuda-driver", "caching-alloc", "process-group", "symm-mem"];
/// Crates that call NCCL.
const ON_NCCL: [&str; 3] = ["nccl-sys", "process-group", "symm-mem"];
/// Crates that create groups of ranks.
const ON_GROUPS: [&str; 2] = ["process-group", "symm-mem"];

/// The subject of the finding on a host without a driver.
pub(super) const NO_DRIVER: &str = "no CUDA driver";

/// All findings, the worst last, and a verdict for every crate.
pub(super) fn judge(facts: &Facts) -> (Vec<Finding>, Vec<Verdict>) {
    let mut findings = Findings(Vec::new());
    findings.driver(facts);
    findings.nccl(facts);
    findings.copies("CUDA driver", cuda_driver_sys::VARIABLE, &facts.cuda);
    findings.copies("NCCL", nccl_sys::VARIABLE, &facts.nccl);
    if let Tried::Done(devices) = &facts.devices {
        findings.devices(devices, &facts.host);
    }
    let before_host = findings.0.len();
    findings.host(&facts.host);
    // The embedded device replaces GPUs and libraries, but not what the operating system lacks.
    let host_faults = findings.0[before_host..].iter().filter(|finding| finding.weight == Weight::Fault);
    let lost: BTreeSet<_> = host_faults.flat_map(|finding| finding.crates.iter().copied()).collect();
    findings.variables(facts);
    let mut findings = findings.0;
    findings.sort_by_key(|finding| finding.weight);
    let has_embedded_device = facts.host.embedded_device.done().is_some();
    let verdict = |name| verdict(name, &findings, has_embedded_device && !lost.contains(name));
    let verdicts = CRATES.into_iter().map(verdict).collect();
    (findings, verdicts)
}

/// `is_replaced` says that the embedded device works, and replaces whatever is at fault.
fn verdict(name: &'static str, findings: &[Finding], is_replaced: bool) -> Verdict {
    let ours = findings.iter().rev().filter(|finding| finding.crates.contains(&name));
    let weighty: Vec<_> = ours.filter(|finding| finding.weight > Weight::Note).collect();
    let outcome = match weighty.first().map(|finding| finding.weight) {
        None | Some(Weight::Note) => Outcome::Works,
        Some(Weight::Limit) => Outcome::Limited,
        Some(Weight::Fault) if is_replaced => Outcome::EmbeddedOnly,
        Some(Weight::Fault) => Outcome::Unavailable,
    };
    let mut why = Vec::new();
    for finding in weighty {
        if !why.contains(&finding.subject) {
            why.push(finding.subject.clone());
        }
    }
    Verdict { name, outcome, why }
}

/// The list of findings under construction.
struct Findings(Vec<Finding>);

impl Findings {
    fn add(
        &mut self,
        weight: Weight,
        subject: impl Into<String>,
        crates: &[&'static str],
        cause: impl Into<String>,
        remedy: impl Into<Option<String>>,
    ) {
        let (subject, cause, remedy) = (subject.into(), cause.into(), remedy.into());
        self.0.push(Finding { weight, subject, cause, remedy, crates: crates.to_vec() });
    }
}

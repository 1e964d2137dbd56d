//! From facts to findings and verdicts, without I/O, so that tests can judge any host.

mod devices;
mod host;
mod libraries;
#[cfg(test)]
pub(in crate::doctor) mod tests;

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
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    Works,
    Limited,
    Unavailable,
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
    findings.host(&facts.host);
    findings.variables(facts);
    let mut findings = findings.0;
    findings.sort_by_key(|finding| finding.weight);
    let verdicts = CRATES.iter().map(|name| verdict(name, &findings)).collect();
    (findings, verdicts)
}

fn verdict(name: &'static str, findings: &[Finding]) -> Verdict {
    let ours = findings.iter().rev().filter(|finding| finding.crates.contains(&name));
    let weighty: Vec<_> = ours.filter(|finding| finding.weight > Weight::Note).collect();
    let outcome = match weighty.first().map(|finding| finding.weight) {
        None | Some(Weight::Note) => Outcome::Works,
        Some(Weight::Limit) => Outcome::Limited,
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

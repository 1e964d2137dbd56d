//! The facts as plain data: gathered by the modules beside this one, judged by [`super::verdict`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::probe::Probe;

/// All facts about the host.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Facts {
    pub(super) cuda: Libraries,
    pub(super) nccl: Libraries,
    pub(super) devices: Tried<Devices>,
    pub(super) host: Host,
    pub(super) variables: Vec<Variable>,
}

/// Result of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Tried<T> {
    /// It failed, for this reason.
    Failed {
        error: String,
    },
    Done(T),
}

impl<T> Tried<T> {
    pub(super) fn done(&self) -> Option<&T> {
        match self {
            Self::Done(value) => Some(value),
            Self::Failed { .. } => None,
        }
    }

    pub(super) fn error(&self) -> Option<&str> {
        match self {
            Self::Failed { error } => Some(error),
            Self::Done(_) => None,
        }
    }
}

impl<T> From<anyhow::Result<T>> for Tried<T> {
    fn from(result: anyhow::Result<T>) -> Self {
        match result {
            Ok(value) => Self::Done(value),
            Err(error) => Self::Failed { error: crate::exit::explain(&error) },
        }
    }
}

/// Success of an operation that returns no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Works {
    works: True,
}

/// Always `true` in JSON, so that a [`Tried`] is unambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "bool", into = "bool")]
struct True;

impl TryFrom<bool> for True {
    type Error = &'static str;

    fn try_from(value: bool) -> Result<Self, Self::Error> {
        if value { Ok(Self) } else { Err("expected true") }
    }
}

impl From<True> for bool {
    fn from(_: True) -> Self {
        true
    }
}

pub(super) const WORKS: Works = Works { works: True };

/// Every copy of one library.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Libraries {
    /// The copy that a program of these crates loads if no copy is loaded already.
    pub(super) taken: Tried<Taken>,
    pub(super) found: Vec<Library>,
}

/// The library that `Api::load` selects.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Taken {
    pub(super) path: PathBuf,
    pub(super) version: String,
    /// The search step that found it.
    pub(super) why: String,
}

impl Libraries {
    /// The probe of the selected library.
    pub(super) fn taken(&self) -> Option<&Probe> {
        self.found.iter().find(|library| library.taken)?.probe.done()
    }

    /// The probes of libraries that work.
    pub(super) fn usable(&self) -> impl Iterator<Item = &Probe> {
        self.found.iter().filter_map(|library| library.probe.done())
    }
}

/// One copy of a library.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Library {
    /// The file, links resolved.
    pub(super) path: PathBuf,
    /// The search steps that find it.
    pub(super) sources: Vec<String>,
    pub(super) taken: bool,
    /// Its functions and features, or the reason why it cannot be used.
    pub(super) probe: Tried<Probe>,
}

/// Facts from the driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Devices {
    /// `lazy` or `eager`; absent if the driver does not report it.
    pub(super) module_loading: Option<String>,
    pub(super) gpus: Vec<Gpu>,
    /// Every ordered pair of different devices.
    pub(super) pairs: Vec<Pair>,
    /// Result of querying NVML, which reports NVLinks and MIG.
    pub(super) nvml: Tried<Works>,
}

/// One device of the process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Gpu {
    pub(super) ordinal: u32,
    pub(super) name: Tried<String>,
    pub(super) uuid: Option<String>,
    pub(super) pci: Option<String>,
    pub(super) compute_capability: Tried<String>,
    /// Bytes.
    pub(super) memory_total: Tried<u64>,
    /// Bytes; absent if no context could be created.
    pub(super) memory_free: Option<u64>,
    pub(super) compute_mode: Tried<String>,
    /// True if it is partitioned into MIG instances; absent if NVML does not report it.
    pub(super) mig: Option<bool>,
    /// Active NVLinks; absent if NVML does not report them.
    pub(super) nvlinks: Option<u32>,
    /// Result of creating its primary context.
    pub(super) context: Tried<Works>,
    pub(super) virtual_memory: Tried<bool>,
    pub(super) granularity: Option<Granularity>,
    /// Result of creating, exporting, importing, mapping and releasing memory.
    pub(super) file_descriptor_export: Tried<Works>,
    pub(super) fabric_export: Tried<Works>,
    /// The device's own answer; no multicast object is created.
    pub(super) multicast: Tried<bool>,
}

/// Granularities of physical memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Granularity {
    pub(super) minimum: u64,
    pub(super) recommended: u64,
}

/// Access of one device to the memory of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pair {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) access: Tried<bool>,
    /// Atomics over the link.
    pub(super) native_atomics: Option<bool>,
    /// The driver's rank of the link: 0 is the best of the host.
    pub(super) performance_rank: Option<i32>,
}

/// Facts from the operating system.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Host {
    /// `/proc/driver/nvidia/version`, if NVIDIA's kernel module is loaded.
    pub(super) kernel_module: Option<String>,
    /// The evidence that this is a container.
    pub(super) container: Option<String>,
    /// `/dev/shm`.
    pub(super) shared_memory: Tried<Space>,
    /// By the name of the limit.
    pub(super) limits: BTreeMap<String, Limit>,
    /// Result of connecting two abstract sockets: NCCL and the embedded device pass file descriptors over them.
    pub(super) abstract_sockets: Tried<Works>,
    /// Result of opening a listener on the loopback interface, which stores need.
    pub(super) loopback: Tried<Works>,
    /// Result of starting a world of the embedded device.
    pub(super) embedded_device: Tried<Works>,
    /// Nodes of `/dev/nvidia-caps-imex-channels`, which fabric handles need.
    pub(super) imex_channels: Vec<String>,
}

/// A file system's space in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Space {
    pub(super) total: u64,
    pub(super) free: u64,
}

/// A resource limit; absent is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Limit {
    pub(super) soft: Option<u64>,
    pub(super) hard: Option<u64>,
}

/// A variable that NCCL or the driver reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) value: String,
    /// `environment`, or the file that sets it.
    pub(super) source: String,
    /// Its effect on these crates; absent for an unknown variable.
    pub(super) effect: Option<String>,
    /// The crates that lose a feature by it.
    pub(super) limits: Vec<String>,
}

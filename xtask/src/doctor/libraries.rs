//! Which libraries the host has, what each offers, and which one programs take.
//!
//! None is loaded in this process: each is tried in a process of its own, with a deadline.

use std::time::Duration;

use super::facts::{Libraries, Library, Taken, Tried};
use super::search;
use crate::abi::probe::{self, Kind, Probe};

/// Finds and tries every copy.
pub(super) fn gather(kind: Kind, limit: Duration) -> Libraries {
    let (variable, names, stem) = match kind {
        Kind::Cuda => (cuda_driver_sys::VARIABLE, cuda_driver_sys::NAMES, "libcuda.so"),
        Kind::Nccl => (nccl_sys::VARIABLE, nccl_sys::NAMES, "libnccl.so"),
    };
    let taken = probe::run(kind, None, limit);
    let mut found: Vec<_> = search::files(variable, stem)
        .into_iter()
        .map(|(path, sources)| Library { path, sources, taken: false, probe: failed() })
        .collect();
    if let Ok(probe) = &taken {
        mark(&mut found, probe, names);
    }
    for library in found.iter_mut().filter(|library| !library.taken) {
        library.probe = probe::run(kind, Some(&library.path), limit).into();
    }
    let taken = taken.map(|probe| Taken {
        why: why(variable, &probe, names),
        path: probe.path,
        version: probe.version,
    });
    Libraries { taken: taken.into(), found }
}

/// Not tried yet.
fn failed() -> Tried<Probe> {
    Tried::Failed { error: String::new() }
}

/// Marks the one that is taken; one that was not found elsewhere comes first.
fn mark(found: &mut Vec<Library>, probe: &Probe, names: &[&str]) {
    let file = probe.path.canonicalize().unwrap_or_else(|_| probe.path.clone());
    let at = found.iter().position(|library| library.path == file).unwrap_or_else(|| {
        let sources = vec![format!("the loader, as {}", names.join(" or "))];
        found.insert(0, Library { path: file, sources, taken: false, probe: failed() });
        0
    });
    found[at].taken = true;
    found[at].probe = Tried::Done(probe.clone());
}

/// What led `Api::load` to the library.
fn why(variable: &str, probe: &Probe, names: &[&str]) -> String {
    if std::env::var_os(variable).is_some_and(|path| !path.is_empty()) {
        return format!("{variable} names it");
    }
    let preloaded = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let preloaded = preloaded.to_string_lossy().into_owned();
    let stem = probe.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if preloaded.split([':', ' ']).any(|path| path.ends_with(&stem)) {
        return "LD_PRELOAD loads it".into();
    }
    format!("the loader's choice for {}", names.join(" or "))
}

/// What a program misses without a feature of NCCL or the driver.
pub(super) fn loses(feature: &str) -> Option<&'static str> {
    Some(match feature {
        // NCCL.
        "CONFIG" => "settings of a communicator (name, CTAs); finalize",
        "SPLIT" => "groups made from a group; a new communicator is made instead",
        "REGISTER" => "registration of cached segments: NCCL copies through its own buffers",
        "MEMORY" => "NCCL's own allocator; physical memory of the driver does as well",
        "SIMULATE" => "estimates of how long a group takes",
        "SCALABLE_INIT" => "initialisation from several unique ids; it matters from thousands of ranks on",
        "WINDOWS" => "symmetric windows: symmetric pools fall back to copies",
        "SHRINK" => "going on without a failed rank; the survivors make a new communicator",
        "ALL_TO_ALL" => "all-to-all, gather and scatter as one call; sends and receives do as well",
        "REVOKE" => "taking a communicator back without aborting it",
        "GROW" => "adding ranks to a communicator",
        "ONE_SIDED" => "puts and signals from the host",
        "SUSPEND" => "giving a communicator's memory back for a while; its memory statistics",
        "CALL_CONFIG" => "settings of one collective",
        // The driver.
        "VIRTUAL_MEMORY" => "virtual memory: remappable segments, symmetric pools",
        "FILE_DESCRIPTOR_HANDLES" => "memory shared by processes of a host: symmetric pools",
        "FABRIC_HANDLES" => "memory shared by hosts of one NVLink domain",
        "IPC" => "legacy handles of memory and events",
        "STREAM_MEMORY_OPERATIONS" => "signals in stream order",
        "CAPTURE" => "CUDA graphs",
        "STREAM_ORDERED_ALLOCATION" => "the driver's own stream-ordered allocator",
        "PEER_ACCESS" => "one GPU's access to another's memory",
        "MULTICAST" => "NVLink multicast, which these crates do not use unasked",
        "DMA_BUFFER_EXPORT" => "memory given to network adapters",
        _ => return None,
    })
}

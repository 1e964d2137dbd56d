//! Which libraries the host has, what each offers, and which one programs take.
//!
//! None is loaded in this process: each is tried in a process of its own, with a deadline.

use std::path::PathBuf;
use std::time::Duration;

use super::facts::{Libraries, Library, Taken, Tried};
use crate::abi::probe::{self, Kind};

/// Finds and tries every copy.
pub(super) fn gather(kind: Kind, limit: Duration) -> Libraries {
    macro_rules! candidates {
        ($sys:ident) => {
            $sys::candidates().into_iter().map(|found| (found.path, sources(&found.origins))).collect()
        };
    }
    let candidates: Vec<(PathBuf, Vec<String>)> = match kind {
        Kind::Cuda => candidates!(cuda_driver_sys),
        Kind::Nccl => candidates!(nccl_sys),
    };
    let taken = probe::run(kind, None, limit);
    let file = taken.as_ref().ok().map(|probe| probe.path.canonicalize().unwrap_or(probe.path.clone()));
    let mut found: Vec<_> = candidates
        .into_iter()
        .map(|(path, sources)| {
            let taken = taken.as_ref().ok().filter(|_| file.as_ref() == Some(&path));
            let probe = taken.map_or_else(|| probe::run(kind, Some(&path), limit), |probe| Ok(probe.clone()));
            Library { taken: taken.is_some(), path, sources, probe: probe.into() }
        })
        .collect();
    let taken = taken.map(|probe| {
        let path = file.unwrap_or_default();
        let version = probe.version.clone();
        if !found.iter().any(|library| library.taken) {
            let sources = vec!["the loader".to_owned()];
            found.insert(0, Library { taken: true, path: path.clone(), sources, probe: Tried::Done(probe) });
        }
        // The first way that leads to it is the one that counted.
        let why = found.iter().find(|library| library.taken).and_then(|library| library.sources.first());
        Taken { why: why.cloned().unwrap_or_default(), path, version }
    });
    Libraries { taken: taken.into(), found }
}

fn sources(origins: &[impl ToString]) -> Vec<String> {
    origins.iter().map(ToString::to_string).collect()
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

#[cfg(test)]
mod tests {
    use super::loses;

    #[test]
    fn of_every_feature_it_is_told_what_goes_without_it() {
        let nccl = nccl_sys::Feature::all().iter_names().map(|(name, _)| name);
        let cuda = cuda_driver_sys::Feature::all().iter_names().map(|(name, _)| name);
        let silent: Vec<_> = nccl.chain(cuda).filter(|name| loses(name).is_none()).collect();
        assert_eq!(silent, [""; 0], "`loses` should tell");
    }
}

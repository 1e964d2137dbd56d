//! The libraries on the host, the features of each, and the one that programs load.
//!
//! No library is loaded in this process: each is tried in a process of its own, with a deadline.

use std::path::PathBuf;
use std::time::Duration;

use super::facts::{Libraries, Library, Taken, Tried};
use crate::probe::{self, Kind};

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
        // The first search step that finds the selected library is the one that selected it.
        let why = found.iter().find(|library| library.taken).and_then(|library| library.sources.first());
        Taken { why: why.cloned().unwrap_or_default(), path, version }
    });
    Libraries { taken: taken.into(), found }
}

fn sources(origins: &[impl ToString]) -> Vec<String> {
    origins.iter().map(ToString::to_string).collect()
}

/// Behaviour of these crates without a feature of NCCL or the driver; `None` if they do not use it.
pub(super) fn instead(feature: &str) -> Option<&'static str> {
    Some(match feature {
        "CONFIG" => "communicators have no name and no settings",
        "SPLIT" => "a group of a group is made as a new communicator",
        "REGISTER" => "cached segments are not registered: NCCL copies through its own buffers",
        "WINDOWS" => "symmetric pools have no windows: collectives copy",
        "VIRTUAL_MEMORY" => "segments are not remapped, and there are no symmetric pools",
        "FILE_DESCRIPTOR_HANDLES" => {
            "memory is not shared with other processes: there are no symmetric pools"
        }
        "CAPTURE" => "there are no graphs",
        "PEER_ACCESS" => "GPUs do not reach each other's memory",
        "STREAM_ORDERED_ALLOCATION" => "the driver's own stream-ordered allocator is not there",
        "STREAM_MEMORY_OPERATIONS" => "there are no signals in stream order",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::instead;

    #[test]
    fn what_is_told_of_features_is_of_features_that_are_there() {
        let is_one = |name| {
            nccl_sys::Feature::from_name(name).is_some()
                || cuda_driver_sys::Feature::from_name(name).is_some()
        };
        for name in ["CONFIG", "SPLIT", "REGISTER", "WINDOWS", "VIRTUAL_MEMORY", "FILE_DESCRIPTOR_HANDLES"] {
            assert!(is_one(name) && instead(name).is_some(), "{name}");
        }
        for name in ["CAPTURE", "PEER_ACCESS", "STREAM_ORDERED_ALLOCATION", "STREAM_MEMORY_OPERATIONS"] {
            assert!(is_one(name) && instead(name).is_some(), "{name}");
        }
    }

    #[test]
    fn every_feature_says_what_it_is() {
        let nccl = nccl_sys::Feature::all().iter().map(|feature| feature.summary());
        let cuda = cuda_driver_sys::Feature::all().iter().map(|feature| feature.summary());
        assert!(nccl.chain(cuda).all(|summary| summary.is_some_and(|text| text.ends_with('.'))));
        assert_eq!(nccl_sys::Feature::all().summary(), None);
        let revoke = nccl_sys::Feature::REVOKE.summary().unwrap();
        assert_eq!(revoke, "Revoking a communicator (2.28.7).");
    }
}

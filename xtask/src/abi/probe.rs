//! One real library, NCCL or CUDA driver, loaded in a process of its own: what it says and has.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nccl_sys::{FUNCTIONS, Function, Version};
use serde::{Deserialize, Serialize};

use crate::child;

/// Which library is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    Nccl,
    Cuda,
}

/// What a library says and has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Probe {
    /// The release that it says it is.
    pub(crate) version: String,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// Functions of the table that it has.
    pub(crate) functions: BTreeSet<String>,
    /// Functions of the table that it lacks, by the release that brings them, oldest first.
    pub(crate) absent: Vec<Absent>,
    /// Features that it has.
    pub(crate) features: Vec<String>,
    /// Features that it does not have, or that are not used with this release.
    pub(crate) refused: Vec<Refused>,
}

/// Functions that a later release brings.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Absent {
    pub(crate) since: String,
    pub(crate) functions: Vec<String>,
}

/// A feature that is not there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Refused {
    pub(crate) feature: String,
    /// What it is.
    pub(crate) summary: String,
    /// Whether it is there, but this release is known to do it wrong.
    pub(crate) known_bad: bool,
    /// Why, for a reader who knows of which feature and library this is.
    pub(crate) reason: String,
}

impl Probe {
    pub(super) fn has(&self, function: &Function) -> bool {
        self.functions.contains(function.name)
    }

    /// Where the table contradicts this library, which is NCCL `release`.
    pub(super) fn faults(&self, release: Version) -> Vec<String> {
        let mut faults = Vec::new();
        if self.version != release.to_string() {
            faults.push(format!("it says that it is {}", self.version));
        }
        for function in FUNCTIONS {
            let Function { name, since, .. } = function;
            match (self.has(function), *since <= release) {
                (true, false) => faults.push(format!("it exports {name}, which the table dates {since}")),
                (false, true) => faults.push(format!("it lacks {name}, which the table dates {since}")),
                _ => {}
            }
        }
        faults
    }
}

/// Loads `library`, or the one that `Api::load` takes, in another process.
pub(crate) fn run(kind: Kind, library: Option<&Path>, limit: Duration) -> Result<Probe> {
    let option = match kind {
        Kind::Nccl => "--probe=nccl",
        Kind::Cuda => "--probe=cuda",
    };
    let arguments = [OsStr::new("abi"), OsStr::new(option)];
    let library = library.into_iter().flat_map(|path| [OsStr::new("--library"), path.as_os_str()]);
    child::ask(arguments.into_iter().chain(library), limit)
}

/// Loads the library here and prints what it has, for [`run`].
pub(super) fn print(kind: Kind, library: Option<&Path>) -> Result<()> {
    macro_rules! probe {
        ($sys:ident) => {{
            let api = match library {
                // SAFETY: the file is the library of a release, or what the user of this command says is one; this
                // process does nothing but look at it.
                Some(path) => unsafe { $sys::Api::load_from(path) }?,
                None => $sys::Api::load()?,
            };
            let path = api.path().context("a loaded library has a path")?.to_path_buf();
            let there = |function: &&$sys::Function| api.table().address(function.name).is_some();
            let mut releases = std::collections::BTreeMap::<_, Vec<_>>::new();
            for function in $sys::FUNCTIONS.iter().filter(|function| !there(function)) {
                releases.entry(function.since).or_default().push(function.name.to_owned());
            }
            let refused = $sys::Feature::all().iter_names().filter_map(|(name, feature)| {
                let missing = api.require(feature).err()?;
                Some(Refused {
                    feature: name.to_owned(),
                    summary: feature.summary().unwrap_or_default().to_owned(),
                    known_bad: matches!(missing.why, $sys::Why::KnownBad { .. }),
                    reason: match missing.why {
                        $sys::Why::KnownBad { fault, mended } => format!("{fault}; use {mended} or newer"),
                        $sys::Why::TooOld => format!("it needs {} or newer", missing.needed),
                        _ => missing.to_string(),
                    },
                })
            });
            Probe {
                version: api.version().to_string(),
                bytes: path.metadata()?.len(),
                functions: $sys::FUNCTIONS.iter().filter(there).map(|one| one.name.to_owned()).collect(),
                absent: releases
                    .into_iter()
                    .map(|(since, functions)| Absent { since: since.to_string(), functions })
                    .collect(),
                features: api.features().iter_names().map(|(name, _)| name.to_owned()).collect(),
                refused: refused.collect(),
                path,
            }
        }};
    }
    child::answer(&match kind {
        Kind::Nccl => probe!(nccl_sys),
        Kind::Cuda => probe!(cuda_driver_sys),
    })
}

//! The functions and features of one NCCL or CUDA library, which is loaded in a process of its own.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::child;

/// The kind of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// NCCL.
    Nccl,
    /// The CUDA driver.
    Cuda,
}

/// The functions and features of one library.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Probe {
    /// The release that it reports.
    pub version: String,
    /// The library's file.
    pub path: PathBuf,
    /// The size of the file.
    pub bytes: u64,
    /// The functions of the table that it exports.
    pub functions: BTreeSet<String>,
    /// The functions of the table that it lacks, by the release that adds them, oldest first.
    pub absent: Vec<Absent>,
    /// The features that it has.
    pub features: Vec<String>,
    /// The features that it lacks, or that are disabled for this release.
    pub refused: Vec<Refused>,
}

/// Functions that a later release adds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Absent {
    /// The release that adds them.
    pub since: String,
    /// Their names.
    pub functions: Vec<String>,
}

/// A feature that is not available.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refused {
    /// Its name.
    pub feature: String,
    /// Its description.
    pub summary: String,
    /// True if the library has it, but this release is known to do it wrong.
    pub known_bad: bool,
    /// The reason, for a reader who knows the feature and the library.
    pub reason: String,
}

/// Options of the command `probe`.
#[derive(clap::Args)]
pub struct Options {
    /// The kind of the library
    #[arg(value_enum)]
    kind: Kind,
    /// The library's file; without it, the one that `Api::load` finds
    library: Option<PathBuf>,
}

/// Loads `library`, or the one that `Api::load` finds, in another process.
///
/// That process is this program again, with the command `probe`, which must call [`print()`].
///
/// # Errors
/// The library cannot be loaded, or its process died or took longer than `limit`.
pub fn run(kind: Kind, library: Option<&Path>, limit: Duration) -> Result<Probe> {
    let kind = match kind {
        Kind::Nccl => "nccl",
        Kind::Cuda => "cuda",
    };
    let arguments = ["probe", kind].map(OsStr::new);
    child::ask(arguments.into_iter().chain(library.map(Path::as_os_str)), limit)
}

/// Loads the library in this process and prints its functions and features, for [`run`].
///
/// # Errors
/// The library cannot be loaded.
pub fn print(options: &Options) -> Result<()> {
    let library = options.library.as_deref();
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
    child::answer(&match options.kind {
        Kind::Nccl => probe!(nccl_sys),
        Kind::Cuda => probe!(cuda_driver_sys),
    })
}

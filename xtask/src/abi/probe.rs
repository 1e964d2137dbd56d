//! One real library, loaded in a process of its own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use nccl_sys::{Api, FUNCTIONS, Feature, Function, Version, Why};
use serde::{Deserialize, Serialize};

/// What a library says and has.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Probe {
    /// What `ncclGetVersion` says.
    code: i32,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    /// Functions of the table that it exports.
    functions: BTreeSet<String>,
    /// Features that it has.
    pub(super) features: Vec<String>,
    /// Features that this release is known to do wrong, with the reason.
    pub(super) known_bad: Vec<String>,
}

impl Probe {
    pub(super) fn version(&self) -> Version {
        Version::from_code(self.code)
    }

    pub(super) fn has(&self, function: &Function) -> bool {
        self.functions.contains(function.name)
    }

    /// Where the table contradicts this library, which is `release`.
    pub(super) fn faults(&self, release: Version) -> Vec<String> {
        let mut faults = Vec::new();
        if self.version() != release {
            faults.push(format!("it says that it is {}", self.version()));
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

/// Loads `library` in another process.
pub(super) fn run(library: &Path) -> Result<Probe> {
    let program = std::env::current_exe().context("this program's own path")?;
    let output = Command::new(program).args(["abi", "--probe"]).arg(library).output()?;
    if !output.status.success() {
        bail!("{} cannot be used: {}", library.display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("reading what the other process printed")
}

/// Loads `library` here and prints what it has, for [`run`].
pub(super) fn print(library: &Path) -> Result<()> {
    let nccl = Api::load_from(library)?;
    let path = nccl.path().context("a loaded library has a path")?.to_path_buf();
    let there = FUNCTIONS.iter().filter(|function| nccl.table().address(function.name).is_some());
    let features: Vec<_> = Feature::all().iter_names().collect();
    let bad = features.iter().filter_map(|(_, feature)| nccl.require(*feature).err());
    let bad = bad.filter(|missing| matches!(missing.why, Why::KnownBad { .. }));
    let probe = Probe {
        code: nccl.version().code(),
        bytes: path.metadata()?.len(),
        functions: there.map(|function| function.name.to_owned()).collect(),
        known_bad: bad.map(|missing| missing.to_string()).collect(),
        features: features
            .iter()
            .filter(|(_, one)| nccl.has(*one))
            .map(|(name, _)| (*name).to_owned())
            .collect(),
        path,
    };
    println!("{}", serde_json::to_string(&probe)?);
    Ok(())
}

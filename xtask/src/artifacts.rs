//! The executables that a cargo command builds.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::shell;

/// The target that an executable is built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Library,
    Program,
    Example,
    /// An integration test or a benchmark.
    Other,
}

/// An executable that cargo built.
pub(crate) struct Artifact {
    /// The folder of the crate's manifest.
    pub(crate) manifest_folder: PathBuf,
    pub(crate) target: String,
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    /// True for a test binary: cargo also reports the programs and examples that it builds with them.
    pub(crate) is_test: bool,
}

impl Artifact {
    /// The name of the crate's folder.
    pub(crate) fn folder(&self) -> String {
        self.manifest_folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The name of a test binary: the crate's, and that of a target beside its unit tests.
    pub(crate) fn test_name(&self) -> String {
        let (folder, target) = (self.folder(), &self.target);
        if self.kind == Kind::Library || *target == folder { folder } else { format!("{folder}-{target}") }
    }
}

/// Runs a cargo command that builds, and returns the executables.
pub(crate) fn build(command: &mut Command) -> Result<Vec<Artifact>> {
    command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    eprintln!("$ {}", shell::line(command));
    let output = command.output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("`{}` failed: {}", shell::line(command), output.status);
    }
    let mut artifacts = Vec::new();
    for line in output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let message: serde_json::Value =
            serde_json::from_slice(line).context("cargo's message is not JSON")?;
        let (Some(path), Some(manifest)) =
            (message["executable"].as_str(), message["manifest_path"].as_str())
        else {
            continue;
        };
        artifacts.push(Artifact {
            manifest_folder: Path::new(manifest).parent().unwrap_or(Path::new("")).to_owned(),
            target: message["target"]["name"].as_str().unwrap_or_default().to_owned(),
            path: path.into(),
            kind: match message["target"]["kind"][0].as_str() {
                Some("lib") => Kind::Library,
                Some("bin") => Kind::Program,
                Some("example") => Kind::Example,
                _ => Kind::Other,
            },
            is_test: message["profile"]["test"] == true,
        });
    }
    Ok(artifacts)
}

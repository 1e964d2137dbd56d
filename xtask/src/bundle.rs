//! `cargo xtask gpu-bundle DIR`: what a GPU host without Rust needs to run the demo, the tests and the benchmarks.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::shell::{self, CRATES};

/// What a folder may come to, in bytes: lent GPU hosts take only so much.
const LIMIT: u64 = 40_000_000;

/// How test binaries differ from the release profile: they are most of the bundle, and nobody measures them.
const SMALL: [(&str, &str); 2] = [("OPT_LEVEL", "s"), ("LTO", "fat")];

const RUN: &str = include_str!("../data/run.sh");

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The folder to write; it must not exist, or be empty
    dir: PathBuf,
}

/// An executable that cargo built.
struct Artifact {
    /// The crate's folder.
    folder: String,
    target: String,
    path: PathBuf,
    /// Whether it is a test or a benchmark: cargo builds examples along with them.
    is_test: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let root = shell::workspace()?;
    let dir = &options.dir;
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    if fs::read_dir(dir)?.next().is_some() {
        bail!("{} is not empty: expected a new or an empty folder", dir.display());
    }
    for folder in ["tests", "benches", "traces", "peers"] {
        fs::create_dir(dir.join(folder))?;
    }
    for artifact in build(&root, &["build", "--package", "xtask", "--bin", "xtask"], &[])? {
        install(&artifact.path, &dir.join("xtask"))?;
    }
    let tests = build(&root, &["test", "--no-run", "--workspace", "--features", shell::ADAPTERS], &SMALL)?;
    for name in CRATES {
        let mut binaries = tests.iter().filter(|artifact| artifact.is_test && artifact.folder == name);
        let (Some(binary), None) = (binaries.next(), binaries.next()) else {
            bail!("expected one test binary of {name}: its tests belong into one target");
        };
        install(&binary.path, &dir.join("tests").join(name))?;
    }
    for artifact in build(&root, &["bench", "--no-run", "--workspace", "--benches"], &[])? {
        // Without a harness of their own these are the libraries' unit tests, which are there already.
        if !CRATES.contains(&artifact.target.replace('_', "-").as_str()) {
            let name = format!("{}-{}", artifact.folder, artifact.target);
            install(&artifact.path, &dir.join("benches").join(name))?;
        }
    }
    copy_all(&root.join("xtask/data"), &dir.join("traces"), ".trace.gz")?;
    copy_all(&root.join("xtask/peers"), &dir.join("peers"), "")?;
    let script = dir.join("run.sh");
    fs::write(&script, RUN)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let size = size(dir)?;
    if size > LIMIT {
        bail!("{} came to {size} bytes, more than {LIMIT}", dir.display());
    }
    println!("{}: {:.1} MB; run {} there", dir.display(), size as f64 / 1e6, script.display());
    Ok(())
}

/// Runs cargo for release binaries without symbols and without paths into the source tree; `settings` change the
/// release profile.
fn build(root: &Path, arguments: &[&str], settings: &[(&str, &str)]) -> Result<Vec<Artifact>> {
    let mut command = shell::cargo(root, arguments);
    command.args(["--message-format=json-render-diagnostics", "--target-dir", "target/bundle"]);
    if arguments[0] != "bench" {
        command.arg("--release");
    }
    let home = std::env::var("CARGO_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")))
        .unwrap_or_default();
    let flags = format!("--remap-path-prefix={}=. --remap-path-prefix={home}=cargo", root.display());
    for profile in ["RELEASE", "BENCH"] {
        command.env(format!("CARGO_PROFILE_{profile}_STRIP"), "symbols");
    }
    for (key, value) in settings {
        command.env(format!("CARGO_PROFILE_RELEASE_{key}"), value);
    }
    command.env("RUSTFLAGS", flags).stderr(std::process::Stdio::inherit());
    eprintln!("$ {}", shell::line(&command));
    let output = command.output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("`{}` failed: {}", shell::line(&command), output.status);
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
        let folder = Path::new(manifest).parent().and_then(Path::file_name).unwrap_or_default();
        artifacts.push(Artifact {
            folder: folder.to_string_lossy().into_owned(),
            target: message["target"]["name"].as_str().unwrap_or_default().to_owned(),
            path: path.into(),
            is_test: message["profile"]["test"] == true,
        });
    }
    Ok(artifacts)
}

fn install(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

fn copy_all(from: &Path, to: &Path, suffix: &str) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().ends_with(suffix) {
            install(&entry.path(), &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn size(dir: &Path) -> Result<u64> {
    let mut total = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        total += if metadata.is_dir() { size(&entry.path())? } else { metadata.len() };
    }
    Ok(total)
}

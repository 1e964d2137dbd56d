//! `cargo xtask gpu-bundle DIR`: what a GPU host without Rust needs to run the demo, the tests and the benchmarks.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use zstd::{Decoder, Encoder};

use crate::shell::{self, CRATES};

/// What a folder may come to, in bytes: lent GPU hosts take only so much.
const LIMIT: u64 = 40_000_000;

/// All but the script and this program, which unpacks it.
const ARCHIVE: &str = "bundle.tar.zst";

/// How hard it is packed; and how far back what is the same is found, as a power of 2: the programs have much of each other.
const LEVEL: i32 = 12;
const WINDOW: u32 = 27;

const RUN: &str = include_str!("../data/run.sh");

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The folder to write; it must not exist, or be empty
    dir: PathBuf,
    /// Unpack the one that lies there
    #[arg(long, hide = true)]
    unpack: bool,
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
    let dir = &options.dir;
    if options.unpack {
        return unpack(dir);
    }
    let root = shell::workspace()?;
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    if fs::read_dir(dir)?.next().is_some() {
        bail!("{} is not empty: expected a new or an empty folder", dir.display());
    }
    let archive = File::create(dir.join(ARCHIVE)).context("cannot create the archive")?;
    let mut archive = Encoder::new(archive, LEVEL)?;
    archive.long_distance_matching(true)?;
    archive.window_log(WINDOW)?;
    let mut archive = tar::Builder::new(archive);
    let mut add = |from: &Path, name: &str| {
        let added = archive.append_path_with_name(from, name);
        added.with_context(|| format!("cannot put {} into the archive", from.display()))
    };
    for artifact in build(&root, &["build", "--package", "xtask", "--bin", "xtask"])? {
        fs::copy(&artifact.path, dir.join("xtask")).context("cannot copy xtask")?;
    }
    let tests = build(&root, &["test", "--no-run", "--workspace", "--features", &shell::adapters(None)])?;
    for name in CRATES {
        let mut binaries = tests.iter().filter(|artifact| artifact.is_test && artifact.folder == name);
        let (Some(binary), None) = (binaries.next(), binaries.next()) else {
            bail!("expected one test binary of {name}: its tests belong into one target");
        };
        add(&binary.path, &format!("tests/{name}"))?;
    }
    let twins = shell::adapters(Some("symm-mem"));
    for artifact in build(&root, &["bench", "--no-run", "--workspace", "--benches", "--features", &twins])? {
        // Without a harness of their own these are the libraries' unit tests, which are there already.
        if !CRATES.contains(&artifact.target.replace('_', "-").as_str()) {
            add(&artifact.path, &format!("benches/{}-{}", artifact.folder, artifact.target))?;
        }
    }
    for artifact in build(&root, &["build", "--package", &shell::package("nccl-sys"), "--examples"])? {
        add(&artifact.path, &format!("examples/{}", artifact.target))?;
    }
    let group = "process-group";
    for artifact in build(&root, &["build", "--package", &shell::package(group), "--examples"])? {
        add(&artifact.path, &format!("examples/{group}/{}", artifact.target))?;
    }
    let symmetric = "symm-mem";
    let examples = ["build", "--package", &shell::package(symmetric), "--features", &twins, "--examples"];
    for artifact in build(&root, &examples)? {
        add(&artifact.path, &format!("examples/{symmetric}/{}", artifact.target))?;
    }
    let script = "examples/torch_all_reduce.py";
    add(&root.join(group).join(script), &format!("examples/{group}/torch_all_reduce.py"))?;
    for (folder, to, suffix) in [("xtask/data", "traces", ".trace.gz"), ("xtask/peers", "peers", "")] {
        let folder = root.join(folder);
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(suffix) {
                add(&entry.path(), &format!("{to}/{name}"))?;
            }
        }
    }
    archive.into_inner().and_then(Encoder::finish).context("cannot write the archive")?;
    let script = dir.join("run.sh");
    fs::write(&script, RUN)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let files = [ARCHIVE, "xtask", "run.sh"].map(|name| Ok(fs::metadata(dir.join(name))?.len()));
    let size: u64 = files.into_iter().sum::<Result<u64>>()?;
    if size > LIMIT {
        bail!("{} came to {size} bytes, more than {LIMIT}", dir.display());
    }
    println!("{}: {:.1} MB; run {} there", dir.display(), size as f64 / 1e6, script.display());
    Ok(())
}

fn unpack(dir: &Path) -> Result<()> {
    let archive = dir.join(ARCHIVE);
    let file = File::open(&archive).with_context(|| format!("cannot open {}", archive.display()))?;
    let mut decoder = Decoder::new(file)?;
    decoder.window_log_max(WINDOW)?;
    tar::Archive::new(decoder).unpack(dir).with_context(|| format!("cannot unpack {}", archive.display()))
}

/// Runs cargo for release binaries without symbols and without paths into the source tree.
fn build(root: &Path, arguments: &[&str]) -> Result<Vec<Artifact>> {
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

//! `cargo xtask gpu-bundle DIR`: what a GPU host without Rust needs to run the demo, the tests and the benchmarks.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail, ensure};

use crate::artifacts::{self, Kind};
use crate::shell::{self, CRATES};

/// The largest size of the folder, in bytes. Rented GPU hosts limit uploads.
const LIMIT: u64 = 45_000_000;

/// All files except the script and `lab`, which extracts it.
const ARCHIVE: &str = "bundle.tar.zst";

const RUN: &str = include_str!("../data/run.sh");

pub(crate) struct Options {
    /// The folder to write. It must not exist, or be empty.
    pub(crate) dir: PathBuf,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let dir = &options.dir;
    let root = shell::workspace()?;
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    if fs::read_dir(dir)?.next().is_some() {
        bail!("{} is not empty: expected a new or an empty folder", dir.display());
    }
    let mut files = Files::default();
    let lab = dir.join("lab");
    // By itself, since its benchmarks must not measure the adapters of the tests.
    let program = ["build", "--package", &shell::package("cli"), "--bin", "lockstep"];
    let mut program = release(&root, "target/bundle", &program);
    // One command: others would build the libraries again, with other features. Unit tests are left out, because they run
    // without GPUs.
    let features = shell::test_features(None);
    let tests =
        ["build", "--workspace", "--exclude", "xtask", "--test", "end_to_end", "--examples", "--bins"];
    let tests = [&tests[..], &["--features", &features]].concat();
    let mut tests = release(&root, "target/bundle-tests", &tests);
    // Tests measure nothing, so they are built in less time: in parts that are not optimised together, our crates little,
    // others not at all. Without any optimisation, they would be too large for the archive.
    for setting in ["codegen-units=16", "lto='off'", "opt-level=1", "package.'*'.opt-level=0"] {
        tests.args(["--config", &format!("profile.release.{setting}")]);
    }
    // At the same time, because the program's crates are compiled one after another.
    let (program, artifacts) = thread::scope(|scope| {
        let program = scope.spawn(|| artifacts::build(&mut program));
        let tests = artifacts::build(&mut tests);
        (program.join(), tests)
    });
    let (program, artifacts) = (program.ok().context("the build of lockstep panicked")??, artifacts?);
    program.iter().for_each(|artifact| files.add(&artifact.path, &artifact.target));
    for artifact in &artifacts {
        let (folder, target) = (artifact.folder(), &artifact.target);
        match artifact.kind {
            _ if artifact.is_test => files.add(&artifact.path, &format!("tests/{}", artifact.test_name())),
            Kind::Program if target == "lab" => {
                fs::copy(&artifact.path, &lab).context("cannot copy lab")?;
            }
            Kind::Example => files.add(&artifact.path, &format!("examples/{folder}/{target}")),
            _ => {}
        }
    }
    for name in CRATES.into_iter().filter(|name| *name != "xtask") {
        let is_of_crate = |artifact: &artifacts::Artifact| artifact.is_test && artifact.folder() == name;
        ensure!(artifacts.iter().any(is_of_crate), "no test binary of {name} was built");
    }
    let group = "process-group";
    let script = "examples/torch_all_reduce.py";
    files.add(&root.join(group).join(script), &format!("examples/{group}/torch_all_reduce.py"));
    for (folder, to, suffix) in [("cli/data", "traces", ".trace.gz"), ("cli/peers", "peers", "")] {
        let folder = root.join(folder);
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(suffix) {
                files.add(&entry.path(), &format!("{to}/{name}"));
            }
        }
    }
    files.pack(&lab, &dir.join(ARCHIVE))?;
    let script = dir.join("run.sh");
    fs::write(&script, RUN)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let files = [ARCHIVE, "lab", "run.sh"].map(|name| Ok(fs::metadata(dir.join(name))?.len()));
    let size: u64 = files.into_iter().sum::<Result<u64>>()?;
    if size > LIMIT {
        bail!("{} came to {size} bytes, more than {LIMIT}", dir.display());
    }
    println!("{}: {:.1} MB; run {} there", dir.display(), size as f64 / 1e6, script.display());
    Ok(())
}

/// The files of an archive.
#[derive(Default)]
struct Files {
    /// A line for each file: its path, a tab, and its name in the archive.
    list: String,
}

impl Files {
    fn add(&mut self, path: &Path, name: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.list, "{}\t{name}", path.display());
    }

    /// Writes the archive with `lab`.
    fn pack(&self, lab: &Path, archive: &Path) -> Result<()> {
        let mut pack = Command::new(lab);
        pack.arg("pack").arg(archive).stdin(Stdio::piped());
        let mut pack = pack.spawn().with_context(|| format!("cannot start {}", lab.display()))?;
        let list = pack.stdin.take().context("the process has no standard input")?;
        { list }.write_all(self.list.as_bytes()).context("cannot list the files of the archive")?;
        let status = pack.wait()?;
        ensure!(status.success(), "cannot write the archive: {status}");
        Ok(())
    }
}

/// A command of cargo's that makes release binaries without symbols and without paths into the source tree.
fn release(root: &Path, target_dir: &str, arguments: &[&str]) -> Command {
    let mut command = shell::cargo(root, arguments);
    command.args(["--target-dir", target_dir, "--release"]);
    let home = shell::cargo_home();
    let flags =
        format!("--remap-path-prefix={}=. --remap-path-prefix={}=cargo", root.display(), home.display());
    command.env("CARGO_PROFILE_RELEASE_STRIP", "symbols").env("RUSTFLAGS", flags);
    command
}

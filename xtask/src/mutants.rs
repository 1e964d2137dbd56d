//! `cargo xtask mutants`: whether the tests see what is wrong.
//!
//! Every patch under `xtask/mutants/` puts one bug into the caching allocator. Each is applied by itself to a copy of
//! the workspace, and the crate's tests (unit, property and end-to-end: its one test binary) have to fail there. A
//! patch that no longer applies, or does not compile, is an error: it tests nothing. What a patch breaks is written
//! before its first difference.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::child;
use crate::shell;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only this patch, by its name without `.patch`
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
}

/// The crate that they break.
const CRATE: &str = "caching-alloc";
/// Where the patches are.
const PATCHES: &str = "xtask/mutants";
/// Where the copy and what is built of it are, in the target folder. Always the same place: cargo takes a crate that
/// lies elsewhere for another one, and would build everything anew.
const PLACE: &str = "mutants";
/// Tests that take longer hang.
const LIMIT: Duration = Duration::from_secs(600);

struct Mutant {
    name: String,
    breaks: String,
    patch: PathBuf,
}

/// How tests end.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// This test failed first.
    Failed(String),
    /// The process died by itself.
    Died(String),
    Hung,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let root = shell::workspace()?;
    let mut mutants = list(&root.join(PATCHES))?;
    if let Some(only) = &options.only {
        mutants.retain(|mutant| mutant.name == *only);
        ensure!(!mutants.is_empty(), "there is no patch {PATCHES}/{only}.patch");
    }
    let bar = ProgressBar::new(mutants.len() as u64 + 1);
    bar.set_style(ProgressStyle::with_template("{wide_bar} {pos} of {len}: {msg}")?);
    bar.set_message("as it is");
    let tree = Tree::copy(&root)?;
    let whole = tree.test()?;
    ensure!(whole == Outcome::Passed, "without any patch the tests fail already: {whole:?}");
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["patch", "what it breaks", "seen by", "s"]);
    let mut missed = Vec::new();
    for mutant in &mutants {
        bar.inc(1);
        bar.set_message(mutant.name.clone());
        let begin = Instant::now();
        let outcome = tree.with(&mutant.patch, || tree.test()).with_context(|| mutant.name.clone())?;
        let seen = match outcome {
            Outcome::Failed(test) => test,
            Outcome::Died(how) => format!("the tests die: {how}"),
            Outcome::Passed | Outcome::Hung => {
                missed.push(mutant.name.as_str());
                if outcome == Outcome::Hung { "NOBODY: the tests hang".into() } else { "NOBODY".into() }
            }
        };
        let seconds = format!("{:.0}", begin.elapsed().as_secs_f64());
        table.add_row([&mutant.name, &mutant.breaks, &seen, &seconds]);
    }
    bar.finish_and_clear();
    println!("{table}");
    println!("{} of {} bugs are seen", mutants.len() - missed.len(), mutants.len());
    ensure!(missed.is_empty(), "nobody sees {}", missed.join(", "));
    Ok(())
}

/// The patches, by name.
fn list(folder: &Path) -> Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let patch = entry?.path();
        let Some(name) = patch.file_name().and_then(|name| name.to_str()?.strip_suffix(".patch")) else {
            continue;
        };
        let name = name.to_owned();
        let text = fs::read_to_string(&patch).with_context(|| format!("cannot read {}", patch.display()))?;
        let words = text.split("\n--- ").next().filter(|words| !words.starts_with("--- "));
        let breaks = words.with_context(|| format!("{name}.patch does not say what it breaks"))?;
        mutants.push(Mutant { breaks: breaks.split_whitespace().collect::<Vec<_>>().join(" "), name, patch });
    }
    mutants.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(mutants)
}

/// A copy of the workspace. It goes when it is dropped; what was built of it stays, for the next time.
struct Tree {
    root: PathBuf,
    built: PathBuf,
}

impl Tree {
    /// Copies what git keeps of the workspace, as it is now.
    fn copy(from: &Path) -> Result<Self> {
        let place = from.join("target").join(PLACE);
        let tree = Self { root: place.join("tree"), built: place.join("built") };
        if tree.root.exists() {
            fs::remove_dir_all(&tree.root)?;
        }
        let output = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(from)
            .output()
            .context("cannot run git")?;
        ensure!(
            output.status.success(),
            "not a checkout of git: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        for name in output.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let name = Path::new(std::str::from_utf8(name)?);
            let (from, to) = (from.join(name), tree.root.join(name));
            // What git still lists may be gone.
            let Ok(metadata) = from.symlink_metadata() else { continue };
            fs::create_dir_all(to.parent().context("a file has a folder")?)?;
            if metadata.is_symlink() {
                std::os::unix::fs::symlink(fs::read_link(&from)?, &to)
                    .with_context(|| format!("cannot link {}", to.display()))?;
            } else if metadata.is_file() {
                fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
                // What patches change is built anew, and only that.
                if !name.starts_with(CRATE) {
                    fs::File::options().append(true).open(&to)?.set_modified(metadata.modified()?)?;
                }
            }
        }
        Ok(tree)
    }

    /// Applies a patch as long as `then` runs.
    fn with<T>(&self, patch: &Path, then: impl FnOnce() -> Result<T>) -> Result<T> {
        self.patch(patch, &[]).context("the patch no longer applies; make it anew")?;
        let outcome = then();
        self.patch(patch, &["--reverse"])?;
        outcome
    }

    fn patch(&self, patch: &Path, how: &[&str]) -> Result<()> {
        let mut apply = Command::new("git");
        // The copy lies inside the checkout, and is none.
        apply.env("GIT_CEILING_DIRECTORIES", self.root.parent().unwrap_or(&self.root));
        let output = apply.arg("apply").args(how).arg(patch).current_dir(&self.root).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "git apply: {}", said.trim());
        Ok(())
    }

    /// Builds the tests of the crate and runs them until one fails.
    fn test(&self) -> Result<Outcome> {
        let package = shell::package(CRATE);
        let build = ["test", "--quiet", "--package", &package, "--lib", "--no-run"];
        let mut build = shell::cargo(&self.root, &build);
        build.args(["--message-format=json-render-diagnostics"]).env("CARGO_TARGET_DIR", &self.built);
        let output = build.output().context("cannot run cargo")?;
        ensure!(
            output.status.success(),
            "it does not compile, which is no failing test:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let messages = output.stdout.split(|byte| *byte == b'\n');
        let binary = messages
            .filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok())
            .find_map(|message| message["executable"].as_str().map(PathBuf::from))
            .context("cargo names no test binary")?;
        let mut tests = Command::new(binary);
        tests.current_dir(self.root.join(CRATE));
        first_failure(&mut tests)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // What is left goes the next time.
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Runs a test binary until a test fails.
fn first_failure(tests: &mut Command) -> Result<Outcome> {
    tests.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut child = tests.spawn().context("cannot start the tests")?;
    let lines = child::lines(child.stdout.take());
    let deadline = Instant::now() + LIMIT;
    let outcome = loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if let Some(test) = failed(&line) {
                    break Some(Outcome::Failed(test.to_owned()));
                }
            }
            Err(RecvTimeoutError::Timeout) => break Some(Outcome::Hung),
            Err(RecvTimeoutError::Disconnected) => break None,
        }
    };
    if outcome.is_some() {
        // Not waited for yet, so the number is still its own.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    }
    let status = child.wait()?;
    match outcome {
        Some(outcome) => Ok(outcome),
        None if status.success() => Ok(Outcome::Passed),
        None if status.code().is_none() => Ok(Outcome::Died(status.to_string())),
        None => bail!("the tests end with {status}, and none has failed"),
    }
}

/// The test that failed, as a line of the harness says it.
fn failed(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell_outcome(script: &str) -> Outcome {
        first_failure(Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn the_first_test_that_fails_is_enough() {
        let failing = "echo test a ... ok; echo test b::c ... FAILED; sleep 1000";
        assert_eq!(shell_outcome(failing), Outcome::Failed("b::c".into()));
        assert_eq!(shell_outcome("echo test a ... ok"), Outcome::Passed);
        assert!(matches!(shell_outcome("kill -ABRT $$"), Outcome::Died(_)));
        assert!(first_failure(Command::new("false").arg("1")).is_err());
    }

    #[test]
    fn every_patch_says_what_it_breaks_and_applies() {
        let root = match shell::workspace() {
            Ok(root) => root,
            Err(error) => {
                println!("skipped: {error:#}");
                return;
            }
        };
        let mutants = list(&root.join(PATCHES)).unwrap();
        assert!(mutants.len() >= 20, "{} patches", mutants.len());
        for mutant in mutants {
            assert!(!mutant.breaks.is_empty(), "{}", mutant.name);
            let mut apply = Command::new("git");
            let apply = apply.args(["apply", "--check"]).arg(&mutant.patch).current_dir(&root);
            let output = apply.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{} no longer applies: {said}", mutant.name);
        }
    }
}

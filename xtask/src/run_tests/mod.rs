//! `cargo xtask test`: runs every test of the workspace, and reports which were skipped and why.
//!
//! The test harness has no result for a test that finds at run time that it cannot run, because the host has no GPU or
//! no real library. Such a test prints a line `skipped: why` and returns. This task collects those lines and counts the
//! tests apart. With `--check-skips`, as in CI, a skip that is not in the committed list fails the run.

pub(crate) mod batches;
mod skips;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use skips::Skip;

use crate::shell;
use crate::torch_env;

#[derive(Default)]
pub(crate) struct Options {
    /// Only this crate, by the name of its folder.
    pub(crate) package: Option<String>,
    /// Only tests whose name contains this.
    pub(crate) filter: Option<String>,
    /// Fail if a test is skipped that the committed list does not allow.
    pub(crate) check_skips: bool,
}

#[derive(Default)]
struct Tally {
    passed: u64,
    failed: u64,
    skipped: Vec<Skip>,
    /// True if only some tests were selected.
    filtered: bool,
    /// The test whose output is being repeated.
    test: String,
    /// Inside the section where the harness repeats the output of tests that passed.
    in_successes: bool,
}

impl Tally {
    /// Takes a line of the harness. Returns true if it should be shown.
    fn line(&mut self, line: &str) -> bool {
        if let Some(why) = line.strip_prefix("skipped: ") {
            self.skipped.push(Skip { test: self.test.clone(), why: why.to_owned() });
            return false;
        }
        if let Some(test) = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----")) {
            self.test = test.to_owned();
        }
        if let Some(result) = line.strip_prefix("test result: ") {
            self.in_successes = false;
            // A test that runs others by name in a process of its own. They are parts of it and are not counted.
            if !self.filtered && count(result, " filtered out") > 0 {
                return false;
            }
            self.passed += count(result, " passed");
            self.failed += count(result, " failed");
        }
        match line {
            "successes:" => self.in_successes = true,
            "failures:" => self.in_successes = false,
            _ => {}
        }
        !self.in_successes
    }
}

/// Returns the number before `word` in a result line of the harness.
fn count(result: &str, word: &str) -> u64 {
    result
        .split(';')
        .find_map(|part| part.trim_end().strip_suffix(word)?.rsplit(' ').next()?.parse().ok())
        .unwrap_or(0)
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let skipped = run_with(options, |_, _| ())?;
    if options.check_skips { skips::check(&skipped) } else { Ok(()) }
}

/// Runs the tests with a command that `set` has changed, and returns those that were skipped. `set` gets the workspace's
/// folder.
pub(crate) fn run_with(options: &Options, set: impl FnOnce(&Path, &mut Command)) -> Result<Vec<Skip>> {
    let root = shell::workspace()?;
    let mut command = shell::cargo(&root, &["test", "--no-fail-fast"]);
    let this = std::env::current_exe().context("cannot find this program")?;
    let runner = serde_json::json!([this, batches::TASK]);
    command.args(["--config", &format!("target.'cfg(unix)'.runner={runner}")]);
    match &options.package {
        Some(name) => command.args(["--package", &shell::package(name)]),
        None => command.arg("--workspace"),
    };
    command.args(["--features", &shell::test_features(options.package.as_deref())]);
    if options.package.as_deref().is_none_or(|name| ["caching-alloc", "cli"].contains(&name)) {
        // For tests of the cudarc adapter, and of programs that the launcher starts.
        command.env("EMBEDDED_LIBRARY", shell::embedded_library(&root)?);
    }
    if std::env::var_os("PYTHON").is_none() {
        torch_env::python()?.map(|python| command.env("PYTHON", python));
    }
    set(&root, &mut command);
    run_and_count(command, options.filter.as_deref())
}

/// Runs a `cargo test` command with the tests whose names contain `filter`. Prints the counts and the skipped tests,
/// and returns those.
fn run_and_count(mut command: Command, filter: Option<&str>) -> Result<Vec<Skip>> {
    command.arg("--").arg("--show-output").args(filter).stdout(Stdio::piped());
    eprintln!("$ {}", shell::line(&command));
    let mut child = command.spawn().context("cannot run cargo")?;
    let output = child.stdout.take().context("cargo's output is not piped")?;
    let mut tally = Tally { filtered: filter.is_some(), ..Tally::default() };
    for line in BufReader::new(output).lines() {
        let line = line.context("cannot read cargo's output")?;
        if tally.line(&line) {
            println!("{line}");
        }
    }
    let status = child.wait().context("cannot wait for cargo")?;
    let skipped = tally.skipped.len() as u64;
    for Skip { test, why } in &tally.skipped {
        println!("skipped: {test}: {why}");
    }
    println!("{} passed, {} failed, {skipped} skipped", tally.passed.saturating_sub(skipped), tally.failed);
    if !status.success() {
        bail!("tests failed");
    }
    Ok(tally.skipped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_the_harness_says_and_what_was_skipped() {
        let mut tally = Tally::default();
        let shown: Vec<_> = [
            "running 3 tests",
            "test a ... ok",
            "successes:",
            "---- a stdout ----",
            "skipped: no GPU here",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 112 filtered out; finished in 0.01s",
        ]
        .into_iter()
        .filter(|line| tally.line(line))
        .collect();
        assert_eq!((tally.passed, tally.failed), (4, 2));
        assert_eq!(tally.skipped, [Skip { test: "a".to_owned(), why: "no GPU here".to_owned() }]);
        assert_eq!(shown.len(), 4);
    }
}

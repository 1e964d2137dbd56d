//! `cargo xtask test`: runs every test of the workspace, and reports which were skipped and why.
//!
//! The test harness has no result for a test that finds at run time that it cannot run, because the host has no GPU or
//! no real library. Such a test prints a line `skipped: why` and returns. This task collects those lines and counts the
//! tests apart. cargo-nextest runs the tests where it is installed, and a queue of our own elsewhere; both give each test
//! a process of its own. With `--check-skips`, as in CI, a skip that is not in the committed list fails the run.

mod nextest;
mod queue;
mod skips;

use std::cmp::Reverse;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use skips::Skip;

use crate::artifacts::{self, Artifact, Kind};
use crate::shell::{self, CRATES};
use crate::torch_env;

#[derive(Default)]
pub(crate) struct Options {
    /// Only this crate, by the name of its folder.
    pub(crate) package: Option<String>,
    /// Only tests whose name contains this.
    pub(crate) filter: Option<String>,
    /// Fail if a test is skipped that the committed list does not allow.
    pub(crate) check_skips: bool,
    /// Leave out the tests of these crates, by the names of their folders, except documentation tests.
    pub(crate) without: Vec<&'static str>,
}

/// The number of slow tests that are listed at the end.
const SLOWEST: usize = 10;

pub(crate) fn run(options: &Options) -> Result<()> {
    let skipped = run_with(options, |_, _| ())?;
    if options.check_skips { skips::check(&skipped) } else { Ok(()) }
}

/// Runs the tests, and returns those that were skipped. `set` gets the workspace's folder and changes every command:
/// cargo's, and those of the tests.
pub(crate) fn run_with(options: &Options, set: impl Fn(&Path, &mut Command) + Sync) -> Result<Vec<Skip>> {
    let root = shell::workspace()?;
    let (package, filter) = (options.package.as_deref(), options.filter.as_deref());
    let select = |arguments: &[&str]| {
        let mut command = shell::cargo(&root, arguments);
        match package {
            Some(name) => command.args(["--package", &shell::package(name)]),
            None => command.arg("--workspace"),
        };
        command.args(["--features", &shell::test_features(package)]);
        set(&root, &mut command);
        command
    };
    // Everything is built in any case: a build of fewer crates would choose other features for their dependencies.
    let (mut binaries, others): (Vec<_>, Vec<_>) = artifacts::build(&mut select(&["test", "--no-run"]))?
        .into_iter()
        .partition(|artifact| artifact.is_test);
    // For a test of the launcher, which would build it with other features.
    let is_all_reduce = |other: &&Artifact| other.folder() == "process-group" && other.target == "all_reduce";
    let example = others.iter().find(is_all_reduce);
    // Tests of the upper crates take longest. They begin first, so that none of them runs alone at the end.
    binaries.retain(|binary| !options.without.contains(&&*binary.folder()));
    binaries.sort_by_key(|binary| Reverse(CRATES.iter().position(|name| *name == binary.folder())));
    // For tests of the cudarc adapter, and of programs that the launcher starts.
    let needs_library = package.is_none_or(|name| ["caching-alloc", "cli"].contains(&name));
    let library = needs_library.then(|| shell::embedded_library(&root)).transpose()?;
    let python = if std::env::var_os("PYTHON").is_none() { torch_env::python()? } else { None };
    let prepare = |command: &mut Command| {
        command.env("CARGO", shell::cargo_path());
        command.envs(example.iter().map(|example| ("ALL_REDUCE_EXAMPLE", &example.path)));
        command.envs(library.iter().map(|library| ("EMBEDDED_LIBRARY", library)));
        command.envs(python.iter().map(|python| ("PYTHON", python)));
        set(&root, command);
    };
    let mut report = if nextest::is_installed(&root)? {
        let mut command = select(&["nextest", "run"]);
        prepare(&mut command);
        nextest::run(command, &root, filter, &options.without)?
    } else {
        queue::run(&binaries, filter, &prepare)?
    };
    let has_library = package.is_none() || binaries.iter().any(|binary| binary.kind == Kind::Library);
    let documented = if has_library { run_documented(select(&["test", "--doc"]), filter) } else { Ok(0) };

    println!("the slowest tests:");
    for (time, test) in report.slowest(SLOWEST) {
        println!("{:>7.1} s  {test}", time.as_secs_f64());
    }
    for Skip { test, why } in &report.skipped {
        println!("skipped: {test}: {why}");
    }
    report.failed.iter().for_each(|test| println!("failed: {test}"));
    let passed = report.passed + *documented.as_ref().unwrap_or(&0);
    println!("{passed} passed, {} failed, {} skipped", report.failed.len(), report.skipped.len());
    documented?;
    if !report.failed.is_empty() {
        bail!("tests failed");
    }
    Ok(report.skipped)
}

/// Runs the documentation tests with cargo's `command`, prints its output, and returns how many passed.
fn run_documented(mut command: Command, filter: Option<&str>) -> Result<u64> {
    command.args(["--no-fail-fast", "--"]).args(filter).stdout(Stdio::piped());
    eprintln!("$ {}", shell::line(&command));
    let mut child = command.spawn().context("cannot run cargo")?;
    let output = child.stdout.take().context("cargo's output is not piped")?;
    let mut passed = 0;
    for line in BufReader::new(output).lines() {
        let line = line.context("cannot read cargo's output")?;
        passed += passed_by(&line);
        println!("{line}");
    }
    let status = child.wait().context("cannot wait for cargo")?;
    if !status.success() {
        bail!("documentation tests failed");
    }
    Ok(passed)
}

/// Returns the number of passed tests in a line of the test harness: 0 if it is not the line of the result.
fn passed_by(line: &str) -> u64 {
    let result = line.strip_prefix("test result: ok. ").and_then(|result| result.split_once(" passed"));
    result.and_then(|(passed, _)| passed.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_of_the_harness_is_read() {
        assert_eq!(
            passed_by("test result: ok. 23 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"),
            23
        );
        assert_eq!(passed_by("test result: FAILED. 1 passed; 2 failed"), 0);
        assert_eq!(passed_by("test passed ... ok"), 0);
    }
}

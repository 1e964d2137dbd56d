//! Runs tests with cargo-nextest, where it is installed. `.config/nextest.toml` has its settings.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::queue::{Report, processes};
use crate::shell;

/// The report that nextest writes, below the workspace's folder.
const REPORT: &str = "target/nextest/default/junit.xml";

pub(super) fn is_installed(root: &Path) -> Result<bool> {
    let version = shell::cargo(root, &["nextest", "--version"]).output().context("cannot run cargo")?;
    Ok(version.status.success())
}

/// Runs the tests with `command`, a `cargo nextest run` with a selection of packages and features; not those of the crates
/// in `without`.
pub(super) fn run(
    mut command: Command,
    root: &Path,
    filter: Option<&str>,
    without: &[&str],
) -> Result<Report> {
    let path = root.join(REPORT);
    if path.exists() {
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    if !without.is_empty() {
        let packages = without.iter().map(|name| format!("package(={})", shell::package(name)));
        command.args(["-E", &format!("not ({})", packages.collect::<Vec<_>>().join(" | "))]);
    }
    command.arg("--no-tests=pass").arg(format!("--test-threads={}", processes())).args(filter);
    eprintln!("$ {}", shell::line(&command));
    let status = command.status().context("cannot run cargo")?;
    let text = fs::read_to_string(&path);
    let text = text.with_context(|| format!("nextest ended with {status} and left no {}", path.display()))?;
    let report = read(&text).with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(status.success() || !report.failed.is_empty(), "nextest ended with {status}");
    Ok(report)
}

/// Reads a report in the format of JUnit.
fn read(text: &str) -> Result<Report> {
    let document = roxmltree::Document::parse(text)?;
    let mut report = Report::default();
    for case in document.descendants().filter(|node| node.has_tag_name("testcase")) {
        let attribute = |name| case.attribute(name).with_context(|| format!("a test without {name}"));
        let (binary, name) = (attribute("classname")?, attribute("name")?);
        let seconds: f64 = attribute("time")?.parse().context("the time of a test is not a number")?;
        let is_failed =
            case.children().any(|node| node.has_tag_name("failure") || node.has_tag_name("error"));
        let output = case.children().find(|node| node.has_tag_name("system-out"));
        let output = output.and_then(|node| node.text()).unwrap_or_default();
        report.add(binary, name, !is_failed, output, Duration::try_from_secs_f64(seconds)?);
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::super::skips::Skip;
    use super::*;

    #[test]
    fn a_report_of_nextest_is_read() {
        let report = read(
            r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="1" errors="0" time="2.1">
    <testsuite name="a-crate::end_to_end" tests="3" disabled="0" errors="0" failures="1">
        <testcase name="one" classname="a-crate::end_to_end" time="0.250">
            <system-out>running 1 test&#10;test one ... ok</system-out>
        </testcase>
        <testcase name="two" classname="a-crate::end_to_end" time="1.500">
            <failure type="test failure with exit code 101">it panicked</failure>
            <system-out>skipped: but then it failed</system-out>
        </testcase>
        <testcase name="three" classname="a-crate::end_to_end" time="0.001">
            <system-out>running 1 test
skipped: no GPU here
test three ... ok</system-out>
        </testcase>
    </testsuite>
</testsuites>"#,
        );
        let mut report = report.unwrap();
        assert_eq!((report.passed, &report.failed[..]), (1, &["a-crate::end_to_end two".to_owned()][..]));
        assert_eq!(report.skipped, [Skip { test: "three".to_owned(), why: "no GPU here".to_owned() }]);
        assert_eq!(report.slowest(1)[0].1, "a-crate::end_to_end two");
        assert!(read("<testsuites><testcase name=\"one\"/></testsuites>").is_err());
    }
}

//! The tests that may be skipped.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use anyhow::{Context as _, Result, bail, ensure};

use crate::torch_env;

/// The names of the tests that may be skipped, in sections by host.
const ALLOWED: &str = include_str!("allowed_skips.txt");

/// A test that was skipped, and why.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Skip {
    pub(super) test: String,
    pub(super) why: String,
}

/// The properties of a host that decide which tests may be skipped there.
#[derive(Clone, Copy)]
struct Host {
    /// `cargo xtask torch-env` has made an environment with PyTorch.
    torch: bool,
    /// The tests run as root, who can act as another user.
    root: bool,
}

/// Fails if a test was skipped that the list does not allow to be skipped on this host.
pub(super) fn check(skipped: &[Skip]) -> Result<()> {
    let owner = fs::metadata("/proc/self").context("cannot read this process's user")?.uid();
    let host = Host { torch: torch_env::python()?.is_some(), root: owner == 0 };
    let allowed = allowed(ALLOWED, host)?;
    let unexpected: Vec<_> = skipped.iter().filter(|skip| !allowed.contains(&skip.test.as_str())).collect();
    for Skip { test, why } in &unexpected {
        println!("skipped without permission: {test}: {why}");
    }
    ensure!(
        unexpected.is_empty(),
        "{} tests were skipped that xtask/src/run_tests/allowed_skips.txt does not allow to be skipped on this host",
        unexpected.len()
    );
    Ok(())
}

/// Returns the names of the tests that `list` allows to be skipped on `host`.
fn allowed(list: &str, host: Host) -> Result<Vec<&str>> {
    let (mut allowed, mut names) = (false, Vec::new());
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line {
            "[always]" => allowed = true,
            "[without PyTorch]" => allowed = !host.torch,
            "[without root]" => allowed = !host.root,
            section if section.starts_with('[') => {
                bail!("unknown section {section}: expected [always], [without PyTorch] or [without root]")
            }
            name if allowed => names.push(name),
            _ => {}
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_allowed_only_where_its_section_holds() {
        let list = "# Tests\n[always]\na\n\n[without PyTorch]\nb\n[without root]\nc\n";
        let names = |torch, root| allowed(list, Host { torch, root }).unwrap();
        assert_eq!(names(false, false), ["a", "b", "c"]);
        assert_eq!(names(true, false), ["a", "c"]);
        assert_eq!(names(true, true), ["a"]);
        assert!(allowed("[never]\nd\n", Host { torch: false, root: false }).is_err());
        assert!(allowed(ALLOWED, Host { torch: true, root: true }).is_ok());
    }
}

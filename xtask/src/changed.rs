//! Which crates have changed since a check of theirs last passed in this target folder.
//!
//! `cargo xtask ci` tests a crate again if one of its files has changed, one of a crate that it depends on, one outside
//! all crates, or the compiler. A fresh checkout has no such record, so there everything runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::shell::{self, CRATES};

/// What has passed: for each check and crate a file with the crate's fingerprint.
pub(crate) struct Passed {
    folder: PathBuf,
    /// By the names of the crates' folders; empty outside a git checkout, where everything counts as changed.
    fingerprints: BTreeMap<String, u64>,
}

impl Passed {
    /// Takes the fingerprints of all crates, from all their files.
    pub(crate) fn of(root: &Path) -> Result<Self> {
        let folder = shell::target(root).join("passed");
        let Ok(files) = contents(root) else { return Ok(Self { folder, fingerprints: BTreeMap::new() }) };
        let dependencies = dependencies(root)?;
        let compiler = output(Command::new("rustc").arg("-vV"))?;
        let fingerprint = |name: &str| {
            let mut hasher = DefaultHasher::new();
            compiler.hash(&mut hasher);
            for (path, content) in &files {
                let folder = path.split('/').next().filter(|first| CRATES.contains(first));
                if folder.is_none_or(|folder| dependencies[name].contains(folder)) {
                    (path, content).hash(&mut hasher);
                }
            }
            hasher.finish()
        };
        let fingerprints = CRATES.iter().map(|name| ((*name).to_owned(), fingerprint(name))).collect();
        Ok(Self { folder, fingerprints })
    }

    fn path(&self, check: &str, name: &str) -> PathBuf {
        self.folder.join(format!("{check}-{name}"))
    }

    /// Returns whether nothing has changed that matters to this crate since its check passed.
    pub(crate) fn has(&self, check: &str, name: &str) -> bool {
        let noted = fs::read_to_string(self.path(check, name)).ok();
        noted.is_some() && noted == self.fingerprints.get(name).map(u64::to_string)
    }

    /// Notes that a check of a crate has passed, for the files as they were when `self` was made.
    pub(crate) fn note(&self, check: &str, name: &str) -> Result<()> {
        let Some(fingerprint) = self.fingerprints.get(name) else { return Ok(()) };
        let path = self.path(check, name);
        fs::create_dir_all(&self.folder)
            .and_then(|()| fs::write(&path, fingerprint.to_string()))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Returns the paths and contents of all files that are not ignored.
fn contents(root: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let listed = output(Command::new("git").current_dir(root).args(list))?;
    // A deleted file is listed until its deletion is committed.
    let read = |path: &str| Some((path.to_owned(), fs::read(root.join(path)).ok()?));
    Ok(listed.split('\0').filter(|path| !path.is_empty()).filter_map(read).collect())
}

/// Returns each crate with those of the workspace that it depends on, also for its tests, directly or not.
fn dependencies(root: &Path) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut list = shell::cargo(root, &["metadata", "--no-deps", "--format-version=1"]);
    let metadata: serde_json::Value = serde_json::from_str(&output(&mut list)?)?;
    let folder = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut direct = BTreeMap::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let manifest = Path::new(package["manifest_path"].as_str().context("a package without a manifest")?);
        let of = package["dependencies"].as_array().into_iter().flatten();
        let of = of.filter_map(|dependency| dependency["path"].as_str());
        let of: BTreeSet<String> = of.map(|path| folder(Path::new(path))).collect();
        direct.insert(folder(manifest.parent().context("a manifest without a folder")?), of);
    }
    CRATES.iter().map(|name| Ok(((*name).to_owned(), reached(name, &direct)?))).collect()
}

/// Returns `name` and everything that can be reached from it.
fn reached(name: &str, direct: &BTreeMap<String, BTreeSet<String>>) -> Result<BTreeSet<String>> {
    let (mut reached, mut left) = (BTreeSet::new(), vec![name.to_owned()]);
    while let Some(next) = left.pop() {
        let of = direct.get(&next).with_context(|| format!("cargo knows no crate in the folder {next}"))?;
        if reached.insert(next) {
            left.extend(of.iter().cloned());
        }
    }
    Ok(reached)
}

fn output(command: &mut Command) -> Result<String> {
    let line = shell::line(command);
    let output = command.output().with_context(|| format!("cannot run `{line}`"))?;
    ensure!(output.status.success(), "`{line}` failed: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).with_context(|| format!("`{line}` wrote no UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_depends_on_what_its_dependencies_depend_on() {
        let direct = [("a", vec![]), ("b", vec!["a"]), ("c", vec!["b"]), ("d", vec![])];
        let direct = direct.map(|(name, of)| (name.to_owned(), of.into_iter().map(str::to_owned).collect()));
        let direct = BTreeMap::from(direct);
        let of = |name| reached(name, &direct).unwrap().into_iter().collect::<Vec<_>>();
        assert_eq!((of("c"), of("d")), (vec!["a".into(), "b".into(), "c".into()], vec!["d".into()]));
        reached("e", &direct).unwrap_err();
    }

    #[test]
    fn the_top_depends_on_the_bottom() {
        let all = dependencies(&shell::workspace().unwrap()).unwrap();
        assert!(all["symm-mem"].contains("dynload") && all["cli"].contains("symm-mem"), "{all:?}");
        assert!(!all["caching-alloc"].contains("symm-mem") && all["xtask"].len() == 1, "{all:?}");
    }

    #[test]
    fn what_passed_holds_until_a_file_changes() {
        let folder = tempfile::tempdir().unwrap();
        let passed = |fingerprint| Passed {
            folder: folder.path().join("passed"),
            fingerprints: BTreeMap::from([("a".to_owned(), fingerprint)]),
        };
        assert!(!passed(1).has("tests", "a"));
        passed(1).note("tests", "a").unwrap();
        assert!(!passed(1).has("tests", "b"));
        assert!(passed(1).has("tests", "a") && !passed(1).has("models", "a") && !passed(2).has("tests", "a"));
    }
}

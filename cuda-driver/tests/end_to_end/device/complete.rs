//! The exercise calls every public function of the crate.

use std::fs;
use std::path::{Path, PathBuf};

/// Sources with the calls that `exercise` cannot make, since they need another process, no driver, or no
/// hardware.
const CALLERS: &[&str] =
    &["exercise", "hardware.rs", "kernels.rs", "mod.rs", "modules.rs", "multicast.rs", "processes.rs"];

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

/// The type that an `impl` line is for.
fn implemented(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    let rest = if rest.starts_with('<') { rest.split_once("> ")?.1 } else { rest.trim_start() };
    let rest = rest.rsplit(" for ").next()?;
    rest.split(['<', ' ', '{']).next()
}

/// The forms of calls of a source's public functions: `.name(` or `Type::name(`, `name(` for a function of a
/// module.
fn calls(source: &str) -> Vec<String> {
    let mut calls = Vec::new();
    let mut owner = None;
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("impl") {
            owner = implemented(line);
        } else if line == "}" {
            owner = None;
        }
        let text = line.trim_start();
        let Some((_, rest)) = text.split_once("fn ").filter(|(before, _)| {
            matches!(*before, "pub " | "pub unsafe " | "pub const " | "pub const unsafe ")
        }) else {
            continue;
        };
        let name = rest.split(['(', '<']).next().unwrap();
        // The receiver, if there is one, is in the first words of the parameters.
        let parameters = rest.split_once('(').unwrap().1;
        let first = if parameters.is_empty() { lines.next().unwrap_or("") } else { parameters };
        let is_method = first.split([',', ')']).next().is_some_and(|first| {
            matches!(first.trim(), "self" | "&self" | "mut self" | "&mut self" | "&'a self")
        });
        calls.push(match owner {
            Some(_) if is_method => format!(".{name}("),
            Some(owner) => format!("{owner}::{name}("),
            None => format!("{name}("),
        });
    }
    calls
}

#[test]
fn every_public_function_is_exercised() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    if !root.join("src").is_dir() {
        println!("skipped: the sources in {} are not on this machine", root.display());
        return;
    }
    let (mut crate_, mut callers) = (Vec::new(), Vec::new());
    sources(&root.join("src"), &mut crate_);
    for caller in CALLERS {
        let path = root.join("tests/end_to_end/device").join(caller);
        if path.is_dir() { sources(&path, &mut callers) } else { callers.push(path) }
    }
    let exercise: String = callers.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let (mut known, mut forgotten) = (0, Vec::new());
    for path in crate_ {
        for call in calls(&fs::read_to_string(&path).unwrap()) {
            known += 1;
            if !exercise.contains(&call) {
                forgotten.push(format!("{call}) of {}", path.strip_prefix(root).unwrap().display()));
            }
        }
    }
    assert!(known > 150, "only {known} functions were found");
    assert!(forgotten.is_empty(), "not exercised:\n{}", forgotten.join("\n"));
}

#[test]
fn functions_are_found_in_sources() {
    let source = "pub fn free(at: u8) {}\nimpl<'a> Thing<'a> {\n    pub fn new(\n        at: u8,\n    ) {}\n    pub unsafe fn of<T>(mut self) {}\n    fn private(&self) {}\n}\nimpl Clone for Other {\n    pub const fn two(\n        &self,\n    ) {}\n}\n";
    assert_eq!(calls(source), ["free(", "Thing::new(", ".of(", ".two("]);
}

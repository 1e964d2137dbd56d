//! Checks that the tests call every public function of the crate.

use std::fs;
use std::path::{Path, PathBuf};

/// The sources that are searched for calls: `exercise`, and the files with calls that `exercise` does not make
/// itself, for example because they need a second process or must not run on hardware.
const CALLERS: &[&str] = &[
    "exercise",
    "graph_memory.rs",
    "hardware.rs",
    "kernels.rs",
    "mod.rs",
    "modules.rs",
    "multicast.rs",
    "processes.rs",
];

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

/// Returns the name of the type that an `impl` line is for.
fn implemented(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    let rest = if rest.starts_with('<') { rest.split_once("> ")?.1 } else { rest.trim_start() };
    let rest = rest.rsplit(" for ").next()?;
    rest.split(['<', ' ', '{']).next()
}

/// Returns how a call of each public function of a source begins: `.name(` for a method, `Type::name(` for an
/// associated function, `name(` for a function of a module.
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
        // A method has its receiver as the first parameter.
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

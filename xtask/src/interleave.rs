//! `cargo xtask interleave`: concurrency tests in the thread orders that checkers choose.
//!
//! The models are in modules called `interleavings`, beside the code that they test. They run the crates' real code,
//! built with a checker's mutexes and atomics in place of the standard library's. loom tries all relevant orders of
//! the small models, up to a bound on preemptions; shuttle also tries many orders of longer programs.

use std::path::Path;

use anyhow::Result;

use crate::shell;

pub(crate) struct Options {
    /// Try fewer interleavings, as `cargo xtask ci` does.
    pub(crate) quick: bool,
    /// Leave out these crates.
    pub(crate) without: Vec<&'static str>,
}

/// A checker: its `cfg` in the crates, and the bounds of its search.
struct Checker {
    name: &'static str,
    variable: &'static str,
    /// For each of [`CRATES`]; `None` if a quick run leaves this checker out.
    quick: Option<[&'static str; CRATES.len()]>,
    full: [&'static str; CRATES.len()],
    unit: &'static str,
}

const CHECKERS: [Checker; 2] = [
    Checker {
        name: "loom",
        variable: "LOOM_MAX_PREEMPTIONS",
        quick: Some(["4", "3"]),
        // One preemption more takes hours for caching-alloc.
        full: ["5", "6"],
        unit: "interruptions of threads that could go on, at most: every order of each model",
    },
    Checker {
        name: "shuttle",
        variable: "SHUTTLE_ORDERS",
        quick: None,
        full: ["8000", "20000"],
        unit: "orders of each model and flow at random, and as many by priorities (PCT of depth 3)",
    },
];

/// The crates that have models.
pub(crate) const CRATES: [&str; 2] = ["caching-alloc", "process-group"];

pub(crate) fn run(options: &Options) -> Result<()> {
    let root = shell::workspace()?;
    for checker in &CHECKERS {
        let bounds = if options.quick { checker.quick } else { Some(checker.full) };
        for (name, bound) in CRATES.iter().zip(bounds.into_iter().flatten()) {
            if !options.without.contains(name) {
                check(&root, name, checker, bound)?;
            }
        }
    }
    Ok(())
}

fn check(root: &Path, crate_name: &str, checker: &Checker, bound: &str) -> Result<()> {
    let Checker { name, variable, unit, .. } = checker;
    println!("{name}, {crate_name}: {bound} {unit}");
    let package = shell::package(crate_name);
    // The code under test runs in millions of orders.
    let optimised = format!("profile.dev.package.{package}.opt-level=1");
    let test =
        ["test", "--quiet", "--config", &optimised, "--package", &package, "--lib", "--", "interleavings::"];
    let mut test = shell::cargo(root, &test);
    // The flags apply to every dependency, so a separate folder keeps the builds without them.
    test.env("RUSTFLAGS", format!("--cfg {name} -D warnings"));
    test.env("CARGO_TARGET_DIR", root.join("target/interleave").join(name));
    test.env(variable, bound).env("SHUTTLE_SILENCE_WARNINGS", "1");
    shell::run(&mut test)
}

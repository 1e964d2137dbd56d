//! `cargo xtask interleave`: what threads do to each other, in the orders that checkers choose.
//!
//! The models are in modules called `interleavings`, beside what they are about. They drive the crates' real code,
//! built with a checker's mutexes and atomics in place of the standard library's. loom tries every order of the small
//! models that can differ, up to a bound on preemptions; shuttle also tries many orders of longer programs.

use std::path::Path;

use anyhow::Result;

use crate::shell;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Fewer orders: what `cargo xtask ci` runs
    #[arg(long)]
    pub(crate) quick: bool,
}

/// A checker, by the `cfg` that the crate knows it by, and what bounds its search.
struct Checker {
    name: &'static str,
    variable: &'static str,
    quick: &'static str,
    full: &'static str,
    unit: &'static str,
}

const CHECKERS: [Checker; 2] = [
    Checker {
        name: "loom",
        variable: "LOOM_MAX_PREEMPTIONS",
        quick: "4",
        full: "6",
        unit: "interruptions of threads that could go on, at most: every order of each model",
    },
    Checker {
        name: "shuttle",
        variable: "SHUTTLE_ORDERS",
        quick: "1000",
        full: "20000",
        unit: "orders of each model and flow at random, and as many by priorities (PCT of depth 3)",
    },
];

/// The crates that have models.
const CRATES: [&str; 2] = ["caching-alloc", "process-group"];

pub(crate) fn run(options: &Options) -> Result<()> {
    let root = shell::workspace()?;
    for checker in &CHECKERS {
        CRATES.iter().try_for_each(|name| check(&root, name, checker, options.quick))?;
    }
    Ok(())
}

fn check(root: &Path, crate_name: &str, checker: &Checker, quick: bool) -> Result<()> {
    let Checker { name, variable, unit, .. } = checker;
    let bound = if quick { checker.quick } else { checker.full };
    println!("{name}, {crate_name}: {bound} {unit}");
    let package = shell::package(crate_name);
    let test = ["test", "--quiet", "--package", &package, "--lib", "--", "interleavings::"];
    let mut test = shell::cargo(root, &test);
    // The flags are of every dependency: a folder of its own keeps those that are built without.
    test.env("RUSTFLAGS", format!("--cfg {name} -D warnings"));
    test.env("CARGO_TARGET_DIR", root.join("target/interleave").join(name));
    test.env(variable, bound).env("SHUTTLE_SILENCE_WARNINGS", "1");
    shell::run(&mut test)
}

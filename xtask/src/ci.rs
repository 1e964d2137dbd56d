//! `cargo xtask ci`: everything that a change has to pass, cheapest first.

use anyhow::Result;

use crate::run_tests;
use crate::shell::{self, CRATES};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Leave out what needs the network beyond crates
    #[arg(long)]
    offline: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let root = shell::workspace()?;
    shell::run(&mut shell::cargo(&root, &["fmt", "--all", "--check"]))?;
    // A package at a time: together, one crate's features would hide what another forgot to ask for.
    for name in CRATES {
        let lint = [
            "clippy",
            "--quiet",
            "--package",
            &shell::package(name),
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ];
        shell::run(&mut shell::cargo(&root, &lint))?;
    }
    let minimal = [
        "clippy",
        "--quiet",
        "--package",
        &shell::package("process-group"),
        "--no-default-features",
        "--",
        "-D",
        "warnings",
    ];
    shell::run(&mut shell::cargo(&root, &minimal))?;
    let document = ["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"];
    shell::run(shell::cargo(&root, &document).env("RUSTDOCFLAGS", "-D warnings"))?;
    run_tests::run(&run_tests::Options::default())?;
    if options.offline {
        println!("left out, --offline: the pinned headers and the real NCCL libraries");
        return Ok(());
    }
    let lint = ["clippy", "--quiet", "--package", "xtask", "--features", "codegen", "--", "-D", "warnings"];
    shell::run(&mut shell::cargo(&root, &lint))?;
    shell::run(&mut shell::cargo(&root, &["xtask", "codegen", "--check"]))?;
    shell::run(&mut shell::cargo(&root, &["xtask", "abi"]))?;
    Ok(())
}

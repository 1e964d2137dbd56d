//! `cargo xtask sanitize`: the tests of the workspace under AddressSanitizer, leaks included.
//!
//! Its runtime comes with the stable toolchain; the flag that turns it on is not stable yet, so the compiler is told to
//! take it all the same.

use anyhow::Result;

use crate::run_tests;
use crate::shell;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only this crate
    #[arg(long, short)]
    package: Option<String>,
    /// Only tests whose name contains this
    filter: Option<String>,
}

/// Named, so that build scripts and macros, which run inside the compiler, are built without the sanitizer.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// A test lets a process touch memory of the device, and sees it killed for that; one that is not to be is a failed
/// test all the same.
const SETTINGS: &str = "handle_segv=0";

pub(crate) fn run(options: &Options) -> Result<()> {
    let root = shell::workspace()?;
    let mut test = shell::cargo(&root, &["test", "--no-fail-fast", "--target", TARGET]);
    match &options.package {
        Some(name) => test.args(["--package", &shell::package(name)]),
        None => test.arg("--workspace"),
    };
    test.env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=address")
        .env("RUSTDOCFLAGS", "-Zsanitizer=address")
        .env("ASAN_OPTIONS", SETTINGS)
        .env("CARGO_TARGET_DIR", root.join("target/sanitize"));
    run_tests::run_and_count(&mut test, options.filter.as_deref())
}

//! `cargo xtask sanitize`: the tests of the workspace under AddressSanitizer, leaks included.
//!
//! Its runtime comes with the stable toolchain; the flag that turns it on is not stable yet, so the compiler is told to
//! take it all the same.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::run_tests::{self, Options};

/// Named, so that build scripts and macros, which run inside the compiler, are built without the sanitizer.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Tests let processes touch memory of the device, or load a library that is cut off, and see them killed for that; one
/// that is not to be is a failed test all the same.
const SETTINGS: &str = "handle_segv=0:handle_sigbus=0";

pub(crate) fn run(options: &Options) -> Result<()> {
    run_tests::run_with(options, set)
}

/// Has a cargo command in the workspace `root` build with the sanitizer, and run so.
pub(crate) fn set(root: &Path, cargo: &mut Command) {
    cargo
        .env("RUSTC_BOOTSTRAP", "1")
        // Not an argument: tests that build a program build it the same way.
        .env("CARGO_BUILD_TARGET", TARGET)
        // A test that has its own `pthread_create` would stand before the sanitizer's.
        .env("RUSTFLAGS", "-Zsanitizer=address --cfg sanitized")
        .env("RUSTDOCFLAGS", "-Zsanitizer=address")
        .env("ASAN_OPTIONS", SETTINGS)
        .env("CARGO_TARGET_DIR", root.join("target/sanitize"));
}

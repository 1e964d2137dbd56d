//! `cargo xtask sanitize`: the tests of the workspace under AddressSanitizer, leaks included.
//!
//! The sanitizer's runtime is part of the stable toolchain. Its flag is not stable yet, so unstable flags are
//! enabled.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::run_tests::{self, Options};

/// Named, so that build scripts and macros, which run inside the compiler, are built without the sanitizer.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Some tests check that a process is killed by SIGSEGV or SIGBUS, so the sanitizer does not handle these signals.
const SETTINGS: &str = "handle_segv=0:handle_sigbus=0";

pub(crate) fn run(options: &Options) -> Result<()> {
    run_tests::run_with(options, set).map(drop)
}

/// Makes a cargo command in the workspace `root` build and run with the sanitizer.
pub fn set(root: &Path, cargo: &mut Command) {
    cargo
        .env("RUSTC_BOOTSTRAP", "1")
        // Not an argument: tests that build a program build it the same way.
        .env("CARGO_BUILD_TARGET", TARGET)
        // A test that defines its own `pthread_create` would replace the sanitizer's.
        .env("RUSTFLAGS", "-Zsanitizer=address --cfg sanitized")
        .env("RUSTDOCFLAGS", "-Zsanitizer=address")
        .env("ASAN_OPTIONS", SETTINGS)
        .env("CARGO_TARGET_DIR", root.join("target/sanitize"));
}

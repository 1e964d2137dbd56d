//! The Python interpreter for tests with PyTorch: the one that the environment variable `PYTHON` names, else the one
//! that `cargo xtask torch-env` has installed, else `python3`.

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
    sync::OnceLock,
};

/// Returns a command that starts the interpreter.
pub(crate) fn python() -> Command {
    let made = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/xtask/torch-2.15.0/bin/python");
    let usual = if Path::new(made).exists() { made } else { "python3" };
    Command::new(env::var_os("PYTHON").unwrap_or_else(|| usual.into()))
}

/// Returns true if this Python can import `module`.
pub(crate) fn imports(module: &str) -> bool {
    let mut tried = python();
    tried.args(["-c", &format!("import {module}")]).stdout(Stdio::null()).stderr(Stdio::null());
    tried.status().is_ok_and(|status| status.success())
}

/// Returns true if this Python can import `torch.distributed`. Otherwise prints that the test is skipped.
pub(crate) fn torch_is_there() -> bool {
    static THERE: OnceLock<bool> = OnceLock::new();
    let there = *THERE.get_or_init(|| imports("torch.distributed"));
    if !there {
        println!("skipped: no Python that can import torch.distributed; `cargo xtask torch-env` makes one");
    }
    there
}

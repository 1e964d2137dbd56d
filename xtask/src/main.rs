//! `cargo xtask`: the developer tasks of the workspace.

use std::process::ExitCode;

fn main() -> ExitCode {
    xtask::main()
}

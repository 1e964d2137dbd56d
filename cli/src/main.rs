//! The command `lockstep`.

use std::process::ExitCode;

fn main() -> ExitCode {
    lockstep_cli::main()
}

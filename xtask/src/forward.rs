//! Commands of the programs `lockstep` (for users of the crates) and `lab` (for developers): cargo builds and runs
//! them.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

use crate::{shell, torch_env};

/// The commands of `lockstep`.
const LOCKSTEP: [&str; 8] = ["demo", "doctor", "launch", "fr", "replay", "viz", "bench", "kill-test"];

/// The commands of `lab`.
const LAB: [&str; 4] = ["soak", "sim", "abi", "torch-viewer"];

/// The packages that `sim` runs. Without optimization of them, the seeds take several times as long.
const OF_SIMULATION: [&str; 12] = [
    "arc-swap",
    "lab",
    "lockstep-bootstrap",
    "lockstep-caching-alloc",
    "lockstep-cuda-driver",
    "lockstep-gpu-sim",
    "lockstep-memory-sharing",
    "lockstep-peer-kernels",
    "lockstep-process-group",
    "lockstep-symm-agreement",
    "lockstep-symm-mem",
    "simulation",
];

/// The end of the help text.
pub(crate) const HELP: &str = "\
Commands of `lockstep`, which `cargo install --locked --path cli` installs:
  demo, doctor, launch, fr, replay, viz, bench, kill-test

Commands of `lab`:
  soak          Run stress tests for as long as wanted
  sim           Run programs of several ranks under seeded schedules
  abi           Compare the raw crates with real releases of NCCL and of `cuda.h`
  torch-viewer  Check that PyTorch's viewer of memory snapshots reads our snapshots";

/// Runs a command of `lockstep` or `lab`, whose first word is its name.
pub(crate) fn run(words: &[OsString]) -> Result<ExitCode> {
    let name = words.first().and_then(|name| name.to_str()).unwrap_or_default();
    let mut command = cargo(name, is_built(name)?)?;
    command.args(words);
    if name == "bench" && std::env::var_os("PYTHON").is_none() {
        torch_env::python()?.map(|python| command.env("PYTHON", python));
    }
    // In place of this process, so that signals reach the command.
    let Err(error): Result<Infallible, _> = Err(command.exec());
    Err(error).context("cannot run cargo")
}

/// Returns true if the program with the command `name` was built before.
fn is_built(name: &str) -> Result<bool> {
    let (profile, program) = match name {
        "bench" => ("release", "lockstep"),
        _ if LOCKSTEP.contains(&name) => ("debug", "lockstep"),
        _ => ("debug", "lab"),
    };
    Ok(shell::target(&shell::workspace()?).join(profile).join(program).exists())
}

/// The cargo command that runs the program with the command `name`. It shows the progress of the first build, which
/// takes some minutes.
pub(crate) fn cargo(name: &str, is_built: bool) -> Result<Command> {
    let quiet: &[&str] = if is_built { &["--quiet"] } else { &[] };
    let package: &[&str] = match name {
        // A debug build's times say nothing.
        "bench" => &["lockstep-cli", "--release"],
        _ if LOCKSTEP.contains(&name) => &["lockstep-cli"],
        _ if LAB.contains(&name) => &["lab"],
        _ => bail!("unknown command {name:?}: `cargo xtask help` lists the commands"),
    };
    let optimized: &[&str] = if name == "sim" { &OF_SIMULATION } else { &[] };
    let mut command = Command::new(shell::cargo_path());
    // The paths in its arguments are relative to the current folder.
    command.arg("run").args(quiet).arg("--package").args(package);
    for package in optimized {
        command.arg("--config").arg(format!("profile.dev.package.{package}.opt-level=3"));
        command.arg("--config").arg(format!("profile.dev.package.{package}.codegen-units=1"));
    }
    command.arg("--");
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_go_to_the_program_that_has_them() {
        let line = |name: &str| cargo(name, true).map(|command| shell::line(&command)).unwrap_or_default();
        assert!(line("demo").ends_with("run --quiet --package lockstep-cli --"), "{}", line("demo"));
        assert!(
            line("bench").ends_with("run --quiet --package lockstep-cli --release --"),
            "{}",
            line("bench")
        );
        assert!(line("soak").ends_with("run --quiet --package lab --"), "{}", line("soak"));
        assert!(
            line("sim").contains("--package lab --config profile.dev.package.arc-swap.opt-level=3 "),
            "{}",
            line("sim")
        );
        assert!(!shell::line(&cargo("demo", false).unwrap()).contains("--quiet"));
        assert!(cargo("dmeo", true).unwrap_err().to_string().contains("unknown command \"dmeo\""));
        assert!(LOCKSTEP.iter().chain(&LAB).all(|name| HELP.contains(name)));
    }
}

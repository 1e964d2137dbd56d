//! The command `lockstep` as a user runs it.

mod arguments;
mod bench;
mod bombs;
mod broken_pipe;
mod demo;
mod doctor;
mod fr;
mod hostile_user;
mod launch;
mod replay;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The program: as cargo built it, or beside the folder of this test in a GPU bundle.
fn lockstep() -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_lockstep"));
    if built.exists() {
        return built.to_owned();
    }
    let bundled = std::env::current_exe().unwrap().parent().unwrap().with_file_name("lockstep");
    assert!(bundled.exists(), "expected lockstep at {}", bundled.display());
    bundled
}

/// The folder of the workspace, if this runs under cargo.
fn workspace() -> Option<PathBuf> {
    let package = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?);
    Some(package.parent()?.to_owned())
}

/// A cargo command in the workspace's folder.
fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(arguments);
    cargo
}

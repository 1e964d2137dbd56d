//! The program `lab` as a developer runs it.

mod broken_pipe;
mod soak;

use std::path::{Path, PathBuf};

/// The program: as cargo built it, or beside the folder of this test in a GPU bundle.
fn lab() -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_lab"));
    if built.exists() {
        return built.to_owned();
    }
    let bundled = std::env::current_exe().unwrap().parent().unwrap().with_file_name("lab");
    assert!(bundled.exists(), "expected lab at {}", bundled.display());
    bundled
}

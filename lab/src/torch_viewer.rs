//! `cargo xtask torch-viewer`: PyTorch's viewer of memory snapshots, which `lockstep viz --check-torch` tests against.

use anyhow::Result;
use xtask::headers::{self, Part};
use xtask::pins::TORCH;
use xtask::shell;

pub(crate) fn run() -> Result<()> {
    let [folder] = headers::fetch(&TORCH, [Part::MemoryViewer])?;
    let viewer = headers::find(&folder, "_memory_viz.py")?;
    let check = ["run", "--quiet", "--package", "lockstep-cli", "--", "viz", "--check-torch"];
    shell::run(shell::cargo(&shell::workspace()?, &check).arg(viewer))
}

//! `cargo xtask viz`: a snapshot or a trace as one HTML page that needs nothing else.

mod torch;

pub(crate) use torch::check as check_torch;

use anyhow::Result;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Let PyTorch's own viewer read snapshots of ours; downloads it once (140 MB)
    #[arg(long, required = true)]
    check_torch: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if options.check_torch {
        check_torch()?;
    }
    Ok(())
}

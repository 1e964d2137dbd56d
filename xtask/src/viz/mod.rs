//! `cargo xtask viz`: a snapshot or a trace as one HTML page that needs nothing else.
//!
//! - [`replay`]: gives the blocks of a trace addresses
//! - [`history`]: what lay at which address, from when to when; the curves
//! - [`page`]: the same as HTML
//! - [`torch`]: PyTorch's own viewer, on our snapshots

mod history;
mod page;
mod replay;
mod torch;

pub(crate) use torch::check as check_torch;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::budget::ReadLimit;
use crate::replay::Policy;
use crate::trace::Recording;
use history::History;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// A snapshot, ours or PyTorch's (pickle or JSON), or a trace in text form; gzipped or not
    #[arg(value_name = "SNAPSHOT|TRACE", required_unless_present = "check_torch")]
    file: Option<PathBuf>,
    /// Where the page goes; without it beside the file, as FILE.html
    #[arg(short, long, value_name = "FILE.html")]
    output: Option<PathBuf>,
    /// What the allocator that a trace is replayed with does with memory that fits no request
    #[arg(long, value_enum, default_value_t = Policy::Fixed)]
    policy: Policy,
    /// Let PyTorch's own viewer read snapshots of ours; downloads it once (140 MB)
    #[arg(long)]
    check_torch: bool,
    #[command(flatten)]
    limit: ReadLimit,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if options.check_torch {
        check_torch()?;
    }
    let Some(file) = &options.file else { return Ok(()) };
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let (snapshot, title) = match Recording::load(file, options.limit)? {
        Recording::Snapshot(snapshot) => (snapshot, name.to_string()),
        Recording::Trace(trace) => {
            let policy = match options.policy {
                Policy::Fixed => "segments that stay",
                Policy::Remap => "pages that move",
            };
            (replay::run(&trace, options.policy)?, format!("{name}, replayed over {policy}"))
        }
    };
    let page = page::html(&title, &History::of(&snapshot))?;
    let output = options.output.clone().unwrap_or_else(|| {
        let mut name = file.clone().into_os_string();
        name.push(".html");
        name.into()
    });
    fs::write(&output, &page).with_context(|| format!("cannot write {}", output.display()))?;
    println!("{} ({} KB)", output.display(), page.len().div_ceil(1000));
    Ok(())
}

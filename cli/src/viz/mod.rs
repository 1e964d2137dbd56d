//! `lockstep viz`: a snapshot or a trace as one self-contained HTML page.
//!
//! - [`replay`]: assigns addresses to the blocks of a trace
//! - [`history`]: the content of each address over time; the curves
//! - [`page`]: the history as HTML
//! - [`torch`]: PyTorch's own viewer, on our snapshots

mod history;
mod page;
mod replay;
mod torch;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::exit::UsageError;
use crate::output;
use crate::replay::Policy;
use crate::trace::Recording;
use crate::trace::budget::ReadLimit;
use crate::values;
use history::History;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// A memory snapshot from these crates or PyTorch (pickle or JSON), or an allocation trace (text form, or minimalloc CSV); may be gzipped; `-` is standard input
    #[arg(value_name = "SNAPSHOT|TRACE", required_unless_present = "check_torch", value_parser = values::input())]
    file: Option<PathBuf>,
    /// The page to write; `-` is standard output [default: the input's name with `.html` appended, in its folder]
    #[arg(short, long, value_name = "PAGE.html")]
    output: Option<PathBuf>,
    /// Reuse of free memory that fits no request, by the allocator that replays a trace
    #[arg(long, value_enum, default_value_t = Policy::Fixed)]
    policy: Policy,
    /// Check that PyTorch's viewer (its file `torch/cuda/_memory_viz.py`) reads snapshots of the caching allocator
    #[arg(long, value_name = "VIEWER.py")]
    check_torch: Option<PathBuf>,
    #[command(flatten)]
    limit: ReadLimit,
}

/// Returns the page's path for an input without `-o`.
fn default_output(file: &Path) -> Result<PathBuf, UsageError> {
    // Standard input, and pipes of the shell such as /dev/fd/63.
    if ["/dev", "/proc"].iter().any(|folder| file.starts_with(folder)) {
        let text = format!("no page can be written next to {}; give -o PAGE.html", file.display());
        return Err(UsageError(text));
    }
    let mut name = file.to_owned().into_os_string();
    name.push(".html");
    Ok(name.into())
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let output = match (&options.file, &options.output) {
        (None, _) => None,
        (Some(_), Some(output)) => Some(output.clone()),
        (Some(file), None) => Some(default_output(file)?),
    };
    let is_stdout = output.as_ref().is_some_and(|output| output.as_os_str() == "-");
    if let Some(output) = output.as_ref().filter(|_| !is_stdout) {
        let inputs = options.file.iter().chain(&options.check_torch);
        output::check_differs("-o", output, inputs.map(PathBuf::as_path))?;
    }
    if let Some(viewer) = &options.check_torch {
        torch::check(viewer)?;
    }
    let (Some(file), Some(output)) = (&options.file, output) else { return Ok(()) };
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
    let size = page.len().div_ceil(1000);
    if is_stdout {
        output::print(&page)?;
        eprintln!("wrote the page to standard output ({size} KB)");
        return Ok(());
    }
    fs::write(&output, &page).with_context(|| format!("cannot write {}", output.display()))?;
    println!("wrote {} ({size} KB)", output.display());
    Ok(())
}

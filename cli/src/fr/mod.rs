//! `lockstep fr`: combines the flight recorders of all ranks.
//!
//! - [`load`]: dumps, ours and PyTorch's, pickle or JSON
//! - [`jobs`]: the newest of the jobs whose dumps lie in the folder
//! - [`analyze`]: the missing rank, and the first call in which the ranks differ
//! - [`messages`]: messages whose other half is missing or different
//! - [`report`]: the result as text
//! - [`live`]: the progress of a running job's ranks

mod analyze;
mod jobs;
mod live;
mod load;
mod messages;
mod report;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use anyhow::Result;

use crate::notes;
use crate::trace::budget::ReadLimit;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    task: Task,
}

#[derive(clap::Subcommand)]
enum Task {
    /// Name the rank that did not join, and the first call at which the ranks differ
    #[command(after_long_help = notes::ANALYZE)]
    Analyze {
        /// The folder with the dumps, one file for each rank
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// Print one object of JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        limit: ReadLimit,
    },
    /// Show the last call of each rank of a running job
    #[command(after_long_help = notes::LIVE)]
    Live(live::Options),
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let (folder, json, limit) = match &options.task {
        Task::Analyze { folder, json, limit } => (folder, json, *limit),
        Task::Live(options) => return live::run(options),
    };
    let load::Folder { dumps, other_jobs } = load::folder(folder, limit)?;
    let report = analyze::analyze(&dumps, other_jobs);
    if *json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{report}");
    }
    Ok(())
}

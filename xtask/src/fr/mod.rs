//! `cargo xtask fr`: what the flight recorders of all ranks say together.
//!
//! - [`load`]: dumps, ours and PyTorch's, pickle or JSON
//! - [`analyze`]: which rank is missing, and where the ranks first differ
//! - [`messages`]: which messages have no other half
//! - [`report`]: the same as text
//! - [`live`]: how far the ranks of a running job are

mod analyze;
#[cfg(test)]
#[path = "../../tests/fr.rs"]
mod end_to_end;
mod live;
mod load;
mod messages;
mod report;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use anyhow::Result;

use crate::budget::ReadLimit;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    task: Task,
}

#[derive(clap::Subcommand)]
enum Task {
    /// Name the rank that did not join, and the first call in which the ranks differ
    Analyze {
        /// A folder with the dumps of all ranks, one file each
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        limit: ReadLimit,
    },
    /// Ask the ranks of a running job what they called last
    Live(live::Options),
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let (folder, json, limit) = match &options.task {
        Task::Analyze { folder, json, limit } => (folder, json, *limit),
        Task::Live(options) => return live::run(options),
    };
    let report = analyze::analyze(&load::folder(folder, limit)?);
    if *json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    Ok(())
}

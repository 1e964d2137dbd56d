//! `lockstep demo`: a whole job, with one process for each rank.
//!
//! Every rank
//! 1. replays a recorded training run through its caching allocator, while a tracker registers every segment
//!    with the communicators of its device ([`replay`]);
//! 2. places gradient buckets ([`buckets`]) in one symmetric pool, commits it for each of its groups
//!    ([`groups`]) and all-reduces the buckets from the windows, eagerly and in a captured graph, checking
//!    every element ([`reduce`]);
//! 3. sees one rank allocate a segment that the others do not, gets the same typed error as every other member
//!    of the affected groups, and goes on with the groups that agree ([`diverge`]).
//!
//! The [`launcher`] hosts the store, starts the ranks, receives their messages ([`protocol`]) and reports
//! ([`report`]).

pub mod backend;
mod buckets;
mod diverge;
mod groups;
mod job;
pub(crate) mod launcher;
mod options;
pub(crate) mod protocol;
mod rank;
mod reduce;
mod replay;
mod report;

use std::process::ExitCode;

use anyhow::Result;

pub(crate) use backend::Backend;
pub(crate) use launcher::die_with_launcher;
pub(crate) use options::{Options, RANK_COMMAND, RankOptions};

/// Runs the demo and reports on standard output. Fails unless everything held.
pub(crate) fn run(options: &Options) -> Result<()> {
    let figures = launcher::run(options)?;
    if options.json {
        println!("{}", report::json(&figures)?);
    } else {
        report::table(&figures);
    }
    figures.verdict()
}

/// Runs one rank, which reports its result to the launcher.
pub(crate) fn run_rank(options: &RankOptions) -> ExitCode {
    match rank::run(options) {
        Ok(()) => ExitCode::SUCCESS,
        // The error was reported to the launcher.
        Err(_) => ExitCode::FAILURE,
    }
}

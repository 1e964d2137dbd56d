//! The options of the demo, and their checks.

use std::path::PathBuf;
use std::time::Duration;

use super::backend::Backend;
use crate::values;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Number of ranks, one process each: an even number from 2 to 64 [default: 4, or 2 on a host with 2 or 3 GPUs]
    #[arg(long, value_name = "N", value_parser = parse_ranks, allow_negative_numbers = true)]
    pub(crate) ranks: Option<u32>,
    /// The devices that the ranks use
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    pub(crate) backend: Backend,
    /// Allocation trace to replay, in any format of `replay`; a file, not standard input or a pipe, because every rank reads it [default: a recorded GPT-2 training run]
    #[arg(long, value_name = "FILE", value_parser = values::shared_file())]
    pub(crate) trace: Option<PathBuf>,
    /// Port of the store on the loopback interface, up to 65535; 0 selects a free port
    #[arg(long, value_name = "P", default_value_t = 0, value_parser = values::port, allow_negative_numbers = true)]
    pub(crate) port: u16,
    /// Time limit of each step in which a rank waits for the others, in seconds from 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = values::limit, allow_negative_numbers = true)]
    pub(crate) deadline: Duration,
    /// Do not start this rank, to see the errors of the other ranks
    #[arg(long, value_name = "RANK", value_parser = values::whole::<u32>("a rank", 0..=63), allow_negative_numbers = true)]
    pub(crate) absent: Option<u32>,
    /// Print one JSON object in place of the tables
    #[arg(long)]
    pub(crate) json: bool,
}

/// The hidden command that runs a rank. Its name resembles no other, so that it is not suggested for a mistyped command.
pub(crate) const RANK_COMMAND: &str = "__rank";

/// The options that the launcher passes to a rank.
#[derive(clap::Args, Debug)]
pub(crate) struct RankOptions {
    #[arg(long)]
    pub(crate) rank: u32,
    #[arg(long)]
    pub(crate) ranks: u32,
    #[arg(long, value_enum)]
    pub(crate) backend: Backend,
    #[arg(long)]
    pub(crate) trace: Option<PathBuf>,
    #[arg(long)]
    pub(crate) store: String,
    #[arg(long, value_parser = values::limit)]
    pub(crate) deadline: Duration,
    /// Heartbeat interval of the groups, in ms
    #[arg(long)]
    pub(crate) heartbeat: u64,
    #[arg(long)]
    pub(crate) launcher: u32,
}

fn parse_ranks(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(ranks) if (2..=64).contains(&ranks) && ranks % 2 == 0 => Ok(ranks),
        Ok(ranks) => Err(format!(
            "expected an even number of ranks from 2 to 64, found {ranks}: tensor-parallel groups are pairs"
        )),
        Err(_) => Err("expected an even number of ranks from 2 to 64".into()),
    }
}

impl RankOptions {
    /// The command line that makes a process this rank.
    pub(crate) fn arguments(&self) -> Vec<std::ffi::OsString> {
        let mut arguments: Vec<std::ffi::OsString> = vec![RANK_COMMAND.into()];
        let mut option = |name: &str, value: std::ffi::OsString| arguments.extend([name.into(), value]);
        option("--rank", self.rank.to_string().into());
        option("--ranks", self.ranks.to_string().into());
        option("--backend", self.backend.name().into());
        option("--store", self.store.clone().into());
        option("--deadline", self.deadline.as_secs_f64().to_string().into());
        option("--heartbeat", self.heartbeat.to_string().into());
        option("--launcher", self.launcher.to_string().into());
        if let Some(trace) = &self.trace {
            option("--trace", trace.into());
        }
        arguments
    }
}

//! What the demo can be told, and what it refuses before it starts anything.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Ranks to run, one process each: an even number from 2 to 64 [default: 4, or 2 on a host of 2 or 3 GPUs]
    #[arg(long, value_name = "N", value_parser = parse_ranks)]
    pub(crate) ranks: Option<u32>,
    /// What the ranks run on; auto takes real GPUs where there are at least 2, else the embedded device
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    pub(crate) backend: Backend,
    /// Allocation trace to replay instead of the recorded GPT-2 training run
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Port of the store on the loopback interface; 0 takes a free one
    #[arg(long, value_name = "P", default_value_t = 0)]
    pub(crate) port: u16,
    /// How long a rank waits for the others in any one step
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_deadline)]
    pub(crate) deadline: Duration,
    /// Leave this rank out, to see what the others make of it
    #[arg(long, value_name = "RANK")]
    pub(crate) absent: Option<u32>,
    /// Print the figures as one JSON object in the last line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    Auto,
    Sim,
    Cuda,
}

/// One rank's part, as the launcher tells it.
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
    #[arg(long, value_parser = parse_deadline)]
    pub(crate) deadline: Duration,
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

/// Seconds, fractions allowed; an hour at most.
fn parse_deadline(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected a number of seconds from 0.1 to 3600".into()),
    }
}

impl RankOptions {
    /// The command line that makes a process this rank.
    pub(crate) fn arguments(&self) -> Vec<std::ffi::OsString> {
        let mut arguments: Vec<std::ffi::OsString> = vec!["demo-rank".into()];
        let mut option = |name: &str, value: std::ffi::OsString| arguments.extend([name.into(), value]);
        option("--rank", self.rank.to_string().into());
        option("--ranks", self.ranks.to_string().into());
        option("--backend", self.backend.name().into());
        option("--store", self.store.clone().into());
        option("--deadline", self.deadline.as_secs_f64().to_string().into());
        option("--launcher", self.launcher.to_string().into());
        if let Some(trace) = &self.trace {
            option("--trace", trace.into());
        }
        arguments
    }
}

impl Backend {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Sim => "sim",
            Self::Cuda => "cuda",
        }
    }
}

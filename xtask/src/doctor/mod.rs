//! `cargo xtask doctor`: what this host has, what each crate can do with it, and what to change.
//!
//! | module | subject |
//! |---|---|
//! | `facts` | what was found, as plain data |
//! | `libraries` | which libraries there are, what each offers, which one programs take |
//! | `devices` | GPUs, how they reach each other, what their memory can do |
//! | `host` | shared memory, limits, sockets |
//! | `variables` | what NCCL and the driver read from the environment |
//! | `verdict` | from facts to findings and verdicts: pure |
//! | `report` | both, for a person |
//!
//! Nothing here needs the source tree, a GPU or a library. Foreign libraries are loaded in other processes, each
//! with a deadline, so that a broken one is a finding and no crash. The exit code is 0 when the host was examined,
//! whatever was found.
//!
//! The JSON object has the keys `cuda`, `nccl`, `devices`, `host`, `variables` (the facts; what could not be had is
//! an object with the one key `error`), `findings` (worst last: `weight` is `note`, `limit` or `fault`) and `crates`
//! (`outcome` is `works`, `limited` or `unavailable`).

mod devices;
mod facts;
mod host;
mod libraries;
mod report;
mod variables;
mod verdict;

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use cuda_driver::Driver;
use serde::Serialize;

use self::facts::{Facts, Tried};
use self::verdict::{Finding, Verdict};
use crate::abi::probe::Kind;
use crate::child;

/// Options of `cargo xtask doctor`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// One JSON object with all of it
    #[arg(long)]
    json: bool,
    /// How long a library may take to load, and the driver to answer, in seconds
    #[arg(long, default_value_t = 60.0, value_parser = seconds)]
    deadline: f64,
    /// Ask the driver for its devices and print them, for the process that reports
    #[arg(long, hide = true)]
    devices: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if Duration::try_from_secs_f64(seconds).is_ok() => Ok(seconds),
        _ => Err("expected a number of seconds".into()),
    }
}

/// Facts and what follows from them.
#[derive(Serialize)]
struct Examined {
    #[serde(flatten)]
    facts: Facts,
    findings: Vec<Finding>,
    crates: Vec<Verdict>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.devices {
        return child::answer(&devices::gather(&Driver::load()?)?);
    }
    let facts = gather(Duration::from_secs_f64(options.deadline));
    let (findings, crates) = verdict::judge(&facts);
    let examined = Examined { facts, findings, crates };
    if options.json {
        child::answer(&examined)
    } else {
        // A reader who has seen enough is no reason to panic.
        Ok(std::io::stdout().write_all(report::text(&examined).as_bytes())?)
    }
}

fn gather(limit: Duration) -> Facts {
    let cuda = libraries::gather(Kind::Cuda, limit);
    let devices = match cuda.taken.error() {
        // It would fail, or hang, the same way once more.
        Some(error) => Tried::Failed { error: error.to_owned() },
        None => child::ask(["doctor", "--devices"], limit).into(),
    };
    Facts {
        cuda,
        devices,
        nccl: libraries::gather(Kind::Nccl, limit),
        host: host::gather(),
        variables: variables::gather(),
    }
}

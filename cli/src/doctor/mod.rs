//! `lockstep doctor`: the facts about this host, the features of each crate on it, and remedies.
//!
//! | module | subject |
//! |---|---|
//! | `facts` | the facts as plain data |
//! | `libraries` | the installed libraries, their features, the ones that programs load |
//! | `devices` | GPUs, the links between them, features of their memory |
//! | `host` | shared memory, limits, sockets |
//! | `variables` | variables of the environment that NCCL and the driver read |
//! | `verdict` | from facts to findings and verdicts, without I/O |
//! | `report` | both, for a person |
//!
//! The command needs no source tree, no GPU and no library. Foreign libraries are loaded in other processes, each
//! with a deadline, so a broken one is a finding and not a crash. The exit code is 0 when the host was examined,
//! whatever was found.
//!
//! The JSON object has the keys `cuda`, `nccl`, `devices`, `host`, `variables` (the facts; a fact that could not be
//! obtained is an object with the one key `error`), `findings` (worst last: `weight` is `note`, `limit` or `fault`)
//! and `crates` (`outcome` has the words of the text).

mod devices;
mod facts;
mod host;
mod libraries;
mod report;
mod variables;
mod verdict;

use std::time::Duration;

use anyhow::Result;
use cuda_driver::Driver;
use serde::Serialize;

use self::facts::{Facts, Tried};
use self::verdict::{Finding, Verdict};
use crate::child;
use crate::output;
use crate::probe::Kind;
use crate::values;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Print everything as one JSON object
    #[arg(long)]
    json: bool,
    /// Time limit for loading a library and for each answer of the driver, in seconds from 0.1 to 3600
    #[arg(long, default_value = "60", value_parser = values::limit, allow_negative_numbers = true)]
    deadline: Duration,
    /// Print the driver's devices as JSON, for the process that reports
    #[arg(long, hide = true)]
    devices: bool,
}

/// The facts, the findings and the verdicts.
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
    let facts = gather(options.deadline);
    let (findings, crates) = verdict::judge(&facts);
    let examined = Examined { facts, findings, crates };
    if options.json { child::answer(&examined) } else { output::print(&report::text(&examined)) }
}

fn gather(limit: Duration) -> Facts {
    let cuda = libraries::gather(Kind::Cuda, limit);
    let devices = match cuda.taken.error() {
        // The query would fail, or hang, for the same reason.
        Some(_) => Tried::Failed { error: verdict::NO_DRIVER.into() },
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

//! Progress of a running job's ranks, queried over its store.

use std::{fmt, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use process_group::{
    ProcessGroup,
    record::{LastCall, MemberProgress, Progress},
    store::Deadline,
};
use serde::Serialize;

use crate::job_secret::store_of_environment;
use crate::plain;

#[derive(clap::Args)]
pub(super) struct Options {
    /// Address of the job's store, HOST:PORT; its secret is read from PROCESS_GROUP_STORE_SECRET or …_SECRET_FILE
    address: String,
    /// Name of the job's first group
    #[arg(long, default_value = "world")]
    group: String,
    /// Epoch of the job: how often it was restarted
    #[arg(long, default_value_t = 0)]
    epoch: u64,
    /// Time limit for the answers of the ranks, in seconds
    #[arg(long, default_value_t = 3.0)]
    wait: f64,
    /// Print one object of JSON for each group
    #[arg(long)]
    json: bool,
}

/// A group in JSON.
#[derive(Serialize)]
struct Group<'a> {
    group: &'a str,
    members: Vec<Member<'a>>,
}

/// A member of a group in JSON. The other fields are absent if it did not answer.
#[derive(Serialize)]
struct Member<'a> {
    rank: usize,
    answered: bool,
    #[serde(flatten)]
    last: Option<Last<'a>>,
}

/// A member's last call in JSON.
#[derive(Serialize)]
struct Last<'a> {
    collectives: u64,
    messages: u64,
    operation: Option<&'a str>,
    completed: bool,
    age_ms: f64,
    site: &'a str,
}

impl<'a> From<&'a Progress> for Group<'a> {
    fn from(progress: &'a Progress) -> Self {
        let last = |last: &'a LastCall| Last {
            collectives: last.collectives,
            messages: last.messages,
            operation: last.operation.as_deref(),
            completed: last.is_completed,
            age_ms: last.age.as_secs_f64() * 1e3,
            site: &last.site,
        };
        let members = progress.members.iter().map(|member| Member {
            rank: member.rank,
            answered: member.last.is_some(),
            last: member.last.as_ref().map(last),
        });
        Self { group: &progress.group, members: members.collect() }
    }
}

pub(super) fn run(options: &Options) -> Result<()> {
    let wait = Duration::try_from_secs_f64(options.wait).context("--wait")?;
    let store = Arc::new(store_of_environment()?.connect(&options.address, Deadline::after(wait))?);
    let groups = ProcessGroup::observe(store, &options.group, options.epoch, Deadline::after(wait));
    let groups = groups.with_context(|| {
        let Options { address, group, epoch, .. } = options;
        format!("no group {group} of epoch {epoch} answers at {address}")
    })?;
    for group in &groups {
        match options.json {
            true => println!("{}", serde_json::to_string(&Group::from(group))?),
            false => print!("{}", plain::lines(&View(group).to_string())),
        }
    }
    Ok(())
}

/// A group, formatted for people.
struct View<'a>(&'a Progress);

impl fmt::Display for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(group) = self;
        writeln!(f, "{}", group.group)?;
        for MemberProgress { rank, last, .. } in &group.members {
            match last {
                None => writeln!(f, "  rank {rank:<4} does not answer")?,
                Some(last) => {
                    let (collectives, messages) = (last.collectives, last.messages);
                    writeln!(f, "  rank {rank:<4} collective {collectives:<8} message {messages:<8} {last}")?;
                }
            }
        }
        writeln!(f, "  {group}")
    }
}

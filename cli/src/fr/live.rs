//! Progress of a running job's ranks, queried over its store.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use anyhow::Result;
use process_group::{
    ProcessGroup,
    agreement::Ranks,
    group::GroupError,
    record::{LastCall, MemberProgress, Progress},
    store::{Deadline, StoreError},
};
use serde::Serialize;

use crate::job_secret::store_of_environment;
use crate::plain;
use crate::values;

#[derive(clap::Args)]
pub(super) struct Options {
    /// Address of the job's store, HOST:PORT; its secret is read from PROCESS_GROUP_STORE_SECRET or …_SECRET_FILE
    address: String,
    /// Name of the job's first group
    #[arg(long, default_value = "world")]
    group: String,
    /// Epoch of the job: how often it was restarted
    #[arg(long, default_value_t = 0, value_parser = values::whole::<u64>("a number of restarts", 0..=u64::MAX), allow_negative_numbers = true)]
    epoch: u64,
    /// Time limit for the answers of the ranks, in seconds from 0.1 to 3600
    #[arg(long, default_value = "3", value_parser = values::limit, allow_negative_numbers = true)]
    wait: Duration,
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
            age_ms: last.age.as_micros() as f64 / 1e3,
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
    let wait = options.wait;
    let store = Arc::new(store_of_environment()?.connect(&options.address, Deadline::after(wait))?);
    let groups = ProcessGroup::observe(store, &options.group, options.epoch, Deadline::after(wait));
    let groups = groups.map_err(|error| {
        let problem = problem(&error, options);
        anyhow::Error::new(error).context(problem)
    })?;
    for group in &groups {
        match options.json {
            true => println!("{}", serde_json::to_string(&Group::from(group))?),
            false => print!("{}", plain::lines(&View(group).to_string())),
        }
    }
    Ok(())
}

/// Explains why no group has answered.
fn problem(error: &GroupError, options: &Options) -> String {
    let Options { address, group, epoch, .. } = options;
    match error {
        GroupError::Store(StoreError::HostDied { .. }) => {
            "the job has ended, or its store died, before the ranks answered".into()
        }
        _ => format!("no group {group} of epoch {epoch} answers at {address}; check --group and --epoch"),
    }
}

/// A group, formatted for people.
struct View<'a>(&'a Progress);

/// A member's last call.
struct Call<'a>(&'a LastCall);

impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LastCall { operation, is_completed, age, site, .. } = self.0;
        let Some(operation) = operation else { return f.write_str("no call that it remembers") };
        let done = if *is_completed { "done" } else { "not done" };
        write!(f, "{operation} at {site}, {} ago, {done}", short(*age))
    }
}

/// Formats a duration in ms below a second, otherwise in s.
fn short(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        ..0.01 => format!("{:.2} ms", seconds * 1e3),
        ..1.0 => format!("{:.0} ms", seconds * 1e3),
        ..60.0 => format!("{seconds:.1} s"),
        _ => format!("{seconds:.0} s"),
    }
}

/// Sums up the members: those that did not answer, those that are behind, or those whose last call is not done.
fn summary(group: &Progress) -> String {
    let silent: Vec<_> =
        group.members.iter().filter(|member| member.last.is_none()).map(|member| member.rank).collect();
    let mut behind: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for MemberProgress { rank, last, .. } in group.not_joined() {
        if let Some(last) = last {
            behind.entry(last.collectives + 1).or_default().push(*rank);
        }
    }
    let is_open = |last: &LastCall| last.operation.is_some() && !last.is_completed;
    let open = group.members.iter().filter(|member| member.last.as_ref().is_some_and(is_open));
    let open: Vec<_> = open.map(|member| member.rank).collect();
    let mut parts = Vec::new();
    if !silent.is_empty() {
        parts.push(format!("no answer of {}", Ranks(&silent)));
    }
    for (collective, ranks) in &behind {
        let has = if ranks.len() == 1 { "has" } else { "have" };
        parts.push(format!("{} {has} not joined collective {collective} of {}", Ranks(ranks), group.group));
    }
    if behind.is_empty() {
        let who = if silent.is_empty() { "all members" } else { "all others" };
        parts.push(match group.front() {
            0 => format!("no member of {} has called a collective", group.group),
            front => format!("{who} of {} have called collective {front}", group.group),
        });
        if !open.is_empty() {
            parts.push(format!("the last call is not done on {}", Ranks(&open)));
        }
    }
    parts.join("; ")
}

impl fmt::Display for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(group) = self;
        writeln!(f, "{}", group.group)?;
        for MemberProgress { rank, last, .. } in &group.members {
            match last {
                None => writeln!(f, "  rank {rank:<4} does not answer")?,
                Some(last) => {
                    let (collectives, messages) = (last.collectives, last.messages);
                    let call = Call(last);
                    writeln!(f, "  rank {rank:<4} collective {collectives:<8} message {messages:<8} {call}")?;
                }
            }
        }
        writeln!(f, "  {}", summary(group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_durations_are_in_milliseconds() {
        for (microseconds, expected) in [
            (0, "0.00 ms"),
            (1_234, "1.23 ms"),
            (40_400, "40 ms"),
            (999_400, "999 ms"),
            (1_500_000, "1.5 s"),
            (90_400_000, "90 s"),
        ] {
            assert_eq!(short(Duration::from_micros(microseconds)), expected);
        }
    }
}

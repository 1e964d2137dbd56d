//! Progress of a running job's ranks, queried over its store.

use std::{collections::BTreeMap, fmt, sync::Arc, thread, time::Duration};

use anyhow::{Result, bail};
use process_group::{
    ProcessGroup,
    agreement::Ranks,
    error_text,
    group::{GroupError, GroupErrorKind},
    record::{CallCounts, LastCall, Progress},
    store::{Deadline, Distrust, StoreError},
};
use serde::{Serialize, Serializer};

use crate::exit::UsageError;
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
    /// Time limit for the answers of the ranks, each time they are asked, in seconds from 0.1 to 3600
    #[arg(long, default_value = "3", value_parser = values::limit, allow_negative_numbers = true)]
    wait: Duration,
    /// Print one object of JSON for each group
    #[arg(long)]
    json: bool,
}

/// Time between the last answer to a question and the next question.
const PAUSE: Duration = Duration::from_millis(500);

/// The error if the store answers, but no member of any group.
const NO_MEMBER: &str = "no member of any group answered: the groups have ended or were aborted, the ranks are stopped, \
                         or --wait is too short; look at the job's output";

/// Returns the start of the error if the store and this process do not have the same secret.
fn secret_advice(distrust: &Distrust) -> &'static str {
    match distrust {
        Distrust::NotKept | Distrust::Unanswered => {
            "the job's store has no secret: unset PROCESS_GROUP_STORE_SECRET and PROCESS_GROUP_STORE_SECRET_FILE"
        }
        _ => "PROCESS_GROUP_STORE_SECRET or PROCESS_GROUP_STORE_SECRET_FILE must give the job's secret",
    }
}

/// A group, as its members describe it.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Group {
    #[serde(rename = "group")]
    name: String,
    members: Vec<Member>,
    /// Ranks of the members that have called the fewest collectives and graph launches, if other members have called
    /// more.
    not_joined: Vec<usize>,
    /// The latest calls of members by their answers in the first round.
    #[serde(skip)]
    front: CallCounts,
    /// Ranks of the members that were behind in the first round, in a group without answers in the second.
    unconfirmed: Vec<usize>,
}

/// A member of a group.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Member {
    /// Its rank of the job.
    rank: usize,
    answered: bool,
    /// `None` if it did not answer.
    #[serde(flatten)]
    last: Option<Last>,
}

/// A member's last call.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Last {
    collectives: u64,
    messages: u64,
    graph_launches: u64,
    operation: Option<String>,
    completed: bool,
    #[serde(rename = "age_ms", serialize_with = "milliseconds")]
    age: Duration,
    site: String,
}

fn milliseconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_micros() as f64 / 1e3)
}

impl From<LastCall> for Last {
    fn from(last: LastCall) -> Self {
        let LastCall { collectives, messages, graph_launches, operation, .. } = last;
        let (completed, age, site) = (last.is_completed, last.age, last.site);
        Self { collectives, messages, graph_launches, operation, completed, age, site }
    }
}

impl Member {
    fn new(rank: usize, last: Option<Last>) -> Self {
        Self { rank, answered: last.is_some(), last }
    }

    /// Returns the first calls that the member has not made but others have; `None` if there are none, or if it did not
    /// answer.
    fn next(&self, front: CallCounts) -> Option<String> {
        self.last.as_ref()?.counts().next_before(front)
    }
}

impl Last {
    fn counts(&self) -> CallCounts {
        CallCounts::new(self.collectives, self.graph_launches)
    }
}

impl From<Progress> for Group {
    fn from(progress: Progress) -> Self {
        let members = progress.members.into_iter();
        let members = members.map(|member| Member::new(member.rank, member.last.map(Last::from)));
        Self::first(progress.group, members.collect())
    }
}

impl Group {
    /// The group by the answers of the first round.
    fn first(name: String, members: Vec<Member>) -> Self {
        let called = members.iter().filter_map(|member| member.last.as_ref());
        let front = called.map(Last::counts).fold(CallCounts::default(), CallCounts::max);
        Self::new(name, members, front)
    }

    fn new(name: String, members: Vec<Member>, front: CallCounts) -> Self {
        // As `Progress::not_joined`: a member that is behind, but not last, may itself wait for the last ones.
        let steps = |member: &Member| member.last.as_ref().map(|last| last.counts().total());
        let fewest = members.iter().filter_map(steps).min();
        let last = members.iter().filter(|member| member.next(front).is_some() && steps(member) == fewest);
        let not_joined = last.map(|member| member.rank).collect();
        Self { name, members, not_joined, front, unconfirmed: Vec::new() }
    }

    /// Returns true if both are the same group of the job.
    fn is(&self, other: &Self) -> bool {
        let ranks = |group: &Self| group.members.iter().map(|member| member.rank).collect::<Vec<_>>();
        self.name == other.name && ranks(self) == ranks(other)
    }

    /// Returns the group with the answers of a second round; `None` if no member answered then.
    ///
    /// Members answer at different times, so a member that seemed behind may have joined since. The second round begins
    /// after all answers of the first. So a member that is before `front` in the second round has not joined.
    fn confirmed(self, second: Option<&Self>) -> Self {
        let Some(second) = second else {
            return Self { unconfirmed: self.not_joined, not_joined: Vec::new(), ..self };
        };
        let members = self.members.into_iter().zip(&second.members).map(|(member, again)| {
            // A member that had joined may have left the group by the second round.
            if again.answered || self.not_joined.contains(&member.rank) { again.clone() } else { member }
        });
        Self::new(self.name, members.collect(), self.front)
    }
}

pub(super) fn run(options: &Options) -> Result<()> {
    let wait = options.wait;
    let store = match store_of_environment()?.connect(&options.address, Deadline::after(wait)) {
        Err(StoreError::Distrusted { address, source }) => {
            let advice = secret_advice(&source);
            return Err(anyhow::Error::new(StoreError::Distrusted { address, source }).context(advice));
        }
        Err(error @ StoreError::Address { .. }) => return Err(UsageError(error_text(&error)).into()),
        connected => Arc::new(connected?),
    };
    let ask = || ProcessGroup::observe(store.clone(), &options.group, options.epoch, Deadline::after(wait));
    let groups = match ask_twice(ask, || thread::sleep(PAUSE)) {
        Ok(groups) => groups,
        Err(error) => {
            let problem = problem(&error, options);
            if is_absent(&error) {
                bail!(problem);
            }
            return Err(anyhow::Error::new(error).context(problem));
        }
    };
    if groups.is_empty() {
        bail!(NO_MEMBER);
    }
    for group in &groups {
        match options.json {
            true => println!("{}", serde_json::to_string(group)?),
            false => print!("{}", plain::lines(&group.to_string())),
        }
    }
    Ok(())
}

/// Asks the ranks, and asks again after `pause` if a member of a group seems to be behind.
fn ask_twice<G: Into<Group>, E>(
    mut ask: impl FnMut() -> Result<Vec<G>, E>,
    pause: impl FnOnce(),
) -> Result<Vec<Group>, E> {
    let groups: Vec<Group> = ask()?.into_iter().map(Into::into).collect();
    if groups.iter().all(|group| group.not_joined.is_empty()) {
        return Ok(groups);
    }
    pause();
    // If the job has ended, nobody answers.
    let second: Vec<Group> = ask().unwrap_or_default().into_iter().map(Into::into).collect();
    let confirm = |group: Group| match group.not_joined.is_empty() {
        true => group,
        false => {
            let again = second.iter().find(|again| again.is(&group));
            group.confirmed(again)
        }
    };
    Ok(groups.into_iter().map(confirm).collect())
}

/// Returns true if no rank has entered a group into the store. The error names a key of the store, which says nothing
/// to a user.
fn is_absent(error: &GroupError) -> bool {
    matches!(error.kind(), GroupErrorKind::Store(StoreError::Timeout { .. }))
}

/// Explains why no group has answered.
fn problem(error: &GroupError, options: &Options) -> String {
    let Options { address, group, epoch, .. } = options;
    match error.kind() {
        GroupErrorKind::Store(StoreError::HostDied { .. }) => {
            "the job has ended, or its store died, before the ranks answered".into()
        }
        _ => format!(
            "no group {group} of epoch {epoch} answers at {address}; check --group and --epoch, or not all ranks have \
             joined yet, or the program has no process group"
        ),
    }
}

impl fmt::Display for Last {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { collectives, messages, graph_launches, operation, completed, age, site } = self;
        let Some(operation) = operation else {
            return f.write_str(match (collectives, messages, graph_launches) {
                (0, 0, 0) => "no call",
                _ => "its recorder has none of its calls any more",
            });
        };
        let done = if *completed { "done" } else { "not done" };
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

/// Returns the state of a group in one line. It names the members without an answer and the members that are behind. If
/// none is behind, it names those whose last call is not done.
fn summary(group: &Group) -> String {
    let name = &group.name;
    let silent = ranks_of(group.members.iter().filter(|member| !member.answered));
    let mut parts = Vec::new();
    if !silent.is_empty() {
        parts.push(format!("no answer of {}", Ranks(&silent)));
    }
    for (calls, ranks) in next_calls(group, &group.not_joined) {
        let has = if ranks.len() == 1 { "has" } else { "have" };
        parts.push(format!("{} {has} not joined {calls} of {name}", Ranks(&ranks)));
    }
    for (calls, ranks) in next_calls(group, &group.unconfirmed) {
        let had = format!("{} had not joined {calls} of {name}", Ranks(&ranks));
        parts.push(format!("{had} when asked first, and the group did not answer a second time"));
    }
    if group.not_joined.is_empty() && group.unconfirmed.is_empty() {
        let who = if silent.is_empty() { "all members" } else { "all others" };
        parts.push(group.front.made_by(who, name));
        let is_open = |last: &Last| last.operation.is_some() && !last.completed;
        let open = ranks_of(group.members.iter().filter(|member| member.last.as_ref().is_some_and(is_open)));
        if !open.is_empty() {
            parts.push(format!("the last call is not done on {}", Ranks(&open)));
        }
    }
    parts.join("; ")
}

fn ranks_of<'a>(members: impl Iterator<Item = &'a Member>) -> Vec<usize> {
    members.map(|member| member.rank).collect()
}

/// Returns the first calls that each of these ranks has not made, with all such ranks.
fn next_calls(group: &Group, ranks: &[usize]) -> BTreeMap<String, Vec<usize>> {
    let mut next: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for member in group.members.iter().filter(|member| ranks.contains(&member.rank)) {
        if let Some(calls) = member.next(group.front) {
            next.entry(calls).or_default().push(member.rank);
        }
    }
    next
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.name)?;
        for Member { rank, last, .. } in &self.members {
            match last {
                None => writeln!(f, "  rank {rank:<4} does not answer")?,
                Some(last) => {
                    let Last { collectives, messages, graph_launches, .. } = last;
                    write!(f, "  rank {rank:<4} collective {collectives:<8} message {messages:<8} ")?;
                    if self.front.graph_launches > 0 {
                        write!(f, "graph launch {graph_launches:<8} ")?;
                    }
                    writeln!(f, "{last}")?;
                }
            }
        }
        writeln!(f, "  {}", summary(self))
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

    /// The answers of a group's ranks: the number of collectives, or `None` if the rank did not answer.
    fn answers(collectives: &[Option<u64>]) -> Group {
        let member = |(rank, collectives): (usize, &Option<u64>)| {
            let operation = Some("all_reduce".into());
            let (age, site) = (Duration::from_millis(5), "a.rs:7".into());
            let last = collectives.map(|collectives| Last {
                collectives,
                messages: 0,
                graph_launches: 0,
                operation,
                completed: true,
                age,
                site,
            });
            Member::new(rank, last)
        };
        Group::first("world".into(), collectives.iter().enumerate().map(member).collect())
    }

    /// Asks in rounds with these answers. A round of `None` fails. Returns the summary of the only group.
    fn verdict(rounds: &[Option<&[Option<u64>]>]) -> String {
        let mut rounds = rounds.iter();
        let ask = || match rounds.next().unwrap() {
            Some(round) => Ok(vec![answers(round)]),
            None => Err(()),
        };
        let groups = ask_twice(ask, || {}).unwrap();
        assert_eq!(rounds.len(), 0, "rounds left");
        summary(&groups[0])
    }

    #[test]
    fn a_rank_that_has_joined_by_the_second_round_is_not_behind() {
        let all = "all members of world have called collective";
        assert_eq!(verdict(&[Some(&[Some(3), Some(3)])]), format!("{all} 3"));
        assert_eq!(verdict(&[Some(&[Some(2), Some(3)]), Some(&[Some(3), Some(3)])]), format!("{all} 3"));
        // The job goes on between the answers of the second round, too.
        assert_eq!(verdict(&[Some(&[Some(2), Some(9)]), Some(&[Some(9), Some(14)])]), format!("{all} 9"));
    }

    #[test]
    fn calls_that_all_have_made_are_named() {
        let group = |collectives: u64, launches: u64| {
            let mut group = answers(&[Some(collectives), Some(collectives)]);
            group
                .members
                .iter_mut()
                .for_each(|member| member.last.as_mut().unwrap().graph_launches = launches);
            summary(&Group::first(group.name, group.members))
        };
        assert_eq!(group(0, 0), "no member of world has called a collective");
        assert_eq!(group(0, 2), "all members of world have marked graph launch 2");
        assert_eq!(group(3, 2), "all members of world have called collective 3 and marked graph launch 2");
    }

    #[test]
    fn a_rank_that_is_behind_in_both_rounds_has_not_joined() {
        let behind = |collective| format!("rank 0 has not joined collective {collective} of world");
        assert_eq!(verdict(&[Some(&[Some(2), Some(3)]), Some(&[Some(2), Some(3)])]), behind(3));
        assert_eq!(verdict(&[Some(&[Some(2), Some(9)]), Some(&[Some(5), Some(9)])]), behind(6));
        assert_eq!(
            verdict(&[Some(&[Some(2), None, Some(3)]), Some(&[Some(2), None, Some(3)])]),
            format!("no answer of rank 1; {}", behind(3))
        );
    }

    #[test]
    fn a_rank_that_answers_once_is_not_judged() {
        let first: &[Option<u64>] = &[Some(2), Some(3)];
        let unconfirmed = "rank 0 had not joined collective 3 of world when asked first, and the group did not \
                           answer a second time";
        assert_eq!(verdict(&[Some(first), None]), unconfirmed);
        assert_eq!(
            verdict(&[Some(first), Some(&[None, Some(3)])]),
            "no answer of rank 0; all others of world have called collective 3"
        );
        // The rank that had joined may be done.
        assert_eq!(
            verdict(&[Some(first), Some(&[Some(3), None])]),
            "all members of world have called collective 3"
        );
    }

    #[test]
    fn json_has_the_last_call_and_the_ranks_behind() {
        let group = serde_json::to_value(answers(&[Some(1), None, Some(2)])).unwrap();
        assert_eq!(group["not_joined"], serde_json::json!([0]));
        assert_eq!(group["members"][1], serde_json::json!({"rank": 1, "answered": false}));
        let last = serde_json::json!({
            "rank": 2, "answered": true, "collectives": 2, "messages": 0, "graph_launches": 0, "operation": "all_reduce",
            "completed": true, "age_ms": 5.0, "site": "a.rs:7",
        });
        assert_eq!(group["members"][2], last);
    }
}

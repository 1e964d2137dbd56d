//! The progress of a group's members, as each member reports it when asked.

use std::{
    fmt::{self, Write as _},
    time::Duration,
};

use bootstrap::wire::wire_struct;

use super::{Entry, Operation};
use crate::messages::message;

/// The progress of the members of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The group's name.
    pub group: String,
    /// The group's members, ordered by rank in the group.
    pub members: Vec<MemberProgress>,
}

/// The progress of one member.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberProgress {
    /// The member's rank in the job.
    pub rank: usize,
    /// The member's last call in the group. `None` if the member did not answer.
    pub last: Option<LastCall>,
}

/// A member's last call in a group.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastCall {
    /// Number of collectives that the member has called in the group.
    pub collectives: u64,
    /// Number of messages that the member has sent or received in the group.
    pub messages: u64,
    /// Number of launches of captured graphs that the member has marked with
    /// [`track_graph_launch`](crate::ProcessGroup::track_graph_launch).
    pub graph_launches: u64,
    /// The operation of the last call. For a send or a receive, also the peer's rank in the group. `None` if the
    /// member has made no call in the group, or if the recorder no longer holds the call.
    pub operation: Option<String>,
    /// True if the last call's operation is complete.
    pub is_completed: bool,
    /// Time between the last call and the member's answer. 0 if `operation` is `None`.
    pub age: Duration,
    /// Call site of the last call, as `file:line`. Empty if `operation` is `None`.
    pub site: String,
}

impl Progress {
    /// Returns the largest number of collectives, and of graph launches, that any member has called in the group.
    #[must_use]
    pub fn front(&self) -> CallCounts {
        let called = self.members.iter().filter_map(|member| member.last.as_ref());
        called.map(LastCall::counts).fold(CallCounts::default(), CallCounts::max)
    }

    /// Returns the members for which the others wait: those that have called the fewest collectives and graph launches,
    /// if other members have called more, and the members that did not answer. A member that is behind others, but not
    /// last, may itself wait for the last ones, and is not returned.
    pub fn not_joined(&self) -> impl Iterator<Item = &MemberProgress> {
        let steps = |last: &LastCall| last.counts().total();
        let called = self.members.iter().filter_map(|member| member.last.as_ref()).map(steps);
        let (fewest, most) = (called.clone().min(), called.max());
        let is_last = move |last: &LastCall| Some(steps(last)) < most && Some(steps(last)) == fewest;
        self.members.iter().filter(move |member| member.last.as_ref().is_none_or(is_last))
    }
}

impl LastCall {
    /// Returns the member's numbers of collectives and graph launches.
    #[must_use]
    pub fn counts(&self) -> CallCounts {
        CallCounts { collectives: self.collectives, graph_launches: self.graph_launches }
    }
}

/// The number of collectives, and of marked graph launches, that members of a group have called. Unlike messages, all
/// members make these calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallCounts {
    /// Number of collectives.
    pub collectives: u64,
    /// Number of graph launches.
    pub graph_launches: u64,
}

impl CallCounts {
    /// Makes the counts of a member that has called these collectives and graph launches.
    #[must_use]
    pub const fn new(collectives: u64, graph_launches: u64) -> Self {
        Self { collectives, graph_launches }
    }

    /// Returns the sum of both numbers.
    #[must_use]
    pub fn total(self) -> u64 {
        self.collectives + self.graph_launches
    }

    /// Returns the larger number of each kind.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            collectives: self.collectives.max(other.collectives),
            graph_launches: self.graph_launches.max(other.graph_launches),
        }
    }

    /// Describes the first calls that a member with these counts has not made, but a member with the counts `front`
    /// has: `collective 3 and graph launch 2`. Returns `None` if there are none.
    #[must_use]
    pub fn next_before(self, front: Self) -> Option<String> {
        let collective =
            (self.collectives < front.collectives).then(|| format!("collective {}", self.collectives + 1));
        let launch = (self.graph_launches < front.graph_launches)
            .then(|| format!("graph launch {}", self.graph_launches + 1));
        match (collective, launch) {
            (Some(collective), Some(launch)) => Some(format!("{collective} and {launch}")),
            (collective, launch) => collective.or(launch),
        }
    }

    /// Describes the last calls of these counts, which `members` of `group` have made. `members` is for example
    /// `all members`.
    #[must_use]
    pub fn made_by(self, members: &str, group: &str) -> String {
        match (self.collectives, self.graph_launches) {
            (0, 0) => format!("no member of {group} has called a collective"),
            (0, launch) => format!("{members} of {group} have marked graph launch {launch}"),
            (call, 0) => format!("{members} of {group} have called collective {call}"),
            (call, launch) => {
                format!("{members} of {group} have called collective {call} and marked graph launch {launch}")
            }
        }
    }
}

impl Progress {
    /// Maximum number of members whose unfinished call is described.
    const NAMED: usize = 8;

    /// Writes the members whose last call is not complete. Used when all members have answered, with the same
    /// total number of collectives and graph launches.
    fn not_done(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = |member: &MemberProgress| {
            member.last.clone().filter(|last| last.operation.is_some() && !last.is_completed)
        };
        let open: Vec<_> =
            self.members.iter().filter_map(|member| Some((member.rank, open(member)?))).collect();
        for (rank, last) in open.iter().take(Self::NAMED) {
            write!(f, "; rank {rank}: {last}")?;
        }
        match open.len().saturating_sub(Self::NAMED) {
            0 => Ok(()),
            more => write!(f, "; and {more} more whose last call is not done"),
        }
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut missing = self.not_joined().peekable();
        if missing.peek().is_none() {
            f.write_str(&self.front().made_by("all members", &self.group))?;
            return self.not_done(f);
        }
        for (place, member) in missing.enumerate() {
            let separator = if place > 0 { "; " } else { "" };
            write!(f, "{separator}rank {} ", member.rank)?;
            match &member.last {
                None => write!(f, "does not answer")?,
                Some(last) => {
                    let next = last.counts().next_before(self.front()).unwrap_or_default();
                    write!(f, "has not joined {next} of {}: {last}", self.group)?;
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for LastCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(operation) = &self.operation else {
            return f.write_str(match (self.collectives, self.messages, self.graph_launches) {
                (0, 0, 0) => "it has made no call of the group",
                _ => "its recorder has none of its calls any more",
            });
        };
        let done = if self.is_completed { "done" } else { "not done" };
        write!(f, "its last call was {operation} at {}, {:.1?} ago, {done}", self.site, self.age)
    }
}

impl Entry {
    /// Returns the operation's name, followed by the peer's rank in the group for a send or a receive.
    pub(super) fn words(&self) -> String {
        let (name, peer) = (self.operation.name(), self.peer.unwrap_or_default());
        match self.operation {
            Operation::Send => format!("{name} to {peer}"),
            Operation::Recv => format!("{name} from {peer}"),
            _ => name.to_owned(),
        }
    }

    /// Describes the call with all arguments that members must agree on.
    pub(crate) fn description(&self) -> String {
        let mut words = self.operation.name().to_owned();
        let count = match self.operation {
            // The lengths of these collectives may differ between members.
            Operation::AllToAllList | Operation::GatherList | Operation::ScatterList => None,
            Operation::ReduceScatter | Operation::AllToAll | Operation::Scatter => {
                Some(self.send.max(self.receive))
            }
            _ => Some(self.send),
        };
        if let Some(count) = count {
            let _ = write!(words, " of {count}");
        }
        if let Some(dtype) = self.dtype {
            let _ = write!(words, " {dtype}");
        }
        if let Some(reduction) = self.reduction {
            let _ = write!(words, " by {reduction}");
        }
        if let Some(root) = self.peer {
            let _ = write!(words, " with root {root}");
        }
        let _ = match &self.places {
            [None, None] => Ok(()),
            [Some(send), Some(receive)] if send == receive => {
                write!(words, ", send and receive buffers at offset {} in {}", send.offset, send.segment)
            }
            [Some(send), Some(receive)] if send.segment == receive.segment => write!(
                words,
                ", send buffer at offset {} and receive buffer at offset {} in {}",
                send.offset, receive.offset, send.segment
            ),
            [send, receive] => {
                [("send", send), ("receive", receive)].into_iter().try_for_each(|(buffer, place)| match place
                {
                    Some(place) => {
                        write!(words, ", {buffer} buffer at offset {} in {}", place.offset, place.segment)
                    }
                    None => Ok(()),
                })
            }
        };
        words
    }
}

/// A rank's answer about one of its groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) id: String,
    pub(super) name: String,
    /// The members' ranks in the job.
    pub(super) ranks: Vec<usize>,
    pub(super) last: LastCall,
}

/// A rank's answers to one question, one for each of its groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answers {
    pub(super) all: Vec<Answer>,
}

wire_struct!(LastCall { collectives, messages, graph_launches, operation, is_completed, age, site });
wire_struct!(MemberProgress { rank, last });
wire_struct!(Progress { group, members });
wire_struct!(Answer { id, name, ranks, last });
wire_struct!(Answers { all });
message!(Answers, ANSWERS);

#[cfg(test)]
mod tests {
    use super::*;
    use bootstrap::wire::Message;
    use proptest::prelude::*;

    fn answer() -> impl Strategy<Value = Answer> {
        let last =
            (any::<[u64; 3]>(), prop::option::of("[a-z_]{1,9}"), any::<bool>(), any::<u32>(), "[ -~]{0,9}");
        let last = last.prop_map(|(counts, operation, is_completed, age, site)| LastCall {
            collectives: counts[0],
            messages: counts[1],
            graph_launches: counts[2],
            operation,
            is_completed,
            age: Duration::from_micros(age.into()),
            site,
        });
        let ranks = prop::collection::vec(any::<usize>(), 1..5);
        ("[0-9]{1,3}\\.[0-9]", "[ -~é]{0,9}", ranks, last).prop_map(|(id, name, ranks, last)| Answer {
            id,
            name,
            ranks,
            last,
        })
    }

    #[test]
    fn a_call_that_all_have_made_is_named_where_it_is_not_done() {
        let member = |rank: usize| MemberProgress {
            rank,
            last: Some(LastCall {
                collectives: 3,
                messages: 1,
                graph_launches: 0,
                operation: Some("recv from 1".into()),
                is_completed: rank == 1,
                age: Duration::from_secs(2),
                site: "a.rs:7".into(),
            }),
        };
        let mut progress = Progress { group: "world".into(), members: (0..2).map(member).collect() };
        let both = "all members of world have called collective 3";
        let first = "; rank 0: its last call was recv from 1 at a.rs:7, 2.0s ago, not done";
        assert_eq!(progress.to_string(), format!("{both}{first}"));
        let last = progress.members.iter_mut().filter_map(|member| member.last.as_mut());
        last.for_each(|last| last.graph_launches = 2);
        assert_eq!(progress.to_string(), format!("{both} and marked graph launch 2{first}"));
        let last = progress.members.iter_mut().filter_map(|member| member.last.as_mut());
        last.for_each(|last| last.collectives = 0);
        assert_eq!(progress.to_string(), format!("all members of world have marked graph launch 2{first}"));
        progress.members = (0..2).map(member).collect();
        progress.members.extend((2..20).map(member));
        assert!(progress.to_string().ends_with("; and 11 more whose last call is not done"), "{progress}");
    }

    #[test]
    fn a_member_that_is_behind_but_not_last_is_not_named() {
        let member = |(rank, collectives): (usize, u64)| MemberProgress {
            rank,
            last: (collectives > 0).then(|| LastCall {
                collectives,
                messages: 0,
                graph_launches: 0,
                operation: None,
                is_completed: false,
                age: Duration::ZERO,
                site: String::new(),
            }),
        };
        let not_joined = |collectives: [u64; 4]| {
            let members = (0..).zip(collectives).map(member).collect();
            let progress = Progress { group: "world".into(), members };
            progress.not_joined().map(|member| member.rank).collect::<Vec<_>>()
        };
        assert_eq!(not_joined([12, 9, 11, 9]), [1, 3]);
        assert_eq!(not_joined([12, 9, 11, 0]), [1, 3]);
        assert_eq!(not_joined([12, 12, 12, 12]), [0; 0]);
    }

    proptest! {
        #[test]
        fn answers_round_trip(all in prop::collection::vec(answer(), 0..4)) {
            let answers = Answers { all };
            prop_assert_eq!(Answers::from_bytes(&answers.to_bytes()), Ok(answers));
        }
    }
}

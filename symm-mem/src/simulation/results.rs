//! The results of *meetings*, as ranks get them. A meeting is one agreement among ranks. Further terms, such as
//! *record*, *log*, *poisoned* and *lost store*, are defined in [`super`].

use crate::{
    agreement::{self, Agreed, COMMIT_FLOOR, Plain, Poison, RETIREMENT_FLOOR, Refusal, Retired},
    exchange::{ExchangeRefusal, protocol as exchange},
    rendezvous::{RendezvousRefusal, protocol},
};

/// The kind of a meeting. The number is the uid of the group whose members take part. In a meeting of a kind without a
/// number, all ranks of the domain take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A commit of the [first pool](super::rank::Rank::pool) of the ranks.
    Commit(u64),
    /// A commit of the [second pool](super::rank::Rank::second) of the ranks.
    Second(u64),
    /// The agreement on whether the members keep their plain registrations (`ncclCommRegister`). It follows a commit
    /// without windows.
    Plain(u64),
    /// A retirement: all ranks free the memory of the same segments.
    Retire,
    /// The agreement on a length in bytes, for an allocation.
    Length,
    /// A rendezvous: the members map each other's memory.
    Meet(u64),
    /// An [exchange](super::exchanges): the members agree on a plan of one-sided transfers.
    Exchange(u64),
}

impl Kind {
    /// Returns the uid of the group whose members take part, or `None` if all ranks of the domain do.
    pub(super) fn group(self) -> Option<u64> {
        match self {
            Self::Commit(uid)
            | Self::Second(uid)
            | Self::Plain(uid)
            | Self::Meet(uid)
            | Self::Exchange(uid) => Some(uid),
            Self::Retire | Self::Length => None,
        }
    }

    /// Returns true if the meeting is about a pool.
    pub(super) fn is_of_pool(self) -> bool {
        !matches!(self, Self::Meet(_) | Self::Exchange(_))
    }
}

/// Identifies a meeting. The members of one meeting have equal values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Meeting {
    pub(super) kind: Kind,
    /// A number that depends on the kind:
    /// - For a commit, or an agreement on plain registrations: the epoch of the group, a part of its
    ///   [id](crate::GroupId).
    /// - For a rendezvous: a number made of the epoch and [`Life::number`](super::library::Life).
    /// - For all other kinds: 0.
    ///
    /// Exception: under some troubles, meetings of the culprit have a number that no meeting of another rank has. So
    /// the [oracle](super::oracle) does not compare their results with those of other ranks.
    pub(super) epoch: u64,
    /// The number of the meeting among those of its kind and epoch.
    pub(super) round: u64,
}

/// A meeting, and its time limit on one rank. `begun` is a time on the simulation's clock in µs. `deadline` is in µs
/// after `begun`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) meeting: Meeting,
    pub(super) begun: u64,
    pub(super) deadline: u64,
}

/// The result of a meeting, as one rank gets it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum MeetingResult {
    Commit(Result<Agreed, agreement::Ending>),
    Plain(Result<Plain, agreement::Ending>),
    Retire(Result<Retired, agreement::Ending>),
    /// The agreed length in bytes.
    Length(Result<u64, agreement::Ending>),
    /// The number of the rendezvous that has mapped the peers' memory: this one or an earlier one.
    Meet(Result<u64, protocol::RendezvousEnding>),
    Exchange(Result<exchange::Agreement, exchange::ExchangeEnding>),
}

/// The end of a meeting on one rank.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    pub(super) rank: u32,
    pub(super) span: Span,
    pub(super) said: MeetingResult,
    /// The time of the end on the simulation's clock in µs.
    pub(super) ended: u64,
    /// The number of operations in the log of the rank's [first pool](super::rank::Rank::pool) when the meeting began.
    pub(super) history: u64,
    /// True if the rank has begun to register windows in this commit. Always false in other meetings.
    pub(super) registered: bool,
    /// True if the rank has asked the store to store its [record](super).
    pub(super) posted: bool,
    /// The members whose records the store has at the end of the meeting. `None` if the trouble makes no rank lose the
    /// store, or if this rank has not asked the store to store its own record.
    pub(super) arrived: Option<Vec<u32>>,
    /// The number of groups whose logs of committed segments ([`GroupLog`](agreement::GroupLog)) the meeting uses on
    /// this rank.
    pub(super) groups: usize,
    /// The number of these groups that were poisoned on this rank before the end of the meeting, and after it.
    pub(super) poisoned: [usize; 2],
}

/// The use of a block in a group's collective on one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) rank: u32,
    /// Identifies the block: equal on all ranks whose pools have executed the same operations.
    pub(super) identity: u64,
    pub(super) way: Way,
}

/// How a collective accesses a block: at a byte offset in a window, through a plain registration (`ncclCommRegister`),
/// or without either. The serial of a window is the number of windows that the communicator had registered before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Window { serial: u64, offset: u64 },
    Registered,
    Without,
}

/// The error with which a meeting has ended on a rank. `Pool` is for all meetings [about a pool](Kind::is_of_pool).
enum Failed<'a> {
    Pool(&'a agreement::Ending),
    Meet(&'a protocol::RendezvousEnding),
    Exchange(&'a exchange::ExchangeEnding),
}

impl MeetingResult {
    fn failed(&self) -> Option<Failed<'_>> {
        match self {
            MeetingResult::Commit(Err(ending))
            | MeetingResult::Plain(Err(ending))
            | MeetingResult::Retire(Err(ending))
            | MeetingResult::Length(Err(ending)) => Some(Failed::Pool(ending)),
            MeetingResult::Meet(Err(ending)) => Some(Failed::Meet(ending)),
            MeetingResult::Exchange(Err(ending)) => Some(Failed::Exchange(ending)),
            _ => None,
        }
    }

    /// Returns true if the meeting has failed on this rank because its requests to the store failed.
    pub(super) fn store_failed(&self) -> bool {
        matches!(
            self.failed(),
            Some(
                Failed::Pool(agreement::Ending::StoreFailed { .. })
                    | Failed::Meet(protocol::RendezvousEnding::StoreFailed { .. })
                    | Failed::Exchange(exchange::ExchangeEnding::StoreFailed { .. })
            )
        )
    }

    /// Returns true if the result is one on which the members agree: a success, a refusal, or a poisoned group. Returns
    /// false for a failure of this rank alone.
    pub(super) fn is_agreed(&self) -> bool {
        matches!(
            self.failed(),
            None | Some(
                Failed::Pool(agreement::Ending::Refused(_) | agreement::Ending::Poisoned(_))
                    | Failed::Meet(protocol::RendezvousEnding::Refused(_))
                    | Failed::Exchange(exchange::ExchangeEnding::Refused(_))
            )
        )
    }

    /// Returns true if the rank does not know the result, because its requests to the store failed after it had begun
    /// to post its record.
    pub(super) fn is_in_doubt(&self) -> bool {
        matches!(
            self.failed(),
            Some(
                Failed::Pool(agreement::Ending::StoreFailed { in_doubt: true })
                    | Failed::Meet(protocol::RendezvousEnding::StoreFailed { in_doubt: true })
                    | Failed::Exchange(exchange::ExchangeEnding::StoreFailed { in_doubt: true })
            )
        )
    }

    /// If the meeting has failed because records were missing, returns two values: the members whose records were
    /// missing, and whether the failure also reports that ranks wait for each other in a circle.
    pub(super) fn missing(&self) -> Option<(Vec<u32>, bool)> {
        if let Some(Refusal::SyncTimeout { missing, circle, .. }) = self.refusal() {
            return Some((missing.iter().map(|it| it.rank).collect(), !circle.is_empty()));
        }
        match (self, self.rendezvous(), self.exchange()) {
            (
                MeetingResult::Plain(Err(agreement::Ending::Poisoned(Poison::MembersLost {
                    missing, ..
                }))),
                ..,
            ) => Some((missing.clone(), false)),
            (_, Some(RendezvousRefusal::RendezvousTimeout { missing, circle, .. }), _)
            | (.., Some(ExchangeRefusal::ExchangeTimeout { missing, circle, .. })) => {
                Some((missing.clone(), !circle.is_empty()))
            }
            _ => None,
        }
    }

    /// Returns the time in µs by which a meeting with this result may exceed its deadline. The members need this time
    /// for the [actions](super) after the decision, or to repeat a failed store request for the last time. The
    /// [oracle](super::oracle) adds further time if the rank loses the store, or for an agreement on a length.
    pub(super) fn budgets(&self) -> u64 {
        let is_timeout =
            matches!(self.refusal(), Some(Refusal::SyncTimeout { .. } | Refusal::MemberLost { .. }));
        match self {
            MeetingResult::Commit(Err(_)) if is_timeout => 0,
            // 100 ms: the last repetition of a failed request begins at most `Retry::PAUSE` (50 ms) after the rank's
            // time limit for repetitions, and its messages take less than 50 ms.
            MeetingResult::Length(Err(agreement::Ending::StoreFailed { .. })) => 100_000,
            MeetingResult::Length(_) => 0,
            MeetingResult::Commit(_) => COMMIT_FLOOR.as_micros() as u64,
            _ => RETIREMENT_FLOOR.as_micros() as u64,
        }
    }

    /// Returns the refusal of a meeting about a pool, if there is one. For a commit that has succeeded, this is the
    /// reason why it has left segments pending (committed only those before them).
    pub(super) fn refusal(&self) -> Option<&Refusal> {
        match (self, self.failed()) {
            (MeetingResult::Commit(Ok(agreed)), _) => agreed.pending.as_ref(),
            (_, Some(Failed::Pool(agreement::Ending::Refused(refusal)))) => Some(refusal),
            _ => None,
        }
    }

    pub(super) fn poison(&self) -> Option<&Poison> {
        match (self, self.failed()) {
            (MeetingResult::Retire(Ok(Retired::Poisoned { poison, .. })), _)
            | (_, Some(Failed::Pool(agreement::Ending::Poisoned(poison)))) => Some(poison),
            _ => None,
        }
    }

    pub(super) fn rendezvous(&self) -> Option<&RendezvousRefusal> {
        match self {
            MeetingResult::Meet(Err(protocol::RendezvousEnding::Refused(refusal))) => Some(refusal),
            _ => None,
        }
    }

    pub(super) fn exchange(&self) -> Option<&ExchangeRefusal> {
        match self {
            MeetingResult::Exchange(Err(exchange::ExchangeEnding::Refused(refusal))) => Some(refusal),
            _ => None,
        }
    }

    /// Returns the name under which [`Run::tally`](super::Run::tally) counts this result.
    pub(super) fn name(&self) -> &'static str {
        if self.store_failed() {
            return if self.is_in_doubt() { "in doubt" } else { "store failed" };
        }
        if let MeetingResult::Commit(Ok(Agreed { pending: Some(_), .. })) = self {
            return "prefix";
        }
        let refused = self.refusal().map(Refusal::name).or_else(|| self.poison().map(Poison::name));
        let refused = refused.or_else(|| self.rendezvous().map(RendezvousRefusal::name));
        let refused = refused.or_else(|| self.exchange().map(ExchangeRefusal::name));
        refused.unwrap_or(match self {
            MeetingResult::Commit(Ok(agreed)) if agreed.without.is_some() => "without windows",
            MeetingResult::Commit(Ok(_)) => "committed",
            MeetingResult::Plain(Ok(Plain::Registered {})) => "registered plainly",
            MeetingResult::Plain(Ok(_)) => "registration undone",
            MeetingResult::Retire(Ok(_)) => "retired",
            MeetingResult::Length(Ok(_)) => "agreed length",
            MeetingResult::Meet(Ok(_)) => "mapped",
            MeetingResult::Exchange(Ok(_)) => "exchanged",
            _ => "out of step",
        })
    }
}

//! The results of *meetings*, as ranks get them. A meeting is one agreement among ranks. Further terms, such as
//! *record*, *log*, *poisoned* and *lost store*, are defined in [`super`].

use symm_agreement::{
    Agreed, COMMIT_FLOOR, Plain, Poison, RETIREMENT_FLOOR, Refusal, Retired,
    exchange::{self, ExchangeRefusal},
    rendezvous as protocol,
    rendezvous::RendezvousRefusal,
};

/// The kind of a meeting. The number is the uid of the group whose members take part. In a meeting of a kind without a
/// number, all ranks of the domain take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A commit of the [first pool](crate::rank::Rank::pool) of the ranks.
    Commit(u64),
    /// A commit of the [second pool](crate::rank::Rank::second) of the ranks.
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
    /// An [exchange](crate::exchanges): the members agree on a plan of one-sided transfers.
    Exchange(u64),
}

impl Kind {
    /// Returns the uid of the group whose members take part, or `None` if all ranks of the domain do.
    pub(crate) fn group(self) -> Option<u64> {
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
    pub(crate) fn is_of_pool(self) -> bool {
        !matches!(self, Self::Meet(_) | Self::Exchange(_))
    }
}

/// Identifies a meeting. The members of one meeting have equal values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Meeting {
    pub(crate) kind: Kind,
    /// A number that depends on the kind:
    /// - For a commit, or an agreement on plain registrations: the epoch of the group, a part of its
    ///   [id](symm_mem::GroupId).
    /// - For a rendezvous: a number made of the epoch and [`Life::number`](crate::library::Life).
    /// - For all other kinds: 0.
    ///
    /// Exception: under some troubles, meetings of the [culprit](crate) have a number that no meeting of another rank
    /// has. So the [oracle](crate::oracle) does not compare their results with those of other ranks.
    pub(crate) epoch: u64,
    /// The number of the meeting among those of its kind and epoch.
    pub(crate) round: u64,
}

/// A meeting, and its time limit on one rank. `begun` is a time on the simulation's clock in µs. `deadline` is in µs
/// after `begun`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) meeting: Meeting,
    pub(crate) begun: u64,
    pub(crate) deadline: u64,
}

/// The result of a meeting, as one rank gets it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum MeetingResult {
    Commit(Result<Agreed, symm_agreement::Ending>),
    Plain(Result<Plain, symm_agreement::Ending>),
    Retire(Result<Retired, symm_agreement::Ending>),
    /// The agreed length in bytes.
    Length(Result<u64, symm_agreement::Ending>),
    /// The number of the rendezvous that has mapped the peers' memory, counted by each member. It is this rendezvous,
    /// or an earlier one whose mappings all members still have.
    Meet(Result<u64, protocol::RendezvousEnding>),
    Exchange(Result<exchange::Agreement, exchange::ExchangeEnding>),
}

/// The end of a meeting on one rank.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub(crate) rank: u32,
    pub(crate) span: Span,
    pub(crate) said: MeetingResult,
    /// The time of the end on the simulation's clock in µs.
    pub(crate) ended: u64,
    /// The number of operations in the log of the rank's [first pool](crate::rank::Rank::pool) when the meeting began.
    pub(crate) history: u64,
    /// True if the rank has begun to register windows in this commit. Always false in other meetings.
    pub(crate) registered: bool,
    /// True if the rank has asked the store to store its [record](super).
    pub(crate) posted: bool,
    /// The members whose records the store has at the end of the meeting. `None` if the trouble makes no rank lose the
    /// store, or if this rank has not asked the store to store its own record.
    pub(crate) arrived: Option<Vec<u32>>,
    /// The number of groups whose logs of committed segments ([`GroupLog`](symm_agreement::GroupLog)) the meeting uses
    /// on this rank.
    pub(crate) groups: usize,
    /// The number of these groups that were poisoned on this rank before the end of the meeting, and after it.
    pub(crate) poisoned: [usize; 2],
}

/// The use of a block in a group's collective on one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) rank: u32,
    /// Identifies the block: equal on all ranks whose pools have executed the same operations.
    pub(crate) identity: u64,
    pub(crate) way: Way,
}

/// How a collective accesses a block: at a byte offset in a window, through a plain registration (`ncclCommRegister`),
/// or without either. The serial of a window is the number of windows that the communicator had registered before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Window { serial: u64, offset: u64 },
    Registered,
    Without,
}

/// The error with which a meeting has ended on a rank. `Pool` is for all meetings [about a pool](Kind::is_of_pool).
enum Failed<'a> {
    Pool(&'a symm_agreement::Ending),
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
    pub(crate) fn store_failed(&self) -> bool {
        matches!(
            self.failed(),
            Some(
                Failed::Pool(symm_agreement::Ending::StoreFailed { .. })
                    | Failed::Meet(protocol::RendezvousEnding::StoreFailed { .. })
                    | Failed::Exchange(exchange::ExchangeEnding::StoreFailed { .. })
            )
        )
    }

    /// Returns true if the result is one on which the members agree: a success, a refusal, or a poisoned group. Returns
    /// false for a failure of this rank alone.
    pub(crate) fn is_agreed(&self) -> bool {
        matches!(
            self.failed(),
            None | Some(
                Failed::Pool(symm_agreement::Ending::Refused(_) | symm_agreement::Ending::Poisoned(_))
                    | Failed::Meet(protocol::RendezvousEnding::Refused(_))
                    | Failed::Exchange(exchange::ExchangeEnding::Refused(_))
            )
        )
    }

    /// Returns true if the rank does not know the result, because its requests to the store failed after it had begun
    /// to post its record.
    pub(crate) fn is_in_doubt(&self) -> bool {
        matches!(
            self.failed(),
            Some(
                Failed::Pool(symm_agreement::Ending::StoreFailed { in_doubt: true })
                    | Failed::Meet(protocol::RendezvousEnding::StoreFailed { in_doubt: true })
                    | Failed::Exchange(exchange::ExchangeEnding::StoreFailed { in_doubt: true })
            )
        )
    }

    /// If the meeting has failed because records were missing, returns two values: the members whose records were
    /// missing, and whether the failure also reports that ranks wait for each other in a circle.
    pub(crate) fn missing(&self) -> Option<(Vec<u32>, bool)> {
        if let Some(Refusal::SyncTimeout { missing, circle, .. }) = self.refusal() {
            return Some((missing.iter().map(|it| it.rank).collect(), !circle.is_empty()));
        }
        match (self, self.rendezvous(), self.exchange()) {
            (
                MeetingResult::Plain(Err(symm_agreement::Ending::Poisoned(Poison::MembersLost {
                    missing,
                    ..
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
    /// [oracle](crate::oracle) adds further time if the rank loses the store, or for an agreement on a length.
    pub(crate) fn budgets(&self) -> u64 {
        let is_timeout =
            matches!(self.refusal(), Some(Refusal::SyncTimeout { .. } | Refusal::MemberLost { .. }));
        match self {
            MeetingResult::Commit(Err(_)) if is_timeout => 0,
            // 100 ms: the last repetition of a failed request begins at most `Retry::PAUSE` (50 ms) after the rank's
            // time limit for repetitions, and its messages take less than 50 ms.
            MeetingResult::Length(Err(symm_agreement::Ending::StoreFailed { .. })) => 100_000,
            MeetingResult::Length(_) => 0,
            MeetingResult::Commit(_) => COMMIT_FLOOR.as_micros() as u64,
            _ => RETIREMENT_FLOOR.as_micros() as u64,
        }
    }

    /// Returns the refusal of a meeting about a pool, if there is one. For a commit that has succeeded, this is the
    /// reason why it has left segments pending (committed only those before them).
    pub(crate) fn refusal(&self) -> Option<&Refusal> {
        match (self, self.failed()) {
            (MeetingResult::Commit(Ok(agreed)), _) => agreed.pending.as_ref(),
            (_, Some(Failed::Pool(symm_agreement::Ending::Refused(refusal)))) => Some(refusal),
            _ => None,
        }
    }

    pub(crate) fn poison(&self) -> Option<&Poison> {
        match (self, self.failed()) {
            (MeetingResult::Retire(Ok(Retired::Poisoned { poison, .. })), _)
            | (_, Some(Failed::Pool(symm_agreement::Ending::Poisoned(poison)))) => Some(poison),
            _ => None,
        }
    }

    pub(crate) fn rendezvous(&self) -> Option<&RendezvousRefusal> {
        match self {
            MeetingResult::Meet(Err(protocol::RendezvousEnding::Refused(refusal))) => Some(refusal),
            _ => None,
        }
    }

    pub(crate) fn exchange(&self) -> Option<&ExchangeRefusal> {
        match self {
            MeetingResult::Exchange(Err(exchange::ExchangeEnding::Refused(refusal))) => Some(refusal),
            _ => None,
        }
    }

    /// Returns the name under which [`Run::tally`](crate::Run::tally) counts this result.
    pub(crate) fn name(&self) -> &'static str {
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

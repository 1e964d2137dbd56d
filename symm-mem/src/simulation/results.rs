//! The results of meetings, as ranks get them.

use crate::{
    agreement::{self, Agreed, FLOORS, Plain, Poison, Refusal, Retired},
    exchange::{ExchangeRefusal, protocol as exchange},
    rendezvous::{RendezvousRefusal, protocol},
};

/// The purpose of a meeting, with the uid of the group if the meeting is of one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Commit(u64),
    /// A commit of the second pool.
    Second(u64),
    /// The agreement on whether the members keep their plain registrations.
    Plain(u64),
    Retire,
    Length,
    Meet(u64),
    Exchange(u64),
}

impl Kind {
    /// Returns true if the meeting is about a pool.
    pub(super) fn is_of_pool(self) -> bool {
        !matches!(self, Self::Meet(_) | Self::Exchange(_))
    }
}

/// The result of a meeting on a rank.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Said {
    Commit(Result<Agreed, agreement::Ending>),
    Plain(Result<Plain, agreement::Ending>),
    Retire(Result<Retired, agreement::Ending>),
    Length(Result<u64, agreement::Ending>),
    Meet(Result<u64, protocol::Ending>),
    Exchange(Result<exchange::Agreement, exchange::Ending>),
}

/// The end of a meeting on one rank. `begun` and `ended` are times on the simulation's clock in µs. `deadline` is in µs
/// after `begun`.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    pub(super) rank: u32,
    pub(super) kind: Kind,
    pub(super) epoch: u64,
    pub(super) round: u64,
    pub(super) said: Said,
    pub(super) begun: u64,
    pub(super) ended: u64,
    pub(super) deadline: u64,
    /// The number of operations in the log of the rank's pool when the meeting began.
    pub(super) history: usize,
    pub(super) registered: bool,
    /// True if, after the meeting, all groups of the meeting are poisoned on this rank, or if the meeting uses no
    /// group's log.
    pub(super) poisoned: bool,
}

/// The use of a block in a group's collective on one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) rank: u32,
    pub(super) identity: u64,
    pub(super) way: Way,
}

/// How a collective accesses a block: through a window, a plain registration, or neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Window { serial: u64, offset: u64 },
    Registered,
    Without,
}

impl Said {
    pub(super) fn store_failed(&self) -> bool {
        matches!(
            self,
            Said::Commit(Err(agreement::Ending::StoreFailed { .. }))
                | Said::Plain(Err(agreement::Ending::StoreFailed { .. }))
                | Said::Retire(Err(agreement::Ending::StoreFailed { .. }))
                | Said::Length(Err(agreement::Ending::StoreFailed { .. }))
                | Said::Meet(Err(protocol::Ending::StoreFailed { .. }))
                | Said::Exchange(Err(exchange::Ending::StoreFailed { .. }))
        )
    }

    /// Returns true if the result is an agreed one, which all members can get. Returns false for a failure of this rank
    /// alone.
    pub(super) fn is_agreed(&self) -> bool {
        let said = |ending: &agreement::Ending| {
            matches!(ending, agreement::Ending::Refused(_) | agreement::Ending::Poisoned(_))
        };
        match self {
            Said::Commit(result) => result.as_ref().err().is_none_or(said),
            Said::Plain(result) => result.as_ref().err().is_none_or(said),
            Said::Retire(result) => result.as_ref().err().is_none_or(said),
            Said::Length(result) => result.as_ref().err().is_none_or(said),
            Said::Exchange(result) => {
                result.as_ref().err().is_none_or(|ending| matches!(ending, exchange::Ending::Refused(_)))
            }
            Said::Meet(result) => {
                result.as_ref().err().is_none_or(|ending| matches!(ending, protocol::Ending::Refused(_)))
            }
        }
    }

    /// Returns true if the result changes windows, registrations or segments of members, or ends a group.
    pub(super) fn changes_groups(&self) -> bool {
        let poisons = |ending: &agreement::Ending| matches!(ending, agreement::Ending::Poisoned(_));
        match self {
            Said::Commit(result) => result.as_ref().map_or_else(poisons, |agreed| agreed.segments > 0),
            Said::Plain(result) => result.as_ref().map_or_else(poisons, |_| true),
            Said::Retire(result) => result.is_ok(),
            Said::Length(_) | Said::Meet(_) | Said::Exchange(_) => false,
        }
    }

    /// Returns the longest time in µs by which a meeting with this result may exceed its deadline. The actions after
    /// the decision, or the last repetition of a failed request, take this time.
    pub(super) fn budgets(&self) -> u64 {
        let is_timeout =
            matches!(self.refusal(), Some(Refusal::SyncTimeout { .. } | Refusal::MemberLost { .. }));
        match self {
            Said::Commit(Err(_)) if is_timeout => 0,
            // The last repetition of a failed request comes up to `RETRY_INTERVAL` (50 ms) after the rank's time limit
            // for repeating it.
            Said::Length(Err(agreement::Ending::StoreFailed { .. })) => 100_000,
            Said::Length(_) => 0,
            _ => FLOORS.as_micros() as u64,
        }
    }

    pub(super) fn refusal(&self) -> Option<&Refusal> {
        match self {
            Said::Commit(Ok(agreed)) => agreed.pending.as_ref(),
            Said::Commit(Err(agreement::Ending::Refused(refusal)))
            | Said::Retire(Err(agreement::Ending::Refused(refusal)))
            | Said::Length(Err(agreement::Ending::Refused(refusal))) => Some(refusal),
            _ => None,
        }
    }

    pub(super) fn poison(&self) -> Option<&Poison> {
        match self {
            Said::Commit(Err(agreement::Ending::Poisoned(poison)))
            | Said::Plain(Err(agreement::Ending::Poisoned(poison))) => Some(poison),
            Said::Retire(Ok(Retired::Poisoned { poison, .. })) => Some(poison),
            _ => None,
        }
    }

    pub(super) fn rendezvous(&self) -> Option<&RendezvousRefusal> {
        match self {
            Said::Meet(Err(protocol::Ending::Refused(refusal))) => Some(refusal),
            _ => None,
        }
    }

    pub(super) fn exchange(&self) -> Option<&ExchangeRefusal> {
        match self {
            Said::Exchange(Err(exchange::Ending::Refused(refusal))) => Some(refusal),
            _ => None,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        if let Said::Commit(Err(agreement::Ending::StoreFailed { in_doubt: true }))
        | Said::Retire(Err(agreement::Ending::StoreFailed { in_doubt: true })) = self
        {
            return "in doubt";
        }
        if self.store_failed() {
            return "store failed";
        }
        match (self, self.refusal(), self.poison(), self.rendezvous()) {
            (Said::Commit(Ok(agreed)), ..) if agreed.pending.is_some() => "prefix",
            (_, Some(refusal), ..) => refusal.name(),
            (_, _, Some(poison), _) => poison.name(),
            (.., Some(refusal)) => refusal.name(),
            (Said::Exchange(Ok(_)), ..) => "exchanged",
            (Said::Exchange(_), ..) => self.exchange().map_or("out of step", ExchangeRefusal::name),
            (Said::Commit(Ok(agreed)), ..) if agreed.without.is_some() => "without windows",
            (Said::Commit(Ok(_)), ..) => "committed",
            (Said::Plain(Ok(Plain::Registered {})), ..) => "registered plainly",
            (Said::Plain(Ok(_)), ..) => "registration undone",
            (Said::Retire(Ok(_)), ..) => "retired",
            (Said::Length(Ok(_)), ..) => "agreed length",
            (Said::Meet(Ok(_)), ..) => "mapped",
            _ => "out of step",
        }
    }
}

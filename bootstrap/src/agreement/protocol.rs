//! The part of an agreement that is specific to its kind; see the [terms](super#terms).

use std::{convert::Infallible, fmt, time::Duration};

use super::failure::Absentee;
use crate::wire::{self, Wire, wire_enum};

/// A kind of agreement: its messages, and the pure functions that decide. The result of each function must depend only
/// on its arguments, because any member may call it on behalf of all.
pub trait Protocol: Clone + fmt::Debug + Eq + 'static {
    /// The magic and the version of the messages, a [`wire::Protocol`]. The magic `AG` is reserved.
    const PROTOCOL: wire::Protocol;
    /// The shortest time limit of an action. The limit is half of the longest patience among the members and at most
    /// 10 min, but at least this value. See also [`shares_limits`](Self::shares_limits).
    const ACTION_FLOOR: Duration = Duration::from_secs(10);
    /// True if the member list and the decision stay in the store after the agreement. Verdicts are removed. See
    /// [`PlainProtocol::KEEPS_RESULT`] and [`remove_left`](super::remove_left).
    const KEEPS_RESULT: bool = false;

    /// The data that each member contributes to the decision.
    type Record: Wire;
    /// The data that the members need for an action.
    type Plan: Wire;
    /// The outcome of an action on one member.
    type Outcome: Wire;
    /// The result of the agreement.
    type Agreed: Wire;
    /// The reason not to agree.
    type Refusal: Wire;

    /// Decides from the records of all members. `records` contains the rank and the record of each, in the order of
    /// [`Member::members`](super::Member::members).
    fn decide(records: &[(u32, Self::Record)]) -> Decision<Self>;

    /// Returns true if this outcome alone decides the verdict. Its member then proposes the verdict without waiting for
    /// the other outcomes.
    fn is_final(outcome: &Self::Outcome) -> bool;

    /// Returns the verdict on the action with this plan. `reports` contains the rank and the report of each member,
    /// in the order of [`Member::members`](super::Member::members).
    fn judge(plan: &Self::Plan, reports: &[(u32, Report<Self::Outcome>)]) -> Decision<Self>;

    /// Returns true if the action with this plan shares the time limits of the action before it: its deadline, and the
    /// end of the wait for its outcomes. So a sequence of short actions takes hardly longer than one. If the verdict on
    /// an action comes shortly before this end, or after it, the members still have time for the next action and wait for
    /// its outcomes, but all this together lengthen the sequence by at most [`OUTCOME_FLOOR`](super::OUTCOME_FLOOR). The first
    /// action of an agreement always has limits of its own.
    fn shares_limits(_plan: &Self::Plan) -> bool {
        false
    }

    /// Returns the keys of the store whose values may explain why members of the agreement `name` are
    /// [missing](super#terms). A member whose patience has ended reads them if it finds no circular wait, and passes
    /// the values to [`explain`](Self::explain). If there are no keys, or no explanation, the agreement fails with
    /// [`Failure::Absent`](super::Failure::Absent).
    fn evidence(_name: &str, _missing: &[Absentee]) -> Vec<String> {
        Vec::new()
    }

    /// Returns the reason why members are missing, which all members get in place of
    /// [`Failure::Absent`](super::Failure::Absent), or `None`.
    fn explain(_absence: &Absence<'_>) -> Option<Self::Refusal> {
        None
    }
}

/// Missing members, and the values that may explain why they are missing.
#[derive(Debug, Clone, Copy)]
pub struct Absence<'a> {
    /// The name of the agreement.
    pub name: &'a str,
    /// All members.
    pub members: &'a [u32],
    /// The missing members, in ascending order of ranks.
    pub missing: &'a [Absentee],
    /// The time that the member whose patience ended has waited, in milliseconds.
    pub waited_ms: u64,
    /// The values of the keys that [`Protocol::evidence`] named, in order; `None` for a key without a value.
    pub values: &'a [Option<Vec<u8>>],
}

/// A kind of agreement without an action: the decision is the result.
pub trait PlainProtocol: Clone + fmt::Debug + Eq + 'static {
    /// The magic and the version of the messages, a [`wire::Protocol`]. The magic `AG` is reserved.
    const PROTOCOL: wire::Protocol;
    /// True if the member list and the result stay in the store after the agreement. A rank that arrives later, with
    /// another member list, then also gets [`Failure::Members`](super::Failure::Members), and sees the [result of the
    /// others](super::Failed::others). If false, a rank that arrives after the keys of the agreement were removed waits
    /// until its patience ends.
    const KEEPS_RESULT: bool = false;

    /// The data that each member contributes to the decision.
    type Record: Wire;
    /// The result of the agreement.
    type Agreed: Wire;
    /// The reason not to agree.
    type Refusal: Wire;

    /// Decides from the records of all members. `records` contains the rank and the record of each, in the order of
    /// [`Member::members`](super::Member::members). The function must depend on `records` alone.
    ///
    /// # Errors
    /// The reason not to agree.
    fn conclude(records: &[(u32, Self::Record)]) -> Result<Self::Agreed, Self::Refusal>;
}

impl<P: PlainProtocol> Protocol for P {
    const PROTOCOL: wire::Protocol = P::PROTOCOL;
    const KEEPS_RESULT: bool = P::KEEPS_RESULT;
    type Record = P::Record;
    type Plan = Infallible;
    type Outcome = Infallible;
    type Agreed = P::Agreed;
    type Refusal = P::Refusal;

    fn decide(records: &[(u32, P::Record)]) -> Decision<Self> {
        match P::conclude(records) {
            Ok(agreed) => Decision::Agreed { agreed },
            Err(refusal) => Decision::Refused { refusal },
        }
    }

    fn is_final(outcome: &Infallible) -> bool {
        match *outcome {}
    }

    fn judge(plan: &Infallible, _: &[(u32, Report<Infallible>)]) -> Decision<Self> {
        match *plan {}
    }
}

/// The state of a member's outcome at the time of the verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report<O> {
    /// The member's outcome.
    Outcome(O),
    /// The member has not posted its outcome yet, because a [final](Protocol::is_final) outcome of another member has
    /// ended the wait. This member is not at fault.
    Pending,
    /// The member has not posted its outcome before the time limit: it is dead, too slow, or has lost the store.
    Late,
}

/// The decision on the records, or the verdict on the outcomes of one action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision<P: Protocol> {
    /// Every member acts, or acts once more, and posts its outcome.
    Act {
        /// The plan of the action.
        plan: P::Plan,
    },
    /// The agreement ends with an agreed value. No further action follows.
    Agreed {
        /// The value.
        agreed: P::Agreed,
    },
    /// The agreement ends without an agreed value. No further action follows, and every member undoes its part of the
    /// last one.
    Refused {
        /// The reason.
        refusal: P::Refusal,
    },
}
wire_enum!(Decision<P: Protocol> { 0 => Act { plan }, 1 => Agreed { agreed }, 2 => Refused { refusal } });

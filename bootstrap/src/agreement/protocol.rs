//! The part of an agreement that is specific to its kind.

use std::{convert::Infallible, fmt, time::Duration};

use crate::wire::{self, Wire, wire_enum};

/// A kind of agreement: its messages, and the pure functions that decide. All functions give equal results on all
/// members, because they depend on their arguments alone.
pub trait Protocol: Clone + fmt::Debug + Eq + 'static {
    /// The magic and the version of the messages. The magic `AG` is reserved.
    const PROTOCOL: wire::Protocol;
    /// The least time that members get for an action.
    const ACTION_FLOOR: Duration = Duration::from_secs(10);

    /// The message of a member to the others.
    type Record: Wire;
    /// Everything that the members need for an action.
    type Plan: Wire;
    /// The outcome of an action on one member.
    type Outcome: Wire;
    /// The result of the agreement.
    type Agreed: Wire;
    /// A reason of this kind for which nothing is agreed.
    type Refusal: Wire;

    /// Decides from the records of all members, in the order of [`Member::members`](super::Member::members).
    fn decide(records: &[(u32, Self::Record)]) -> Decision<Self>;

    /// Returns true if this outcome alone decides the verdict, so that nobody has to wait for the others.
    fn is_final(outcome: &Self::Outcome) -> bool;

    /// Decides after the action with this plan, from the reports of all members, in the order of
    /// [`Member::members`](super::Member::members).
    fn judge(plan: &Self::Plan, reports: &[(u32, Report<Self::Outcome>)]) -> Verdict<Self>;
}

/// A kind of agreement without an action: the decision is the result.
pub trait PlainProtocol: Clone + fmt::Debug + Eq + 'static {
    /// The magic and the version of the messages. The magic `AG` is reserved.
    const PROTOCOL: wire::Protocol;

    /// The message of a member to the others.
    type Record: Wire;
    /// The result of the agreement.
    type Agreed: Wire;
    /// A reason of this kind for which nothing is agreed.
    type Refusal: Wire;

    /// Decides from the records of all members, in the order of [`Member::members`](super::Member::members). Depends on
    /// them alone.
    ///
    /// # Errors
    /// The reason for which nothing is agreed.
    fn conclude(records: &[(u32, Self::Record)]) -> Result<Self::Agreed, Self::Refusal>;
}

impl<P: PlainProtocol> Protocol for P {
    const PROTOCOL: wire::Protocol = P::PROTOCOL;
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

    fn judge(plan: &Infallible, _: &[(u32, Report<Infallible>)]) -> Verdict<Self> {
        match *plan {}
    }
}

/// A member's report on an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report<O> {
    /// The member's outcome.
    Outcome(O),
    /// No outcome yet. Another member's [final](Protocol::is_final) outcome ended the wait, so this is no fault of the
    /// member.
    Pending,
    /// No outcome in time. The member is dead, or too slow.
    Late,
}

/// The decision on the records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision<P: Protocol> {
    /// Every member acts, and posts its outcome.
    Act {
        /// The plan of the action.
        plan: P::Plan,
    },
    /// There is nothing to do.
    Agreed {
        /// The result.
        agreed: P::Agreed,
    },
    /// Nothing is agreed, and nothing is done.
    Refused {
        /// The reason.
        refusal: P::Refusal,
    },
}
wire_enum!(Decision<P: Protocol> { 0 => Act { plan }, 1 => Agreed { agreed }, 2 => Refused { refusal } });

/// The verdict on the outcomes of one action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict<P: Protocol> {
    /// Every member acts once more.
    Act {
        /// The plan of the next action.
        plan: P::Plan,
    },
    /// The action has succeeded on all members.
    Agreed {
        /// The result.
        agreed: P::Agreed,
    },
    /// The action has failed on at least one member. Every member undoes its part.
    Failed {
        /// The reason.
        refusal: P::Refusal,
    },
}
wire_enum!(Verdict<P: Protocol> { 0 => Act { plan }, 1 => Agreed { agreed }, 2 => Failed { refusal } });

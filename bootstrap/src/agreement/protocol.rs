//! The part of an agreement that is specific to its kind.

use std::fmt;

use crate::wire::{self, Wire, wire_enum};

/// A kind of agreement: its messages, and the pure functions that decide. All functions give equal results on all
/// members, because they depend on their arguments alone.
pub trait Protocol: Clone + fmt::Debug + Eq + 'static {
    /// The magic and the version of the messages.
    const PROTOCOL: wire::Protocol;

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

    /// Decides from the records of all members, in the order of the members. The result must not depend on that order.
    fn decide(records: &[(u32, Self::Record)]) -> Decision<Self>;

    /// Returns true if this outcome alone decides the verdict, so that nobody has to wait for the others.
    fn is_final(outcome: &Self::Outcome) -> bool;

    /// Decides from the outcomes of all members, after the action with this plan. `None` for a member that did not post
    /// an outcome in time.
    fn judge(plan: &Self::Plan, outcomes: &[(u32, Option<Self::Outcome>)]) -> Verdict<Self>;
}

/// What all members do after all have come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision<P: Protocol> {
    /// Every member acts, and posts its outcome.
    Act {
        /// What to do.
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

/// What all members do after an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict<P: Protocol> {
    /// Every member acts once more.
    Act {
        /// What to do.
        plan: P::Plan,
    },
    /// The action has succeeded on all members.
    Agreed {
        /// The result.
        agreed: P::Agreed,
    },
    /// It has not. Members undo what they can.
    Failed {
        /// The reason.
        refusal: P::Refusal,
    },
}
wire_enum!(Verdict<P: Protocol> { 0 => Act { plan }, 1 => Agreed { agreed }, 2 => Failed { refusal } });

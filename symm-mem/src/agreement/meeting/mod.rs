//! What a [rendezvous](crate::rendezvous::protocol) and an [exchange](crate::exchange::protocol) are alike in: each member
//! says what it comes with, all decide, each opens what the others lend it, and all have it or none.
//!
//! - [`Contribution`]: what a member comes with; all that is particular to one kind of meeting.
//! - [`Decision`], [`Outcome`], [`verdict`]: what all do, how it went on each, and what they make of that.
//! - [`Failure`]: what every kind of meeting can end with.
//! - [`Meeting`]: one member's part in one meeting.

mod machine;
mod outcome;

pub use machine::{Conclusion, Ending, Input, Meeting, Output};
pub use outcome::{Failure, Outcome, Verdict, verdict};

use super::wire::{Message, Wire, wire_enum};

/// What a member comes with, which is what it posts; and with it what the meeting is about: the records of the two kinds
/// of meeting, and nothing outside of this crate.
pub trait Contribution: Message {
    /// What all look at to open what they lack.
    type Opening: Wire;
    /// What the meeting gives.
    type Agreed: Wire;
    /// Why it gives nothing, in the words that every member is given.
    type Refusal: Wire + From<Failure>;

    /// The kind of the message that a [`Decision`] is.
    const DECISION: u8;
    /// The kind of the message that a [`Verdict`] is.
    const VERDICT: u8;

    /// Whose it is, a rank of the job.
    fn rank(&self) -> u32;

    /// Whether `refusal` says no more than that members did not come, or were lost.
    fn is_of_the_missing(refusal: &Self::Refusal) -> bool;

    /// The time that the meeting may take, in milliseconds.
    fn deadline_ms(&self) -> u64;

    /// Decides what the members do, from what all of them came with, in the order of the group.
    fn decide(contributions: &[Self]) -> Decision<Self>;

    /// What the meeting gives this member once all have opened what they lack.
    fn agreed(&self, opening: &Self::Opening) -> Self::Agreed;
}

/// What all members do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision<C: Contribution> {
    /// Each opens what it lacks of the others' memory; then all say how it went.
    Open {
        /// What they have to know for it.
        opening: C::Opening,
        /// The longest deadline among them, in milliseconds: the budgets of what follows.
        deadline_ms: u64,
    },
    /// Nobody lacks anything.
    Settled {
        /// What all have.
        agreed: C::Agreed,
    },
    /// Nothing is opened.
    Refuse {
        /// Why.
        refusal: C::Refusal,
    },
}
wire_enum!(Decision<C: Contribution> {
    0 => Open { opening, deadline_ms },
    1 => Settled { agreed },
    2 => Refuse { refusal },
});

impl<C: Contribution> Message for Decision<C> {
    const KIND: u8 = C::DECISION;
}

//! The common part of a [rendezvous](crate::rendezvous::protocol) and an [exchange](crate::exchange::protocol). Each
//! member posts its contribution, all decide, and each opens the memory that the others share. All members succeed or
//! none.
//!
//! - [`Contribution`]: the message of a member, and everything specific to one kind of meeting.
//! - [`Decision`], [`Outcome`], [`verdict`]: the common decision, the outcome on each member, and the common result.
//! - [`Failure`]: the failures common to all kinds of meetings.
//! - [`Meeting`]: one member's part in one meeting.

mod machine;
mod outcome;

pub use machine::{Conclusion, Ending, Input, Meeting, Output};
pub use outcome::{Failure, Outcome, Verdict, verdict};

use super::wire::{Message, Wire, wire_enum};

/// The message that a member posts in a meeting. Its type defines the kind of meeting. It is implemented by the
/// records of the two kinds of meeting, and by no type outside of this crate.
pub trait Contribution: Message {
    /// The data that members need to open the memory that they lack.
    type Opening: Wire;
    /// The result of a meeting.
    type Agreed: Wire;
    /// The reason for a refused meeting, equal on all members.
    type Refusal: Wire + From<Failure>;

    /// The message kind of a [`Decision`].
    const DECISION: u8;
    /// The message kind of a [`Verdict`].
    const VERDICT: u8;

    /// The sender, as a rank of the job.
    fn rank(&self) -> u32;

    /// Returns true if `refusal` only reports that members did not come, or were lost.
    fn is_of_the_missing(refusal: &Self::Refusal) -> bool;

    /// The rank's deadline for the meeting, in milliseconds.
    fn deadline_ms(&self) -> u64;

    /// Decides from the contributions of all members, in the order of the group.
    fn decide(contributions: &[Self]) -> Decision<Self>;

    /// The result for this member after all members have opened the memory that they lack.
    fn agreed(&self, opening: &Self::Opening) -> Self::Agreed;
}

/// The decision that all members follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision<C: Contribution> {
    /// Each member opens the memory that it lacks, then posts its outcome.
    Open {
        /// The data needed for that.
        opening: C::Opening,
        /// The longest deadline among the members, in milliseconds. It sets the budgets of the later phases.
        deadline_ms: u64,
    },
    /// No member lacks anything.
    Settled {
        /// The result on all members.
        agreed: C::Agreed,
    },
    /// Nothing is opened.
    Refuse {
        /// The reason.
        refusal: C::Refusal,
    },
}
wire_enum!(Decision<C: Contribution> {
    0 => Open { opening, deadline_ms },
    1 => Settled { agreed },
    2 => Refuse { refusal },
});

impl<C: Contribution> Message for Decision<C> {
    const PROTOCOL: crate::agreement::wire::Protocol = crate::agreement::PROTOCOL;
    const KIND: u8 = C::DECISION;
}

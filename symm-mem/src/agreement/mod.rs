//! The commit protocol, without I/O: how the members of a group agree on which segments become windows.
//!
//! - [`Record`]: what a rank tells the others; with [`Decision`] and the outcomes, it has a strict, versioned
//!   binary form.
//! - [`decide()`] and [`verdict`]: pure functions of what the members said.
//! - [`Refusal`], [`Poison`], [`NoWindows`]: why there are no windows, the same value on every member.
//! - [`Commit`]: one member's part in one commit; [`Seat`]: what it remembers between commits.
//! - [`PlainVote`]: what becomes of segments that have no windows.
//! - [`Retire`], [`Length`]: the same for what the whole domain does: to retire segments, to agree on a length.
//! - [`meeting`]: another agreement by the same votes, to open each other's memory.
//!
//! Not here: stores, communicators, memory, threads. A driver runs the machine in life, and the seeded
//! simulation in the tests.

mod arrival;
mod circle;
mod decide;
pub(crate) mod hash;
mod history;
mod length;
mod machine;
pub mod meeting;
pub(crate) mod place;
mod plain;
mod poison;
mod ranks;
mod record;
mod refusal;
mod retire;
#[cfg(test)]
mod retire_tests;
mod search;
mod seat;
pub(crate) mod split;
pub(crate) mod versions;
pub(crate) mod vote;
pub(crate) mod wire;

#[cfg(test)]
mod tests;

pub use decide::{Decision, Outcome, Verdict, decide, verdict};
pub use history::{BlockPlace, Divergence, Operation, OperationKind};
pub use length::{Length, Next};
pub(crate) use machine::ACTION_FLOOR;
pub use machine::{Agreed, Commit, Conclusion, Ending, Input, Output};
#[cfg(any(test, feature = "simulation"))]
pub(crate) use machine::{FLOORS, VOTE_FLOOR};
pub use place::{Errand, Place};
pub use plain::{Attempt, Plain, PlainVote};
pub use poison::{NoWindows, Poison};
pub use process_group::group::GroupId;
pub use ranks::RankList;
pub use record::{
    Capabilities, Enqueued, LogPoint, MessageCounts, Policy, PoolId, Readiness, Record, Segment,
    WindowSupport,
};
pub use refusal::{Absentee, Capability, Held, Identity, Membership, Refusal, Shape, Waiting};
pub use retire::{
    Candidate, Committed, Release, Retire, RetireInput, RetireOutput, Retired, RetirementRecord,
    decide_retirement,
};
pub use search::Range;
pub use seat::{Seat, Situation};
pub use split::{Side, Split};
pub use wire::{Malformed, PROTOCOL_VERSION};

//! The commit protocol without I/O: the members of a group agree on the segments to be registered as windows.
//!
//! - [`Record`]: the message of a rank to the others. Like [`Decision`] and the outcomes, it has a strict, versioned
//!   binary form.
//! - [`decide()`] and [`verdict`]: pure functions of the members' messages.
//! - [`Refusal`], [`Poison`], [`NoWindows`]: the reasons for a missing window, with the same value on every member.
//! - [`Commit`]: one member's part in one commit; [`GroupLog`]: its state between commits.
//! - [`PlainVote`]: the vote on the plain registration of segments without windows.
//! - [`Retire`], [`Length`]: the same for operations of the whole domain: to retire segments, and to agree on a
//!   length.
//! - [`meeting`]: another agreement by the same votes, in which members open each other's memory.
//!
//! Out of scope: stores, communicators, memory, threads. A driver runs the state machines in production, and the
//! seeded simulation in the tests.

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
pub(crate) mod versions;
pub(crate) mod vote;

#[cfg(test)]
mod tests;

pub(crate) use bootstrap::agreement::Ranks;
pub use bootstrap::agreement::{Entry, ValuesByRank};
pub(crate) use bootstrap::wire;
pub use bootstrap::wire::Malformed;
pub use decide::{Decision, Outcome, Verdict, decide, verdict};
pub use history::{BlockPlace, Divergence, Operation, OperationKind};
pub use length::{Length, Next};
pub(crate) use machine::ACTION_FLOOR;
pub use machine::{Agreed, Commit, Conclusion, Ending, Input, Output};
#[cfg(any(test, feature = "simulation"))]
pub(crate) use machine::{FLOORS, VOTE_FLOOR};
pub use place::{MeetingId, MeetingKind};
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
pub use seat::{GroupLog, Situation};

/// The version of the whole protocol: records, decisions, order of votes. Ranks of different versions refuse to work
/// together.
pub const PROTOCOL_VERSION: u16 = 5;

pub(crate) const PROTOCOL: wire::Protocol = wire::Protocol { magic: *b"SY", version: PROTOCOL_VERSION };

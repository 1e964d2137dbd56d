//! The commit protocol without I/O: the members of a group agree on the segments to be registered as windows.
//!
//! - [`Record`]: the message of a rank to the others. Like [`Decision`] and the outcomes, it has a strict, versioned
//!   binary form.
//! - [`decide()`] and [`verdict`]: pure functions of the members' messages.
//! - [`Refusal`], [`Poison`], [`NoWindows`]: the reasons for a missing window, with the same value on every member.
//! - [`Commit`]: one member's part in one commit; [`GroupLog`]: its state between commits.
//! - [`RegistrationProtocol`]: the agreement on the plain registration of segments without windows.
//! - [`Retire`], [`Length`]: the same for operations of the whole domain: to retire segments, and to agree on a
//!   length.
//! - [`Outcome`](sharing::Outcome): the outcome of opening other members' memory, in the agreements of rendezvous and
//!   exchange.
//!
//! Out of scope: stores, communicators, memory, threads. A driver runs the state machines in production, and the
//! seeded simulation in the tests.

mod circle;
mod decide;
pub(crate) mod decision_round;
pub(crate) mod ending;
mod group_log;
pub(crate) mod hash;
mod history;
mod length;
mod machine;
pub(crate) mod meeting_id;
mod plain;
mod poison;
mod ranks;
mod record;
mod record_gather;
mod refusal;
mod request;
mod retire;
#[cfg(test)]
mod retire_tests;
mod search;
pub mod sharing;
pub(crate) mod versions;
mod waits;

#[cfg(test)]
mod tests;

pub(crate) use bootstrap::agreement::Ranks;
pub use bootstrap::agreement::{Entry, ValuesByRank};
pub(crate) use bootstrap::wire;
pub use bootstrap::wire::Malformed;
pub use decide::{Decision, Outcome, Verdict, decide, verdict};
pub use ending::AgreementError;
pub use group_log::{GroupLog, Situation};
pub use history::{BlockPlace, Divergence, Operation, OperationKind};
pub use length::{Length, Next};
pub(crate) use machine::ACTION_FLOOR;
pub use machine::Commit;
#[cfg(any(test, feature = "simulation"))]
pub(crate) use machine::{FLOORS, VOTE_FLOOR};
pub use meeting_id::{MeetingId, MeetingKind};
pub(crate) use plain::ending as plain_ending;
pub use plain::{Attempt, Plain, RegistrationProtocol};
pub use poison::{NoWindows, Poison};
pub use process_group::group::GroupId;
pub use ranks::RankList;
pub use record::{
    Capabilities, Enqueued, LogPoint, MessageCounts, Policy, PoolId, Readiness, Record, Segment,
    WindowSupport,
};
pub use refusal::{Absentee, Capability, Held, Identity, Membership, Refusal, Shape, Waiting};
pub use request::{Agreed, Conclusion, Ending, Input, Output};
pub use retire::{
    Candidate, Committed, Release, Retire, RetireInput, RetireOutput, Retired, RetirementRecord,
    decide_retirement,
};
pub use search::Range;
pub(crate) use waits::describe_circle;

/// The version of the whole protocol: records, decisions, order of decision rounds. Ranks of different versions refuse
/// to work together.
pub const PROTOCOL_VERSION: u16 = 8;

pub(crate) const PROTOCOL: wire::Protocol = wire::Protocol { magic: *b"SY", version: PROTOCOL_VERSION };

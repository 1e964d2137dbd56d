//! The agreements of ranks about a pool. Each kind of agreement implements
//! [`Protocol`](bootstrap::agreement::Protocol), without I/O.
//!
//! - [`CommitProtocol`]: a commit. The members of a group agree on the segments to be registered as windows.
//!   [`CommitRecord`] is the message of a rank to the other members. [`decide()`] and [`judge_registrations`] are pure
//!   functions of the members' messages. [`GroupLog`] is the state that a rank keeps from one commit to the next.
//! - [`RegistrationProtocol`]: a plain registration. Each member of a group tries to register segments that have no
//!   windows, with `ncclCommRegister`. Then the members agree whether to keep these registrations or to undo them.
//! - [`RetireProtocol`]: a retirement. All ranks of the pool's [domain](crate::Domain) agree to retire segments: to
//!   deregister their windows on all ranks, and then to free their memory.
//! - [`LengthProtocol`]: all ranks of the domain agree on the length of an allocation.
//! - [`Refusal`], [`Poison`], [`NoWindows`]: the reasons why a commit, a retirement or an agreement on a length is
//!   refused, why a group is poisoned, and why segments have no windows. A group is poisoned if it is possible that its
//!   members have different windows. Every member gets the same reason, with the exceptions that [`Ending`] and
//!   [`Poison`] list.
//! - [`MeetingId`]: identifies a meeting, which is one agreement on a commit, a retirement or a length. An agreement on
//!   a plain registration is not a meeting. It follows a commit, and its name in the store is the name of that commit
//!   with the suffix `/plain`.
//!
//! Out of scope: stores, communicators, memory, threads. [`bootstrap::agreement::run`] drives the state machine of each
//! agreement over a store. In tests, the seeded simulation drives it.

mod capabilities;
mod commit;
mod decide;
pub(crate) mod ending;
mod group_log;
pub(crate) mod hash;
mod history;
mod length;
pub(crate) mod meeting_id;
mod opening;
mod peer_memory;
mod plain;
mod plan;
mod poison;
mod ranks;
mod record;
mod refusal;
mod retire;
mod rounds;
mod search;
mod start;
mod waits;

#[cfg(test)]
pub(crate) mod tests;

use std::time::Duration;

pub use bootstrap::agreement::{Absentee, Entry, Place, ValuesByRank, Waiting};
pub(crate) use bootstrap::agreement::{OUTCOME_FLOOR, Ranks};
pub(crate) use bootstrap::wire;
pub use bootstrap::wire::Malformed;
pub use capabilities::{Capabilities, Capability, WindowSupport};
pub use commit::ending as commit_ending;
pub use decide::{decide, judge_registrations};
pub use ending::Ending;
pub use group_log::GroupLog;
pub use history::{BlockPlace, Divergence, Operation, OperationKind};
#[cfg(any(test, feature = "simulation"))]
pub(crate) use length::length_patience;
pub use length::{LengthProtocol, length_ending};
pub use meeting_id::{MeetingId, MeetingKind};
pub use peer_memory::{MemberMemory, OfferedMemory, PeerMappings, PeerOffer, Unmapped};
pub(crate) use plain::ending as plain_ending;
pub use plain::{Attempt, Plain, RegistrationProtocol};
pub use plan::{
    After, Agreed, CommitDecision, CommitOutcome, CommitPlan, CommitProtocol, RegistrationOutcome, Rejection,
};
pub use poison::{NoWindows, Poison};
pub use process_group::group::GroupId;
pub use ranks::RankList;
pub use record::{CommitRecord, Enqueued, LogPoint, MessageCounts, Policy, PoolId, Readiness, Segment};
pub(crate) use refusal::are;
pub use refusal::{MemberList, Refusal, Shape};
pub use retire::{
    Candidate, Committed, Release, RetireOutcome, RetirePlan, RetireProtocol, Retired, RetirementRecord,
    decide_retirement, retirement_ending,
};
pub(crate) use rounds::Rounds;
pub use search::{Range, Recalled};
pub use start::Start;
#[cfg(any(test, feature = "simulation"))]
pub(crate) use start::patience;
pub(crate) use waits::describe_circle;

/// The version of all messages of this crate's agreements: records, decisions, plans and outcomes. If ranks have
/// different versions, their agreements are refused on all of them.
pub const PROTOCOL_VERSION: u16 = 13;

pub(crate) const PROTOCOL: wire::Protocol = wire::Protocol { magic: *b"SY", version: PROTOCOL_VERSION };

/// The shortest time limit of an action. An action is the work that a decision assigns to every member: to register or
/// deregister windows, to wait until the device is idle, to open the memory of peers, or to execute one step of the
/// search for the first difference between allocation logs.
pub(crate) const ACTION_FLOOR: Duration = <CommitProtocol as bootstrap::agreement::Protocol>::ACTION_FLOOR;

/// If every time limit has its shortest value, a retirement ends at most this long after the decision on the records. It
/// has two time limits: one for the wait until the device is idle, and one for the deregistration. After each of them,
/// the members wait for the outcomes, for at most [`OUTCOME_FLOOR`].
#[cfg(any(test, feature = "simulation"))]
pub(crate) const RETIREMENT_FLOOR: Duration = ACTION_FLOOR.saturating_add(OUTCOME_FLOOR).saturating_mul(2);

/// If every time limit has its shortest value, a commit ends at most this long after the decision on the records. It has
/// two time limits: one for all steps of the search, and one for the registration and the opening of peers' memory. The
/// members wait for the outcomes for at most [`OUTCOME_FLOOR`] after each of them. Because several actions
/// [share](bootstrap::agreement::Protocol::shares_limits) a limit, each of these waits may be longer by the same time.
#[cfg(any(test, feature = "simulation"))]
pub(crate) const COMMIT_FLOOR: Duration = RETIREMENT_FLOOR.saturating_add(OUTCOME_FLOOR.saturating_mul(2));

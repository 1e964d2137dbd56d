//! The agreements of ranks about a symmetric pool. Each kind of agreement implements
//! [`Protocol`](bootstrap::agreement::Protocol): its messages, and pure functions that decide from these messages. The
//! [terms](#terms) are explained below.
//!
//! - [`CommitProtocol`]: a commit. The members of a group agree on the segments to be registered as windows.
//!   [`CommitRecord`] is the message of a rank to the other members. [`decide()`] and [`judge_registrations`] are pure
//!   functions of the members' messages. [`GroupLog`] is the state that a rank keeps from one commit to the next.
//! - [`RegistrationProtocol`]: a plain registration. Each member of a group tries to register segments that have no
//!   windows, with `ncclCommRegister`. Then the members agree whether to keep these registrations or to undo them.
//! - [`RetireProtocol`]: a retirement. All ranks of the pool's domain agree to retire segments: to deregister their
//!   windows on all ranks, and then to free their memory.
//! - [`LengthProtocol`]: all ranks of the domain agree on the length of an allocation.
//! - [`Refusal`], [`Poison`], [`NoWindows`]: the reasons why a commit, a retirement or an agreement on a length is
//!   refused, why a group is poisoned, and why segments have no windows. Every member gets the same reason, with the
//!   exceptions that [`Ending`] and [`Poison`] list.
//! - [`MeetingId`]: identifies a meeting. An agreement on a plain registration is not a meeting. Such an agreement
//!   follows a commit, and its name in the store is the name of that commit with the suffix `/plain`.
//!
//! Out of scope: stores, communicators, memory, threads. [`bootstrap::agreement::run`] executes an agreement over a
//! store, on the caller's thread. In tests, the crate `simulation` executes it under seeded schedules.
//!
//! # Terms
//! Of a pool and its groups:
//! - **Segment**: one allocation of device memory, in which the pool places its blocks. **Ordinal**: the number of a
//!   segment in its pool. **New segment**: a segment that the group has not committed.
//! - **Window**: memory that all members have registered together with `ncclCommWindowRegister`. **Plain
//!   registration**: the registration of memory with `ncclCommRegister`, which creates no window.
//! - **Allocation log**: the sequence of [operations](Operation) on a pool. It is equal on all ranks that made the same
//!   requests with the same results.
//! - **Committed log** of a group: its committed segments and the retired segments of the pool, in order
//!   ([`GroupLog::committed`]).
//! - **Poisoned**: a group is poisoned if it is possible that its members have different windows or plain registrations
//!   ([`Poison`]).
//! - **Epoch** of a group: [`GroupId::epoch`]. **Generation** of a domain: [`PoolId::generation`].
//!
//! Of an agreement ([complete list](bootstrap::agreement#terms)):
//! - **Member**: a rank that takes part. **Record**: the message with which a member enters the agreement.
//!   **Decision**: the result of a pure function of the records of all members. The decision refuses the agreement,
//!   ends it with an agreed value, or assigns an action.
//! - **Action**: work that every member executes. **Plan**: the description of this work. **Outcome**: the message of a
//!   member after an action. **Verdict**: the decision that follows from the outcomes of all members.
//! - **Patience**: the longest time that a member waits for the records of the others. **In doubt**: a member is in
//!   doubt from the post of its record until it has read the result, because the others may act on its record.
//! - **Place** of a rank: an agreement in which it waits. **Ending**: the reason why an agreement has no result on a
//!   member.
//! - **Meeting**: one agreement on a commit, a retirement or a length. **Round**: the number of a meeting among those
//!   of its kind and pool.

mod capabilities;
mod commit;
mod decide;
pub mod ending;
pub mod exchange;
mod group_log;
pub mod hash;
mod history;
mod length;
pub mod meeting_id;
mod opening;
mod peer_memory;
mod plain;
mod plan;
mod poison;
mod ranks;
mod record;
mod refusal;
pub mod rendezvous;
mod retire;
mod rounds;
mod search;
mod sharing_refusal;
mod start;
mod waits;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub use bootstrap::agreement::{Absentee, Entry, Place, ValuesByRank, Waiting};
pub use bootstrap::agreement::{OUTCOME_FLOOR, Ranks};
pub use bootstrap::wire;
pub use bootstrap::wire::Malformed;
pub use capabilities::{Capabilities, Capability, WindowSupport};
pub use commit::ending as commit_ending;
pub use decide::{decide, judge_registrations};
pub use ending::Ending;
pub use group_log::GroupLog;
pub use history::{BlockPlace, Divergence, Operation, OperationKind};
pub use length::length_patience;
pub use length::{LengthProtocol, length_ending};
pub use meeting_id::{MeetingId, MeetingKind};
pub use peer_memory::{MemberMemory, OfferedMemory, PeerMappings, PeerOffer, Unmapped};
pub use plain::ending as plain_ending;
pub use plain::{Attempt, Plain, RegistrationProtocol};
pub use plan::{
    After, Agreed, CommitDecision, CommitOutcome, CommitPlan, CommitProtocol, RegistrationOutcome, Rejection,
};
pub use poison::{NoWindows, Poison};
pub use process_group::group::GroupId;
pub use ranks::{RankList, rank_of};
pub use record::{CommitRecord, Enqueued, LogPoint, MessageCounts, Policy, PoolId, Readiness, Segment};
pub(crate) use refusal::are;
pub use refusal::{MemberList, Refusal, Shape};
pub use retire::{
    Candidate, Committed, Release, RetireOutcome, RetirePlan, RetireProtocol, Retired, RetirementRecord,
    decide_retirement, retirement_ending,
};
pub use rounds::Rounds;
pub use search::{Range, Recalled};
pub use start::Start;
pub use start::patience;
pub(crate) use waits::describe_circle;

/// The version of all messages of this crate's agreements: [records, plans, outcomes and decisions](crate#terms). If
/// ranks have different versions, their agreements are refused on all of them.
pub const PROTOCOL_VERSION: u16 = 14;

/// The magic bytes and the version that begin every message of these agreements.
pub const PROTOCOL: wire::Protocol = wire::Protocol { magic: *b"SY", version: PROTOCOL_VERSION };

/// The shortest time limit of an action. An action is the work that a decision assigns to every member: to register or
/// deregister windows, to wait until the device is idle, to open the memory of peers, or to execute one step of the
/// search for the first difference between allocation logs.
pub const ACTION_FLOOR: Duration = <CommitProtocol as bootstrap::agreement::Protocol>::ACTION_FLOOR;

/// If every time limit has its shortest value, a retirement ends at most this long after the decision on the records.
/// It has two time limits: one for the wait until the device is idle, and one for the deregistration. After each of
/// them, the members wait for the outcomes, for at most [`OUTCOME_FLOOR`].
pub const RETIREMENT_FLOOR: Duration = ACTION_FLOOR.saturating_add(OUTCOME_FLOOR).saturating_mul(2);

/// If every time limit has its shortest value, a commit ends at most this long after the decision on the records. It
/// has two time limits: one for all steps of the search, and one for the registration and the opening of peers' memory.
/// The members wait for the outcomes for at most [`OUTCOME_FLOOR`] after each of them. Because several actions
/// [share](bootstrap::agreement::Protocol::shares_limits) a limit, each of these waits may be longer by a further
/// [`OUTCOME_FLOOR`].
pub const COMMIT_FLOOR: Duration = RETIREMENT_FLOOR.saturating_add(OUTCOME_FLOOR.saturating_mul(2));

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! One protocol for every decision that the ranks of a job make together.
//!
//! Each member posts a record. The store keeps one decision, made from the records of all members by a pure function.
//! If the decision asks for an action, every member acts and posts its outcome, and the store keeps one verdict on the
//! outcomes, which may ask for another action. So all members end with the same result, also if some of them time out,
//! die, or lose the store.
//!
//! - [`Protocol`]: everything that is specific to one kind of agreement: records, decision, actions, verdict.
//!   [`PlainProtocol`]: the same for a kind without actions.
//! - [`Agreement`]: one member's part in one agreement, as a state machine without I/O.
//! - [`run`]: drives the state machine over a [store](crate::store), on the caller's thread.
//! - [`Failure`]: the reasons for which an agreement of any kind fails on all members.
//! - [`leave`]: ends the waits of the other members for a rank that will not come or go on.
//!
//! # Rules
//! - **One decision.** The member whose increment completes the count, or whose wait times out, proposes a decision. The
//!   store keeps the first proposal (compare-and-set), and every member obeys it.
//! - **Identity.** Every member compares its member list with that of the first one that came. A record carries the
//!   protocol's version and the generation of the object that the members agree on. Differences refuse the agreement on
//!   every member, and name the ranks.
//! - **Doubt.** From its post until it has read the result, a member is *in doubt*: the others may act on its record. A
//!   member that cannot reach the store meanwhile repeats the request until its patience has ended, and for at least 5 s.
//!   It then ends with [`Ending::InDoubt`], and its caller must treat the object as failed.
//! - **Time.** A member's patience limits only its wait for the records of the others. The limits of actions and outcomes
//!   follow from the longest patience, with a least and a greatest value, and are equal on all members. So a short
//!   patience refuses an agreement and breaks nothing.
//! - **Circular waits.** A member publishes which agreement it waits in. A member whose patience ends follows the waits
//!   of the missing ranks. If they lead back to it, it fails all agreements of the circle, with the whole circle. A rank
//!   whose threads take part in several agreements is in no circle, because another of its threads may come.
//! - **Retries and clean-up.** Every request to the store may be repeated. When all members have read the result, its keys
//!   are removed.
//! - **The store's host** should outlive the agreement: a member that hosts the store and ends first leaves the others in
//!   doubt. If members did not come, [`run`] therefore stays until those that came have read it, for at most 3 s.

mod budget;
mod failure;
mod machine;
mod protocol;
mod session;
#[cfg(test)]
mod tests;
mod trace;
mod values;
mod vote;

pub use failure::{Absentee, Failure, Place, Spoken, Waiting};
pub use machine::{Agreement, Conclusion, Ending, Input, Member, Output};
pub use protocol::{Decision, PlainProtocol, Protocol, Report, Verdict};
pub use session::{Failed, leave, run};
pub use values::{Entry, Ranks, ValuesByRank};
pub use vote::{Answer, Request};

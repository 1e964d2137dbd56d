//! One protocol for every decision that the ranks of a job make together.
//!
//! Each member posts a record. The store keeps one decision, made from the records of all members by a pure function.
//! If the decision asks for an action, every member acts and posts its outcome, and the store keeps one verdict on the
//! outcomes, which may ask for another action. So all members end with the same result, also if some of them time out,
//! die, or lose the store.
//!
//! - [`Protocol`]: everything that is specific to one kind of agreement: records, decision, actions, verdict.
//! - [`Agreement`]: one member's part in one agreement, as a state machine without I/O.
//! - [`run`]: drives the state machine over a [store](crate::store), on the caller's thread.
//! - [`Failure`]: the reasons for which an agreement of any kind fails on all members.
//! - [`leave`]: ends the waits of the other members for a rank that will not come or go on.
//!
//! # Rules
//! - **One decision.** A member that counts last, or whose patience ends, proposes a decision. The store keeps the first
//!   proposal (compare-and-set), and every member obeys it.
//! - **Identity.** A record carries the protocol's version, a digest of the member list and the generation of the object
//!   that the members agree on. Differences refuse the agreement on every member, and name the ranks.
//! - **Doubt.** From its post until it has read the result, a member is *in doubt*: the others may act on its record. A
//!   member that cannot reach the store meanwhile asks again until its deadline. It then ends with
//!   [`Ending::InDoubt`], and its caller must treat the object as failed.
//! - **Time.** A member's patience limits only its wait for the other members. Later steps have limits that are equal on
//!   all members, with lower bounds. So a short patience refuses an agreement and breaks nothing.
//! - **Circular waits.** A member publishes which agreement it waits in. A member whose patience ends follows the waits
//!   of the missing ranks. If they lead back to it, all agreements of the circle are refused, with the whole circle.
//! - **Order.** Every request to the store may be repeated. When all members have read the result, its keys are removed.

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

pub use failure::{Absentee, Failure, Place, Waiting};
pub use machine::{Agreement, Conclusion, Ending, Input, Member, Output};
pub use protocol::{Decision, Protocol, Verdict};
pub use session::{Failed, leave, run};
pub use values::{Entry, Ranks, ValuesByRank};
pub use vote::{Answer, Request};

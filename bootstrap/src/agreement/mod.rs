//! One protocol for every decision that the ranks of a job make together.
//!
//! Each member posts a record. The store keeps one decision, which a pure function makes from the records of all
//! members. If the decision asks for an action, every member acts and posts its outcome. The store then keeps one
//! verdict on the outcomes, which may ask for another action. So all members get the same result, even if some of
//! them time out, die, or lose the store.
//!
//! - [`Protocol`]: everything that is specific to one kind of agreement: records, decision, actions, verdict.
//!   [`PlainProtocol`]: the same for a kind without actions.
//! - [`Agreement`]: one member's part in one agreement, as a state machine without I/O.
//! - [`run`]: drives the state machine over a [store](crate::store), on the caller's thread.
//! - [`Failure`]: the reasons why an agreement of any kind fails.
//! - [`leave`]: ends the waits of the other members for a rank that will not take part, or not to the end.
//!
//! # Rules
//! - **One decision.** A counter in the store holds the number of posted records. The member that completes the
//!   count, or whose wait times out, proposes a decision. The store keeps the first proposal (compare-and-set), and
//!   every member follows it.
//! - **Identity.** Every member compares its member list with that of the first member. A record carries the
//!   protocol's version and the generation of the object that the members agree on. If any of these differ, the
//!   agreement fails on every member that has not read a decision yet, and the failure names the ranks.
//! - **Doubt.** From its post until it has read the result, a member is *in doubt*: the others may act on its
//!   record. If the store fails with a temporary error in this time, the member repeats the request until its
//!   patience has ended, and for at least 5 s. Then, or after any other error, it ends with [`Ending::InDoubt`],
//!   and its caller must treat the object as failed.
//! - **Time.** A member's patience limits its wait for the records of the others, and its retries. The limits of
//!   actions and outcomes follow from the longest patience, with a lower and an upper bound, and are equal on all
//!   members. So a short patience can fail an agreement, but it never shortens an action.
//! - **Circular waits.** A member publishes the agreement that it waits in. A member whose patience ends follows
//!   the waits of the missing ranks. If they lead back to it, it fails all agreements of the circle, and each
//!   failure lists the whole circle. A rank whose threads wait in several agreements publishes all of them. While
//!   one of them can go on, the rank is in no circle, because the thread in it may still post the missing record.
//! - **Retries and clean-up.** It is safe to send any request to the store twice. When all members have read the
//!   result, the keys of the agreement are removed.
//! - **The store's host** should outlive the agreement: a member that hosts the store and ends first leaves the
//!   others in doubt. If an agreement fails or is refused before an action, [`run`] therefore waits, for at most
//!   3 s, until the members that posted a record have read the result.

mod budget;
mod failure;
mod machine;
mod place;
mod protocol;
mod register;
mod session;
#[cfg(test)]
mod tests;
mod trace;
mod values;
mod vote;

pub use failure::{Absentee, Failure, Spoken};
pub use machine::{Agreement, Awaited, Conclusion, Ending, Input, Member, Output};
pub use place::{Place, Waiting};
pub use protocol::{Decision, PlainProtocol, Protocol, Report, Verdict};
pub use session::{Failed, leave, run};
pub use values::{Entry, ValuesByRank};
pub use vote::{Answer, Gone, Request};

pub use crate::Ranks;

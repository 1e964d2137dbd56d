//! One protocol for every decision that the ranks of a job make together.
//!
//! Each member posts a record. A pure function makes a decision from the records of all members, and the store keeps
//! one decision. If the decision asks for an action, every member acts and posts its outcome. The store then keeps one
//! verdict on the outcomes. The verdict may ask for another action. So all members that read the result get the same
//! one, even if some members time out, die, or lose the store. [`Ending::Failed`] names two exceptions.
//!
//! - [`Protocol`]: everything that is specific to one kind of agreement: records, decision, actions, verdict.
//!   [`PlainProtocol`]: a simpler form, for a kind without actions.
//! - [`Agreement`]: one member's part in one agreement, as a state machine without I/O.
//! - [`run`]: drives the state machine over a [store](crate::store), on the caller's thread.
//! - [`Failure`]: the reasons why an agreement of any kind fails.
//! - [`leave`]: fails an agreement because a rank will not take part in it, or will not complete its action.
//!
//! # Rules
//! - **One decision.** Members count their records in the store. The member whose record completes the count proposes
//!   the decision. So does a member whose wait times out, but it proposes a failure if records are missing. The store
//!   keeps the first proposal (compare-and-set), and every member follows it.
//! - **Identity.** Each agreement is about an object, such as a process group. A record carries the protocol's version
//!   and the generation of the object. Every member compares its member list with the list that was stored first. If
//!   any of these differ, the agreement fails, and the failure names the ranks. But a different member list that is
//!   found after the decision fails the agreement only on the member that found it.
//! - **Time.** A member's *patience* is the time that it waits for the records of the others. It also limits the
//!   retries of failed requests. The time limits of actions and of the waits for outcomes follow from the longest
//!   patience among the members, with a lower and an upper bound, and are equal on all members. So a member with a
//!   short patience can fail an agreement, but it does not shorten an action.
//! - **Doubt.** From the start of its post until it has read the result, a member is *in doubt*: the others may act on
//!   its record. If a request fails with a temporary error in this time, the member repeats the request until its
//!   patience has ended, and for at least 5 s after the first error. If the error persists, or is not temporary, the
//!   member ends with [`Ending::InDoubt`], and its caller must treat the object as failed.
//! - **Circular waits.** A member publishes the agreement that it waits in. A member whose patience ends follows
//!   the waits of the missing ranks. If these waits lead back to its agreement, it fails all agreements of the circle,
//!   and each failure lists the whole circle. A rank whose threads wait in several agreements publishes all of them.
//!   While one of these agreements can complete, the rank is in no circle: the thread that waits there may post the
//!   missing record afterwards.
//! - **Retries and clean-up.** It is safe to send any request to the store twice. When all members have acknowledged
//!   the result, one of them removes the keys of the agreement. If [`Protocol::KEEPS_RESULT`] is true, the member list
//!   and the result stay in the store.
//! - **The store's host** should outlive the agreement: if the process that hosts the store exits first, the members in
//!   doubt end with [`Ending::InDoubt`]. The caller of [`run`] may be in that process. So if an agreement fails or is
//!   refused before an action, [`run`] waits, for up to 3 s, until the other members that posted a record have read the
//!   result.

mod budget;
mod failure;
mod interface;
mod machine;
#[cfg(any(test, feature = "simulation"))]
mod memory;
mod messages;
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
pub use interface::{Awaited, Conclusion, Ending, Input, Member, OtherMembers, Output};
pub use machine::Agreement;
#[cfg(any(test, feature = "simulation"))]
pub use memory::Memory;
pub use place::{Place, Waiting};
pub use protocol::{Decision, PlainProtocol, Protocol, Report};
pub use session::{Failed, leave, run};
pub use values::{Entry, ValuesByRank};
pub use vote::{Answer, Gone, Request};

pub use crate::Ranks;

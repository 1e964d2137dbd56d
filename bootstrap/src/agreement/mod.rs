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
//! # Terms
//! - **Rank**: the number of a process in the job. **Member**: a rank that takes part in an agreement. **Member list**:
//!   all members, in an order that is the same on every member.
//! - **Object**: the thing that the agreement is about, such as a process group. **Generation**: how many times a rank
//!   has created the object.
//! - **Post**: to set a key that only this member sets, and only once. **Propose**: to set a key unless it has a value.
//!   The first proposal stays in the store, and every member follows it.
//! - **Vote**: each member posts a value, and one proposal becomes the result of the vote. In some cases a member
//!   proposes before all values are posted.
//! - **Record**: a member's contribution to the agreement. The vote on the records gives the **decision**.
//! - **Action**: work that every member does because the decision or a verdict asks for it. The **plan** is the data
//!   for it. The **outcome** is the data that a member posts after it. The vote on the outcomes of one action gives the
//!   **verdict**.
//! - **Result** of a vote: the proposal that the store keeps, which is a decision, a verdict, or a [`Failure`] in its
//!   place. **Result** of the agreement: the result of its last vote, which is an **agreed** value, a **refusal** (the
//!   [`Protocol`] has found a reason not to agree) or a [`Failure`] (any other reason).
//! - **Decided**: an agreement is decided once its decision key has a value: a decision, or a failure in its place.
//! - **Place** of a rank: an agreement in which a thread of the rank waits. **List of places**: all places of a rank,
//!   in one key of the store.
//! - **Arrive**: a rank arrives at an agreement when it adds the agreement to its list of places. It then posts its
//!   record without waiting for other ranks.
//! - **Missing**: a member whose record is not posted when another member's patience ends.
//! - **Acknowledge**: to publish that this member has read the result.
//!
//! The rules below define *patience*, *in doubt* and *circular wait*.
//!
//! # Rules
//! - **One decision.** After a member has posted its record, it adds 1 to a counter in the store. The member that
//!   raises the counter to the number of members proposes the decision. A member whose wait times out also proposes:
//!   the decision if all records are posted, otherwise a failure.
//! - **Identity.** A record carries the protocol's version and the generation of the object. Every member compares its
//!   member list with the list that was stored first. If any of these differ, the agreement fails, and the failure
//!   names the ranks. Exception: if a member finds a different member list after the decision, the agreement fails on
//!   this member alone.
//! - **Time.** A member's *patience* is the time that it waits for the records of the others. The time limits of
//!   actions and of the waits for outcomes follow from the longest patience among the members, with a lower and an
//!   upper bound, and are equal on all members. So a member with a short patience can fail an agreement, but it does
//!   not shorten an action.
//! - **Doubt.** From the start of its post until it has read the result, a member is *in doubt*: the others may act on
//!   its record. If a request fails with a temporary error in this time, the member repeats the request until its
//!   [deadline](Member::deadline), by default the end of its patience, and for at least 5 s after the first error. If
//!   the error persists, or is not temporary, the member ends with [`Ending::InDoubt`], and the caller of [`run`] must
//!   treat the object as failed.
//! - **Circular waits.** Ranks wait for each other in different agreements. A member whose patience ends follows the
//!   places of the missing ranks. If the places lead back to the member's own agreement, the member fails all
//!   agreements of the circle, and each failure lists the whole circle. If another member of the circle reads such a
//!   failure, it fails the other agreements of the circle before it leaves its own. If there is no circle,
//!   [`Protocol::explain`] may find another reason. A rank whose threads wait in several agreements has several places.
//!   Such a rank is in no circle while one of these agreements can complete: its thread in that agreement can then go
//!   on, and may post the record that is missing in another agreement.
//! - **Retries and clean-up.** It is safe to send any request to the store twice. When all members have acknowledged
//!   the result, one of them removes the keys of the agreement. If [`Protocol::KEEPS_RESULT`] is true, the member list
//!   and the decision stay in the store. If a member does not take part, all keys stay. [`remove_left`] removes what
//!   stays, once all members are in a later agreement.
//! - **The store's host** should outlive the agreement: if the process that hosts the store exits first, the members in
//!   doubt end with [`Ending::InDoubt`]. The caller of [`run`] may be in that process. So if an agreement fails or is
//!   refused before an action, [`run`] waits until the other members that posted a record have read the result. It
//!   waits for up to 3 s, and not past the member's deadline.

mod budget;
mod failure;
mod interface;
mod left;
mod machine;
#[cfg(any(test, feature = "simulation"))]
mod memory;
mod messages;
mod place;
mod protocol;
mod register;
mod retry;
mod session;
#[cfg(test)]
mod tests;
mod trace;
mod values;
mod vote;

pub use budget::OUTCOME_FLOOR;
pub use failure::{Absentee, Failure, Spoken};
pub use interface::{Awaited, Conclusion, Ending, Input, Member, Object, OtherMembers, Output};
pub use left::{remove_keys, remove_left};
pub use machine::Agreement;
#[cfg(any(test, feature = "simulation"))]
pub use memory::Memory;
pub use messages::{read_decision, read_verdict, refusal};
pub use place::{Place, Waiting, verdict_key};
pub use protocol::{Absence, Decision, PlainProtocol, Protocol, Report};
pub use retry::Retry;
pub use session::{Failed, end_wait, execute, leave, run};
pub use values::{Entry, ValuesByRank};
pub use vote::{Answer, Gone, Request};

pub use crate::Ranks;

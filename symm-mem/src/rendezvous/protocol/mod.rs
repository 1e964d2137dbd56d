//! The rendezvous protocol, without I/O: how the members of a group agree that each maps the others' memory.
//!
//! - [`Record`]: what a rank tells the others of its buffer, its device, and how its memory can be had.
//! - [`decide()`] and [`verdict`]: pure functions of what the members said.
//! - [`RendezvousRefusal`]: why there are no peers' buffers, the same value on every member.
//! - [`Meeting`]: one member's part in one rendezvous.
//!
//! Votes, their keys and the binary form are those of [`crate::agreement`].

mod decide;
mod machine;
mod record;
mod refusal;
#[cfg(test)]
mod tests;

pub use decide::{Decision, Outcome, Verdict, decide, verdict};
pub(crate) use decide::{Loss, judge};
pub use machine::{Conclusion, Ending, Input, Meeting, Output};
pub use record::{Handles, Readiness, Record, Subject, Uuid};
pub use refusal::RendezvousRefusal;

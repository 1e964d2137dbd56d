//! The commit protocol, without I/O: how the members of a group agree on which segments become windows.
//!
//! - [`Record`]: what a rank tells the others; with [`Decision`] and the outcomes, it has a strict, versioned
//!   binary form.
//! - [`decide()`] and [`verdict`]: pure functions of what the members said.
//! - [`Refusal`], [`Poison`], [`NoWindows`]: why there are no windows, the same value on every member.
//! - [`Commit`]: one member's part in one commit; [`Seat`]: what it remembers between commits.
//!
//! Not here: stores, communicators, memory, threads. A driver runs the machine in life, and the seeded
//! simulation in the tests.

mod decide;
mod hash;
mod history;
mod machine;
mod record;
mod refusal;
mod search;
mod seat;
mod split;
mod vote;
mod wire;

#[cfg(test)]
mod tests;

pub use decide::{Decision, Outcome, Verdict, decide, verdict};
pub use history::{BlockPlace, Divergence, Operation, OperationKind};
pub use machine::{Agreed, Commit, Conclusion, Ending, Input, Output};
pub use process_group::group::GroupId;
pub use record::{
    Capabilities, Enqueued, LogPoint, Place, Policy, PoolId, Readiness, Record, Segment, WindowSupport,
};
pub use refusal::{Absentee, Capability, Identity, NoWindows, Poison, Refusal, Shape};
pub use search::Range;
pub use seat::{Seat, Situation};
pub use split::{Side, Split};
pub use wire::{Malformed, PROTOCOL_VERSION};

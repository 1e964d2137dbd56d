//! Monitors the health of a job's groups. If a member of a group fails, the monitoring (the *watch*) ends the group on
//! all members, and every member reports the same reason.
//!
//! This module detects ranks whose heartbeats stop, overdue work, asynchronous errors of communicators, and members
//! whose calls differ. [`crate::peers`] detects processes of this host that have died or stopped. [`crate::record`]
//! records the calls that this module compares.
//!
//! | file | subject |
//! |---|---|
//! | `trouble` | the events that end a group, and their encoding |
//! | `machine` | heartbeats, the trouble log, questions: the protocol, without clock, thread or store |
//! | `heartbeat` | the heartbeat thread, one per job, which runs the protocol over the store |
//! | `signal` | the wake-up signal of the heartbeat thread, with the notices for that thread |
//! | `wake` | signals through the store that make other ranks read the trouble log at once |
//! | `watchdog` | one thread per process that checks the work and the communicators of all groups |
//! | `rolling` | the hash of a group's calls, which members compare |
//! | `evidence` | finds the first call in which members differ, and the rank that differs from the majority |
//!
//! Invariants:
//! - A call that starts an operation runs no code of this module except at most one step of the rolling hash.
//! - The watchdog makes no store requests, so a store that hangs delays no deadline.
//! - If the trouble log contains several troubles of a group, each member ends the group because of the first one,
//!   unless the group has already ended on that member.
//! - This module never ends the process.

mod evidence;
mod heartbeat;
mod machine;
mod rolling;
mod signal;
#[cfg(test)]
mod tests;
mod trouble;
mod wake;
mod watchdog;

pub use evidence::{Divergence, DivergentCall, MessageDifference};

pub(crate) use evidence::CallHistory;
pub(crate) use heartbeat::Watch;
pub(crate) use machine::COMPARISON;
pub(crate) use rolling::{Fold, Rolling};
pub(crate) use signal::WatchSignal;
pub(crate) use trouble::Trouble;
pub(crate) use wake::wake;
pub(crate) use watchdog::{Guard, Watchdog};

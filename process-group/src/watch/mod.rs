//! The watch over a job's groups. A failure of one member ends the group on all members, with one reason.
//!
//! It detects losses that no lock or socket shows, overdue work, asynchronous errors, and members whose calls differ.
//! The kernel's reports on processes of this host are handled by [`crate::peers`], and the record of calls is kept by
//! [`crate::record`].
//!
//! | file | subject |
//! |---|---|
//! | `trouble` | the events that end a group, and their encoding |
//! | `machine` | heartbeats, the trouble log, questions: the protocol, without clock, thread or store |
//! | `heartbeat` | the heartbeat thread, one per job, which runs the protocol over the store |
//! | `wake` | signals that make ranks read the log at once |
//! | `watchdog` | one thread per process that checks the work and the communicators of all groups |
//! | `rolling` | the hash of a group's calls, which members compare |
//! | `evidence` | finds the first call that differs, and the rank that made it |
//!
//! Invariants: a call runs no code of this module except one step of a hash. The watchdog makes no store requests, so
//! a store that hangs delays no deadline. The first rank that notices a trouble reports it. Of several troubles of a
//! group, the first in the log is used by every member that had none before. The process is never ended.

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

pub use evidence::{Divergence, DivergentCall};

pub(crate) use evidence::CallHistory;
pub(crate) use heartbeat::Watch;
pub(crate) use machine::COMPARISON;
pub(crate) use rolling::{Fold, Rolling};
pub(crate) use signal::WatchSignal;
pub(crate) use trouble::Trouble;
pub(crate) use wake::wake;
pub(crate) use watchdog::{Guard, Watchdog};

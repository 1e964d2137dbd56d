//! The watch over a job's groups: what is wrong with one member ends the group on all, with one reason.
//!
//! For: losses that no lock or socket tells of, works that are not done in time, errors in the background, members that
//! call different things. Not for: what the kernel tells of the processes of this host ([`crate::peers`]), or what was
//! called ([`crate::record`]).
//!
//! | file | subject |
//! |---|---|
//! | `trouble` | what ends a group, and how members tell each other |
//! | `machine` | heartbeats, the log of troubles, questions: the protocol, without clock, thread or store |
//! | `clerk` | one thread a job that runs the protocol over the store |
//! | `wake` | what has ranks read the log at once |
//! | `watchdog` | one thread a process that looks after the works and communicators of all groups |
//! | `rolling` | the hash of the calls of a group, which members compare |
//! | `evidence` | what members called where their hashes differ, and whose call is the odd one |
//!
//! Invariants: nothing here takes part in a call but for one step of a hash; the watchdog talks to no store, so that one
//! that hangs keeps no deadline from passing; who notices first tells the others, and of several troubles of a group the
//! first in the log counts on every member that had none before; the process is never ended.

mod clerk;
mod evidence;
mod machine;
mod rolling;
#[cfg(test)]
mod tests;
mod trouble;
mod wake;
mod watchdog;

pub use evidence::{Divergence, DivergentCall};

pub(crate) use clerk::{Bell, Watch};
pub(crate) use evidence::Testimony;
pub(crate) use machine::COMPARISON;
pub(crate) use rolling::{Fold, Rolling};
pub(crate) use trouble::Trouble;
pub(crate) use wake::wake;
pub(crate) use watchdog::{Guard, Watchdog};

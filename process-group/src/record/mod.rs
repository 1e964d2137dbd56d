//! The flight recorder: the last calls of a rank, and their state.
//!
//! For: finding out, afterwards or while it happens, which rank did not join and its last call. Not for
//! profiling: operations have the time of their call and the time at which they were seen to be done. No
//! event is recorded for either, unless the group is told to time them.
//!
//! | file | subject |
//! |---|---|
//! | `call` | the recorded data of a call |
//! | `clock` | time stamps |
//! | `ring` | the last calls of a rank: bounded, behind one lock, written without an allocation |
//! | `recorder` | a rank's ring, and the groups that write to it |
//! | `log` | a group's calls: numbers, hash and records, in one `begin` and `commit` |
//! | `dump` | the recorder's contents as data |
//! | `document` | the same as JSON, and as files for PyTorch's analyser (features `json` and `pickle`) |
//! | `progress` | the progress of every member |
//! | `progress_rpc` | progress queries between ranks over the store |
//!
//! Invariants: every operation that is launched is in the ring before NCCL is called, and no refused one
//! stays there; equal calls have equal numbers on all members of a group; a ring is shared by a group and the
//! groups that are split from it, so that a rank has one dump.

mod call;
mod clock;
#[cfg(any(feature = "json", feature = "pickle"))]
mod document;
mod dump;
mod log;
mod progress;
mod progress_rpc;
mod recorder;
mod ring;

pub use crate::operation::Operation;
pub use dump::{Dump, DumpError, DumpedGroup, Entry};
pub use progress::{LastCall, MemberProgress, Progress};

pub(crate) use call::{Call, are_one};
pub(crate) use clock::ticks;
pub(crate) use log::{Exchanged, Log, LogEntry};
pub(crate) use progress_rpc::{ProgressRpc, ask};
pub(crate) use recorder::{GroupEntry, Look, Recorder};
pub(crate) use ring::Span;

//! The flight recorder: the last calls of a rank, and their state.
//!
//! The recorder shows, during or after a hang, which rank did not join a collective, and the last call of
//! that rank. The recorder is not a profiler: it records the time of each call and the time at which the
//! operation was seen to be complete. Times on the device are measured only in groups with timing enabled,
//! which record a CUDA event before each operation.
//!
//! | file | subject |
//! |---|---|
//! | `call` | the recorded data of a call |
//! | `clock` | time stamps |
//! | `log` | a group's calls: numbers, hash and records, in one `begin` and `commit`; the ring of a rank's last calls, behind one lock |
//! | `guarded` | further data of a rank's groups behind the same lock |
//! | `recorder` | a rank's ring, and the groups that write to it |
//! | `dump` | the recorder's contents as data |
//! | `document` | the dump as JSON, and as files for PyTorch's analyser (features `json` and `pickle`) |
//! | `progress` | the progress of every member |
//! | `progress_rpc` | progress queries between ranks over the store |
//!
//! Invariants: The record of an operation is written to the ring before NCCL is called, and removed if the
//! operation is refused. Equal calls have equal numbers on all members of a group. A group and the groups
//! split from it share one ring, so that a rank has one dump.

mod call;
mod clock;
#[cfg(any(feature = "json", feature = "pickle"))]
mod document;
mod dump;
mod guarded;
mod log;
mod progress;
mod progress_rpc;
mod recorder;

pub use crate::operation::Operation;
pub use dump::{Dump, DumpError, DumpedGroup, Entry};
pub use progress::{CallCounts, LastCall, MemberProgress, Progress};

pub(crate) use call::{Call, Span, are_one};
pub(crate) use clock::ticks;
pub(crate) use guarded::{Guarded, Locked};
pub(crate) use log::{Counts, Exchanged, Log, LogEntry, Ring, RingState};
pub(crate) use progress_rpc::{ProgressRpc, ask};
pub(crate) use recorder::{GroupEntry, Look, Recorder};

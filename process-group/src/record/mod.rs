//! The flight recorder: what a rank called, as far as its memory of it goes, and what became of it.
//!
//! For: finding out after the fact, or while it happens, which rank did not join, and what it did instead. Not for
//! profiling: operations have the time of their call and the time at which somebody saw that they were done, and no
//! event is recorded for either, unless the group is told to time them.
//!
//! | file | subject |
//! |---|---|
//! | `call` | what is recorded of a call |
//! | `clock` | when it was |
//! | `ring` | the last calls of a rank: bounded, behind one lock, written without an allocation |
//! | `recorder` | a rank's ring, and the groups that write to it |
//! | `dump`, `document` | what was recorded, as data and as files that PyTorch's analyser reads |
//! | `progress` | how far every member is |
//! | `desk` | where ranks ask each other over the store while they run |
//!
//! Invariants: every operation that is launched stands in the ring before NCCL is called, and none that was refused
//! stays there; equal calls have equal numbers on all members of a group; a ring is shared by a group and the groups
//! that are split from it, so that a rank has one dump.

mod call;
mod clock;
mod desk;
mod document;
mod dump;
mod progress;
mod recorder;
mod ring;

pub use call::Operation;
pub use dump::{Dump, DumpError, DumpedGroup, Entry};
pub use progress::{LastCall, MemberProgress, Progress};

pub(crate) use call::{Call, are_one};
pub(crate) use clock::ticks;
pub(crate) use desk::{Desk, ask};
pub(crate) use progress::plain;
pub(crate) use recorder::{GroupEntry, Look, Recorder, Recording, Track};
pub(crate) use ring::Span;

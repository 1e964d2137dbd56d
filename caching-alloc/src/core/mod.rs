//! The allocator: pure safe code over [`SegmentSource`] and [`StreamEvents`].

#![forbid(unsafe_code)]
#![allow(dead_code)]

mod entry;
mod error;
mod heap;
mod segment;
mod settings;
mod size;
mod snapshot;
mod source;
mod stream;
pub mod symmetric;
mod tracker;

pub use entry::{Action, ActionKind, BlockSpan, Entry};
pub use error::{AllocError, Fault, OutOfMemory, TrackError};
pub use segment::{Hold, PoolId, Segment, SegmentId, SegmentReleased, SizeClass};
pub use settings::{PoolKind, PoolSettings, Reuse, Settings};
pub use size::{MAX_BLOCK, SMALL, SizeError, UNIT};
pub use snapshot::{BlockState, SegmentState, Snapshot, Usage};
pub use source::{MemoryInfo, SegmentMemory, SegmentSource, SourceError};
pub use stream::{EventError, EventId, StreamEvents, StreamId};
pub use tracker::{Filter, Tracker, TrackerError};

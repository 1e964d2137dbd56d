//! The allocator: pure safe code over [`SegmentSource`] and [`StreamEvents`].

#![forbid(unsafe_code)]

mod allocator;
mod block;
mod collect;
mod conf;
mod device;
mod entry;
mod error;
mod export;
mod fixed;
mod front;
mod graph;
mod heap;
#[cfg(test)]
mod interleavings;
mod lease;
mod lock;
mod miss;
mod observer;
mod pending;
mod pool;
mod raw;
mod recent;
mod release;
mod remap;
mod ring;
mod rounding;
mod route;
mod segment;
mod settings;
mod shard;
mod size;
mod slot;
mod snapshot;
mod source;
mod stats;
mod stream;
pub mod symmetric;
mod sync;
mod table;
mod tracker;
mod watch;

pub use allocator::{Allocator, Found};
pub use block::Block;
pub use conf::{ConfError, TorchConf};
pub use entry::{Action, ActionKind, BlockSpan, Entry};
pub use error::{AllocError, Fault, OutOfMemory, TrackError};
pub use export::{ExportError, ExportedPart, ShareHandle, ShareKind};
pub use graph::{Capture, GraphMemory, GraphPool};
pub use observer::{Observation, Verdict};
pub use pool::{Freeze, Pool};
pub use raw::RawError;
pub use rounding::{Fraction, Rounding};
pub use route::ThreadRoute;
pub use segment::{Hold, PoolId, Segment, SegmentId, SegmentReleased, SizeClass};
pub use settings::{PoolKind, PoolSettings, Reuse, Settings};
pub use size::{MAX_BLOCK, SMALL, SizeError, UNIT};
pub use snapshot::{BlockState, MappedState, SegmentState, Snapshot, Usage};
pub use source::{MemoryInfo, PageSource, SegmentMemory, SegmentSource, SourceError};
pub use stats::{Gauge, MemoryReport, SourceCalls, Stats, Usages};
pub use stream::{EventError, EventId, StreamEvents, StreamId};
pub use tracker::{Attachment, Filter, Tracker, TrackerError};
pub use watch::Since;

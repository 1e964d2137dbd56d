//! The allocator. It is safe code and calls no driver: a [`SegmentSource`] provides the memory, and [`StreamEvents`]
//! order the work of streams.

#![forbid(unsafe_code)]

mod allocator;
mod block;
mod block_meta;
mod conf;
mod engine;
mod entry;
mod error;
mod export;
mod fixed;
mod graph;
mod graph_use;
mod heap;
#[cfg(test)]
mod interleavings;
mod key;
mod lock;
mod observer;
mod pending;
mod pool;
mod pool_core;
mod pool_info;
mod quick_list;
mod raw_blocks;
mod recent;
mod registry;
mod remap;
mod request;
mod ring;
mod rounding;
mod route;
mod segment;
mod settings;
mod size;
mod slot;
mod snapshot;
mod source;
mod stats;
mod stream;
mod stream_cache;
pub mod symmetric;
mod tracker;

pub use allocator::{Allocator, Attachment, RawError};
pub use block::Block;
pub use conf::{ConfError, TorchConf};
pub use engine::Since;
pub use entry::{Action, ActionKind, BlockSpan, Entry};
pub(crate) use error::chain;
pub use error::{AllocError, Fault, OutOfMemory, TrackError, TrackerError};
pub use export::{ExportError, ExportedPart};
pub use graph::{Capture, Checkpoint, GraphMemory, GraphPool, RestoreError};
pub use graph_use::GraphUse;
pub use observer::{Observation, OomAction};
pub use pool::{Pool, ThreadRoute};
pub use pool_info::Freeze;
pub use request::{Name, RequestInfo};
pub use rounding::{Fraction, Rounding};
pub use route::RoutedRequest;
pub use segment::{Hold, PoolId, Segment, SegmentId, SegmentReleased};
pub use settings::{PoolKind, PoolSettings, Reuse, Settings};
pub use size::{MAX_BLOCK, SMALL, SizeClass, SizeError, UNIT};
pub use snapshot::{AddressInfo, BlockState, MappedState, SegmentState, Snapshot, Usage};
pub use source::{
    MemoryInfo, PageSource, SegmentMemory, SegmentSource, ShareHandle, ShareKind, SourceError, SourceLimit,
};
pub use stats::{Gauge, MemoryReport, SourceCalls, Stats, Usages};
pub use stream::{CaptureCount, CapturedUses, EventError, EventId, StreamEvents, StreamId};
pub use tracker::{Filter, Tracker};

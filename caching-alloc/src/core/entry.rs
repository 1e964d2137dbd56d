//! Trace entries: the events of memory, in order.

use std::sync::Arc;

use super::request::RequestInfo;
use super::segment::{PoolId, Segment};
use super::stream::StreamId;

/// One event.
///
/// *Structural* entries (segments, mappings, out of memory, snapshots, annotations) carry numbers 1, 2, 3… of
/// their device and reach every tracker in that order. *Block* entries are numbered per (pool, stream).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Structural: the device's generation after it. Block: its place among those of its pool and stream.
    pub number: u64,
    /// Nanoseconds since the allocator was made. Block entries share the stamp of their batch.
    pub time_ns: u64,
    /// Ordinal of the device.
    pub device: u32,
    /// The pool.
    pub pool: PoolId,
    /// The stream that the memory belongs to.
    pub stream: StreamId,
    /// The event.
    pub action: Action,
}

/// An event with its data. Sizes in bytes, addresses on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// A block was handed out.
    Alloc(BlockSpan),
    /// The owner freed it; another stream may still use it.
    FreeRequested(BlockSpan),
    /// It is available for reuse.
    FreeCompleted(BlockSpan),
    /// A segment was allocated from its source. Delivered before any block of it is handed out.
    SegmentAlloc(Segment),
    /// A segment is about to return to its source. Delivered before that, when no block of it is handed out
    /// and no work on it is left. Release everything that refers to it, then the hold.
    SegmentFree(Segment),
    /// A page was mapped, a new one or one that moved. Delivered before any block there is handed out. It
    /// moves or is released only while nobody holds it.
    SegmentMap(Segment),
    /// A page was unmapped from its address. Nobody holds it, and it can no longer be held. Work enqueued
    /// before may still use the address.
    SegmentUnmap(Segment),
    /// A segment without blocks was taken over by another stream, that of the entry.
    SegmentMoved {
        /// The segment.
        segment: Segment,
        /// The stream that had it before.
        from: StreamId,
    },
    /// A snapshot was taken; it contains everything up to this entry.
    Snapshot,
    /// A request failed for lack of memory.
    OutOfMemory {
        /// The requested size.
        wanted: u64,
        /// Free memory of the device, if it was reported.
        free: Option<u64>,
    },
    /// An annotation of the program.
    Annotation(Arc<str>),
}

/// A block of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSpan {
    /// First byte.
    pub address: u64,
    /// Length of the block.
    pub bytes: u64,
    /// The size that its owner requested.
    pub requested: u64,
    /// The source location and the name of the request.
    pub request: RequestInfo,
}

/// The kinds of [`Action`], for filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)] // The variants are those of `Action`.
pub enum ActionKind {
    Alloc,
    FreeRequested,
    FreeCompleted,
    SegmentAlloc,
    SegmentFree,
    SegmentMap,
    SegmentUnmap,
    SegmentMoved,
    Snapshot,
    OutOfMemory,
    Annotation,
}

impl ActionKind {
    /// The name that PyTorch's tools use for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::SegmentMoved => "segment_moved",
            Self::Snapshot => "snapshot",
            Self::OutOfMemory => "oom",
            Self::Annotation => "annotate",
        }
    }

    pub(super) fn bit(self) -> u16 {
        1 << (self as u16)
    }

    /// Returns true for events of one block, false for events of the device.
    #[must_use]
    pub fn is_block(self) -> bool {
        matches!(self, Self::Alloc | Self::FreeRequested | Self::FreeCompleted)
    }
}

impl Action {
    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> ActionKind {
        match self {
            Self::Alloc(_) => ActionKind::Alloc,
            Self::FreeRequested(_) => ActionKind::FreeRequested,
            Self::FreeCompleted(_) => ActionKind::FreeCompleted,
            Self::SegmentAlloc(_) => ActionKind::SegmentAlloc,
            Self::SegmentFree(_) => ActionKind::SegmentFree,
            Self::SegmentMap(_) => ActionKind::SegmentMap,
            Self::SegmentUnmap(_) => ActionKind::SegmentUnmap,
            Self::SegmentMoved { .. } => ActionKind::SegmentMoved,
            Self::Snapshot => ActionKind::Snapshot,
            Self::OutOfMemory { .. } => ActionKind::OutOfMemory,
            Self::Annotation(_) => ActionKind::Annotation,
        }
    }
}

//! Trace entries: what happened to memory, in order.

use std::sync::Arc;

use super::segment::{PoolId, Segment};
use super::stream::StreamId;

/// One thing that happened.
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
    /// The stream whose memory it is.
    pub stream: StreamId,
    /// What happened.
    pub action: Action,
}

/// What happened. Sizes in bytes, addresses on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// A block was handed out.
    Alloc(BlockSpan),
    /// Its owner let go; another stream may still use it.
    FreeRequested(BlockSpan),
    /// It can be handed out again.
    FreeCompleted(BlockSpan),
    /// A segment came from its source. Told before any block of it is handed out.
    SegmentAlloc(Segment),
    /// A segment is to go back to its source. Told before it goes, with no block of it handed out and no work on
    /// it left: let go of what refers to it, then of the hold.
    SegmentFree(Segment),
    /// A page was mapped, new or from elsewhere. Told before any block there is handed out. It moves, and goes, only
    /// while nobody holds it.
    SegmentMap(Segment),
    /// A page leaves its address: nobody holds it, and nobody can from now on. What was enqueued before may still use
    /// the address.
    SegmentUnmap(Segment),
    /// A snapshot was taken; it holds everything up to this entry.
    Snapshot,
    /// A request failed for want of memory.
    OutOfMemory {
        /// What was asked for.
        wanted: u64,
        /// What the device had left, if it said.
        free: Option<u64>,
    },
    /// A word of the program, placed among the rest.
    Annotation(Arc<str>),
}

/// A block's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSpan {
    /// First byte.
    pub address: u64,
    /// Length of the block.
    pub bytes: u64,
    /// What its owner asked for.
    pub requested: u64,
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
    Snapshot,
    OutOfMemory,
    Annotation,
}

impl ActionKind {
    /// The name that PyTorch's tools know it by.
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
            Self::Snapshot => "snapshot",
            Self::OutOfMemory => "oom",
            Self::Annotation => "annotate",
        }
    }

    pub(super) fn bit(self) -> u16 {
        1 << (self as u16)
    }

    /// Whether it concerns one block, rather than the device.
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
            Self::Snapshot => ActionKind::Snapshot,
            Self::OutOfMemory { .. } => ActionKind::OutOfMemory,
            Self::Annotation(_) => ActionKind::Annotation,
        }
    }
}

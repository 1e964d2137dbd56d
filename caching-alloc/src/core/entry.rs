//! Trace entries: records of the events of blocks and segments.

use std::fmt;
use std::sync::Arc;

use super::request::RequestInfo;
use super::segment::{PoolId, Segment};
use super::stream::StreamId;

/// One trace entry.
///
/// *Structural* entries record changes of segments and pages, requests that failed for lack of memory, snapshots and
/// annotations. Each allocator numbers them 1, 2, 3…, and delivers them to every tracker in this order. *Block* entries
/// record that blocks are handed out and freed. They are numbered 1, 2, 3… separately for each stream of each pool. The
/// allocator may drop its state of a stream that has neither memory nor blocks in a pool. The numbers of the stream's
/// later entries then begin at 1 again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The number of the entry. For a structural entry it is the generation of the allocator after this entry.
    pub number: u64,
    /// Nanoseconds since the allocator was made. Successive block entries may have the same time, because the clock is
    /// not read for each of them.
    pub time_ns: u64,
    /// Ordinal of the device.
    pub device: u32,
    /// The pool. Entries about no pool, such as annotations, have the number of the default pool.
    pub pool: PoolId,
    /// The stream that the memory belongs to. For the mapping of a page, and for the unmapping of one that moves, it is
    /// the stream whose request needed the page. For a request that failed, it is the stream of the request. Entries
    /// about no stream, such as annotations, have 0.
    pub stream: StreamId,
    /// The event.
    pub action: Action,
}

/// The event of an entry. Sizes are in bytes, and addresses are device addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// A block was handed out.
    Alloc(BlockSpan),
    /// The owner freed a block. Other streams may still use it.
    FreeRequested(BlockSpan),
    /// A freed block is available for reuse.
    FreeCompleted(BlockSpan),
    /// A segment was allocated from its source. Delivered before any block of it is handed out.
    SegmentAlloc(Segment),
    /// A segment, or a page of a dropped re-mappable pool, is about to be released to its source. None of its blocks
    /// is handed out, and all work that used it has ended. A tracker that has registered the segment elsewhere
    /// removes the registration now, and then drops its hold.
    SegmentFree(Segment),
    /// A page was mapped: a new page, or one that moved to this address. Delivered before any block there is handed
    /// out. The page neither moves nor is released while it is held.
    SegmentMap(Segment),
    /// A page leaves its address, because it moves or is about to be released. It is not held, and can no longer be
    /// held. Work that was enqueued before may still use the address.
    SegmentUnmap(Segment),
    /// A segment whose blocks are all free was moved to another stream, which is the stream of the entry.
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
    /// The text that the program passed to [`Allocator::annotate`](super::Allocator::annotate).
    Annotation(Arc<str>),
}

/// The block that a block entry is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BlockSpan {
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The size that the owner requested, in bytes.
    pub requested: u64,
    /// The source location and the name of the request.
    pub request: RequestInfo,
}

impl fmt::Debug for BlockSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, bytes, requested, request } = self;
        f.debug_struct("BlockSpan")
            .field("address", &format_args!("{address:#x}"))
            .field("bytes", bytes)
            .field("requested", requested)
            .field("request", request)
            .finish()
    }
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
    /// Returns the name of the kind in traces. It is the name that PyTorch's tools use, if they have such a kind.
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

    /// Returns true for the kinds of block entries, and false for those of structural entries.
    #[must_use]
    pub fn is_block(self) -> bool {
        matches!(self, Self::Alloc | Self::FreeRequested | Self::FreeCompleted)
    }
}

impl Action {
    /// Returns the kind of the action.
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

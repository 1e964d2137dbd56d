//! Errors of the allocator, and faults: failures that could not be returned to a caller.

use std::sync::Arc;

use super::segment::{PoolId, Segment};
use super::size::SizeError;
use super::source::{Cause, MemoryInfo, SourceError, SourceLimit};
use super::stream::StreamId;

/// The reason why a block could not be allocated, the use of a block could not be recorded, or an allocator or a pool
/// could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// An invalid block size.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// No memory is left, even after all cached memory that may be released was released.
    #[error(transparent)]
    OutOfMemory(Box<OutOfMemory>),
    /// The pool is frozen for capture, and the free memory of the stream has no room for the block. A frozen pool gets
    /// no new segments, and its streams do not take memory from each other.
    #[error(
        "pool {} is frozen for capture and has no room for {wanted} bytes: a new segment of {missing} bytes would be \
         needed; run the captured region once before the capture, or reserve the memory before freezing", pool.0
    )]
    PoolWouldGrowDuringCapture {
        /// The pool.
        pool: PoolId,
        /// Bytes asked for.
        wanted: u64,
        /// Bytes of the new segment that would be needed.
        missing: u64,
    },
    /// The stream is being captured, but the pool is neither frozen nor kept for a graph. So the pool might reuse the
    /// block's memory while the graph can still be launched.
    #[error(
        "{stream} captures, and pool {} keeps nothing for graphs: begin a capture of a graph pool for the stream \
         (`GraphPool::capture`) before the driver's, or freeze the pool for as long as the graph can be launched", pool.0
    )]
    CaptureOutsideGraphPool {
        /// The pool.
        pool: PoolId,
        /// The stream.
        stream: StreamId,
    },
    /// A method of a [`Tracker`](super::Tracker) made a request that cached memory does not serve, or created a pool.
    /// Such a call might have to wait for the delivery that is calling the tracker.
    #[error(
        "{operation} inside a tracker: a tracker waits for nobody, so it may only allocate what is cached, and free"
    )]
    ReentrantTracker {
        /// The operation.
        operation: &'static str,
    },
    /// A stream that [`StreamEvents`](super::StreamEvents) does not know.
    #[error(
        "{stream} is unknown: make it known to the allocator's streams before memory is asked for or used on it"
    )]
    UnknownStream {
        /// The stream.
        stream: StreamId,
    },
    /// A stream of another context than the allocator's.
    #[error("the stream is of another context than the allocator; use a stream of the allocator's context")]
    ForeignStream,
    /// The per-thread default stream, which is another stream on each thread.
    #[error("the per-thread default stream is another stream on each thread; use a stream of your own")]
    PerThreadStream,
    /// The block's memory comes from another source than that of the
    /// [`DeviceAllocator`](crate::driver::DeviceAllocator), because the block's pool has a source of its own. Such
    /// memory may not be device memory, so no typed slice is made of it.
    #[error(
        "the block at {address:#x} is of pool {}, which has a source of its own, but typed slices are memory of the \
         allocator's source: drop the thread's route to that pool, or do not let it lend; the pool gives untyped blocks",
        pool.0
    )]
    ForeignMemory {
        /// The address of the block's first byte.
        address: u64,
        /// The pool.
        pool: PoolId,
    },
    /// A re-mappable pool already serves the maximum number of streams.
    #[error("pool {} serves {streams} streams, the most at a time; ask another pool for memory of {stream}", pool.0)]
    TooManyStreams {
        /// The pool.
        pool: PoolId,
        /// The maximum number of streams.
        streams: usize,
        /// The stream for which a block was requested.
        stream: StreamId,
    },
    /// Settings of a pool that contradict each other, or that a graph pool must not have.
    #[error("pool {pool:?} cannot be made so: {what}")]
    PoolSettings {
        /// The name that was given.
        pool: String,
        /// The contradiction.
        what: &'static str,
    },
    /// The pool's source allocates on another device than the allocator. An allocator serves one device, because it
    /// orders all uses of its memory by the streams of that device.
    #[error(
        "pool {pool:?} cannot have memory of device {found}: its allocator is device {wanted}'s; ask that device's \
         allocator"
    )]
    OtherDevice {
        /// The name that was given.
        pool: String,
        /// The allocator's device.
        wanted: u32,
        /// The source's device.
        found: u32,
    },
    /// The source of a re-mappable pool has no pages that can be mapped at other addresses.
    #[error(
        "a re-mappable pool needs a source whose pages can be mapped anew (`SegmentSource::as_pages`); this one's cannot"
    )]
    NoPages,
    /// A source failed for a reason other than lack of memory.
    #[error("a segment of {bytes} bytes could not be made")]
    Source {
        /// The size of the segment or, in a re-mappable pool, of the block.
        bytes: u64,
        /// The source's error.
        #[source]
        source: SourceError,
    },
}

impl AllocError {
    /// Returns the error for a tracker's request that cached memory does not serve.
    pub(super) fn reentrant() -> Self {
        Self::ReentrantTracker { operation: "a request that needs more memory" }
    }
}

/// A request that failed for lack of memory, and the memory use at that time. All sizes are in bytes.
#[derive(Debug)]
pub struct OutOfMemory {
    /// Ordinal of the device.
    pub device: u32,
    /// The pool that received the request.
    pub pool: PoolId,
    /// The pool's name.
    pub pool_name: Arc<str>,
    /// The stream of the request.
    pub stream: StreamId,
    /// The requested size.
    pub wanted: u64,
    /// The smallest segment that would have been enough.
    pub segment: u64,
    /// The device's memory, if the source reported it.
    pub info: Option<MemoryInfo>,
    /// Size of all segments of this allocator.
    pub reserved: u64,
    /// Size of all blocks that are handed out.
    pub allocated: u64,
    /// Size of all blocks that were freed but that other streams may still use.
    pub pending: u64,
    /// Size of all segments that should have been released but are held (see [`Hold`](super::Hold)).
    pub quarantined: u64,
    /// Size of all segments of the pool.
    pub pool_reserved: u64,
    /// Size of all blocks of the pool that are handed out.
    pub pool_allocated: u64,
    /// The allocator's limit, if one is set.
    pub limit: Option<u64>,
    /// The limit of the pool's source, if the smallest segment would exceed it. If the limit is that of a
    /// [`LimitingSource`](crate::sources::LimitingSource), the values in `info` do not exceed it either.
    pub source_limit: Option<SourceLimit>,
    /// The cause of the source's last failure for lack of memory, if the source returned one
    /// ([`SourceError::OutOfMemory`]).
    pub source: Option<Cause>,
}

impl std::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { device, pool, pool_name, stream, wanted, segment, reserved, allocated, pending, .. } =
            self;
        match self.source_limit {
            Some(_) => write!(f, "a memory source of device {device} has reached its limit")?,
            None => write!(f, "device {device} is out of memory")?,
        }
        write!(
            f,
            ": {wanted} bytes for {stream} in pool {} ({pool_name}) need a segment of {segment} bytes; ",
            pool.0
        )?;
        match (self.source_limit, self.info) {
            (Some(SourceLimit { limit, used }), _) => {
                write!(f, "{used} of the {limit} bytes that the source may allocate are in use, ")?;
            }
            (None, Some(info)) => write!(f, "the device has {} of {} free, ", info.free, info.total)?,
            (None, None) => write!(f, "the device did not say what it has left, ")?,
        }
        if let Some(limit) = self.limit {
            write!(f, "the limit is {limit}, ")?;
        }
        write!(
            f,
            "this allocator holds {reserved} ({allocated} allocated, {pending} freed but in use by other streams, {} in \
             quarantine; this pool: {} reserved, {} allocated). ",
            self.quarantined, self.pool_reserved, self.pool_allocated
        )?;
        if let Some(SourceLimit { limit, .. }) = self.source_limit {
            return f.write_str(match limit < self.segment {
                true => "No segment can be larger than the source's limit; raise it",
                false => "Free blocks, or raise the source's limit",
            });
        }
        f.write_str(match (self.info, self.limit) {
            (Some(info), _) if info.total < self.wanted => "No block can be larger than the device",
            (_, Some(_)) => "Free blocks, lower other users' memory, or raise the limit",
            (_, None) => "Free blocks, or lower other users' memory",
        })
    }
}

impl std::error::Error for OutOfMemory {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// The error that a tracker returns.
pub type TrackerError = Box<dyn std::error::Error + Send + Sync>;

/// The reason why a tracker could not be attached or detached, or why a snapshot, an annotation, the reading of
/// structural entries, or a release of memory failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrackError {
    /// A method of a [`Tracker`](super::Tracker) made the call, which would have to wait for the delivery that is
    /// calling the tracker.
    #[error("{operation} inside a tracker would wait for the entry that is being delivered; do it elsewhere")]
    Reentrant {
        /// The operation.
        operation: &'static str,
    },
    /// The tracker returned an error when it received the snapshot.
    #[error("tracker {tracker} refused to attach")]
    Refused {
        /// The tracker's name.
        tracker: String,
        /// The tracker's error.
        #[source]
        source: TrackerError,
    },
    /// The tracker panicked while it received the snapshot.
    #[error("tracker {tracker} panicked while attaching: {message}")]
    Panicked {
        /// The tracker's name.
        tracker: String,
        /// The panic's message.
        message: String,
    },
}

/// A failure that could not be returned to a caller; see [`Allocator::faults`](super::Allocator::faults).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Fault {
    /// A tracker returned an error.
    TrackerFailed {
        /// The tracker's name.
        tracker: String,
        /// Number of the first of the entries that were being delivered.
        entry: u64,
        /// The error, with its causes.
        message: String,
    },
    /// A tracker panicked.
    TrackerPanicked {
        /// The tracker's name.
        tracker: String,
        /// Number of the first of the entries that were being delivered.
        entry: u64,
        /// The panic's message.
        message: String,
    },
    /// An out-of-memory observer panicked.
    ObserverPanicked {
        /// The panic's message.
        message: String,
    },
    /// A segment should have been released but is held (see [`Hold`](super::Hold)).
    Quarantined {
        /// The segment.
        segment: Segment,
        /// The names of its holders.
        holders: Vec<Arc<str>>,
    },
    /// A source failed to release a segment or page. The allocator does not try again, and no longer counts the memory
    /// as reserved.
    ReleaseFailed {
        /// The segment.
        segment: Segment,
        /// The error, with its causes.
        message: String,
    },
    /// Addresses of a re-mappable pool could not be unmapped, or pages could not be released. These addresses or
    /// pages are leaked.
    Unmapped {
        /// The pool.
        pool: PoolId,
        /// The error, with its causes.
        message: String,
    },
    /// No event could be recorded on a stream. Freed blocks that the stream may still use stay pending until an event
    /// can be recorded, or until the host has waited for the device.
    Unordered {
        /// The stream.
        stream: StreamId,
        /// The error, with its causes.
        message: String,
    },
    /// A source did not report the memory of its device, so the allocator treats that memory as unlimited.
    MemoryUnknown {
        /// The pool that uses the source.
        pool: PoolId,
        /// The error, with its causes.
        message: String,
    },
    /// The host failed to wait for the work on a segment, so the segment was not released. Later releases try again, but
    /// do not record the fault again.
    Stranded {
        /// The segment.
        segment: Segment,
        /// The error, with its causes.
        message: String,
    },
}

/// Returns an error's message, followed by those of its sources.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

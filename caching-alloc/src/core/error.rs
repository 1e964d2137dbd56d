//! Errors of the allocator, and faults that it could not return to a caller.

use std::sync::Arc;

use super::segment::{PoolId, Segment};
use super::size::SizeError;
use super::source::{MemoryInfo, SourceError};
use super::stream::StreamId;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// An invalid block size.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// No memory is left, even after all cached memory that may be released was released.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// The pool is frozen for capture, so it may allocate only from its existing segments.
    #[error(
        "pool {} is frozen for capture and has no room for {wanted} bytes: a new segment of {missing} bytes would be \
         needed; run the captured region once before the capture, or reserve the memory before freezing", pool.0
    )]
    PoolWouldGrowDuringCapture {
        /// The pool.
        pool: PoolId,
        /// Bytes asked for.
        wanted: u64,
        /// Bytes of the segment that is missing.
        missing: u64,
    },
    /// The stream captures, and the pool may reuse its memory before the graph is gone.
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
    /// A tracker tried an operation that needs the lock held during delivery.
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
    /// A re-mappable pool already serves the maximum number of streams.
    #[error("pool {} serves {streams} streams, the most at a time; ask another pool for memory of {stream}", pool.0)]
    TooManyStreams {
        /// The pool.
        pool: PoolId,
        /// The number of streams that it serves.
        streams: usize,
        /// The stream that a block was asked for on.
        stream: StreamId,
    },
    /// Settings of a pool that contradict each other.
    #[error("pool {pool:?} cannot be made so: {what}")]
    PoolSettings {
        /// The name that was given.
        pool: String,
        /// The contradiction.
        what: &'static str,
    },
    /// A pool's source is of another device than its allocator, whose streams order all of its memory.
    #[error(
        "pool {pool:?} cannot have memory of device {found}: its allocator is device {wanted}'s; ask that device's \
         allocator"
    )]
    OtherDevice {
        /// The name that was given.
        pool: String,
        /// The allocator's device.
        wanted: u32,
        /// The source's.
        found: u32,
    },
    /// A re-mappable pool needs a source of pages.
    #[error(
        "a re-mappable pool needs a source whose pages can be mapped anew (`SegmentSource::as_pages`); this one's cannot"
    )]
    NoPages,
    /// The source failed for another reason than lack of memory.
    #[error("a segment of {bytes} bytes could not be made")]
    Source {
        /// The segment's size.
        bytes: u64,
        /// The source's error.
        #[source]
        source: SourceError,
    },
}

impl AllocError {
    /// The error for a miss inside a tracker.
    pub(super) fn reentrant() -> Self {
        Self::ReentrantTracker { operation: "a request that needs more memory" }
    }
}

/// The figures of a request that failed for lack of memory. All sizes in bytes.
#[derive(Debug)]
pub struct OutOfMemory {
    /// Ordinal of the device.
    pub device: u32,
    /// The pool that was asked.
    pub pool: PoolId,
    /// Its name.
    pub pool_name: Arc<str>,
    /// The stream that asked.
    pub stream: StreamId,
    /// The requested size.
    pub wanted: u64,
    /// The smallest segment that would have been enough.
    pub segment: u64,
    /// The device's memory, if its source reported it.
    pub info: Option<MemoryInfo>,
    /// In segments of this allocator.
    pub reserved: u64,
    /// In blocks that are handed out.
    pub allocated: u64,
    /// In blocks that were freed but that other streams may still use.
    pub pending: u64,
    /// In segments that are not released because they are held.
    pub quarantined: u64,
    /// Segments of the pool that was asked.
    pub pool_reserved: u64,
    /// Blocks of that pool that are handed out.
    pub pool_allocated: u64,
    /// The allocator's limit, if one is set.
    pub limit: Option<u64>,
}

impl std::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { device, pool, pool_name, stream, wanted, segment, reserved, allocated, pending, .. } =
            self;
        write!(
            f,
            "device {device} is out of memory: {wanted} bytes for {stream} in pool {} ({pool_name}) need a segment of \
             {segment} bytes; ",
            pool.0
        )?;
        match self.info {
            Some(info) => write!(f, "the device has {} of {} free, ", info.free, info.total)?,
            None => write!(f, "the device did not say what it has left, ")?,
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
        f.write_str(match (self.info, self.limit) {
            (Some(info), _) if info.total < self.wanted => "No block can be larger than the device",
            (_, Some(_)) => "Free blocks, lower other users' memory, or raise the limit",
            (_, None) => "Free blocks, or lower other users' memory",
        })
    }
}

impl std::error::Error for OutOfMemory {}

/// The error of a tracker.
pub type TrackerError = Box<dyn std::error::Error + Send + Sync>;

/// Why a tracker could not be attached, or a snapshot or trim failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrackError {
    /// The call was made inside a tracker.
    #[error("{operation} inside a tracker would wait for the entry that is being delivered; do it elsewhere")]
    Reentrant {
        /// The operation.
        operation: &'static str,
    },
    /// The tracker refused the snapshot.
    #[error("tracker {tracker} refused to attach")]
    Refused {
        /// Its name.
        tracker: String,
        /// Its error.
        #[source]
        source: TrackerError,
    },
    /// The tracker panicked while it received the snapshot.
    #[error("tracker {tracker} panicked while attaching: {message}")]
    Panicked {
        /// Its name.
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
        /// Its name.
        tracker: String,
        /// Number of the first entry of the batch.
        entry: u64,
        /// The error, with its causes.
        message: String,
    },
    /// A tracker panicked.
    TrackerPanicked {
        /// Its name.
        tracker: String,
        /// Number of the first entry of the batch.
        entry: u64,
        /// The panic's message.
        message: String,
    },
    /// An out-of-memory observer panicked.
    ObserverPanicked {
        /// The panic's message.
        message: String,
    },
    /// A segment should have been released but is held.
    Quarantined {
        /// The segment.
        segment: Segment,
        /// The names of its holders.
        holders: Vec<Arc<str>>,
    },
    /// A source failed to take a segment back.
    ReleaseFailed {
        /// The segment.
        segment: Segment,
        /// The error, with its causes.
        message: String,
    },
    /// Addresses or pages of a re-mappable pool could not be released; they are leaked.
    Unmapped {
        /// The pool.
        pool: PoolId,
        /// The error, with its causes.
        message: String,
    },
    /// No event could be recorded for a stream's work. The blocks that it uses stay pending until one can be.
    Unordered {
        /// The stream.
        stream: StreamId,
        /// The error, with its causes.
        message: String,
    },
    /// A source did not report the memory of its device, so the allocator assumes that there is plenty.
    MemoryUnknown {
        /// The pool of the source.
        pool: PoolId,
        /// The error, with its causes.
        message: String,
    },
    /// Waiting for the end of the work on a segment failed, so the segment stays.
    Stranded {
        /// The segment.
        segment: Segment,
        /// The error, with its causes.
        message: String,
    },
}

/// An error with its sources, on one line.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

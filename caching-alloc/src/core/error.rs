//! What can go wrong, and what the allocator saw go wrong where it could not return an error.

use std::sync::Arc;

use super::segment::{PoolId, Segment};
use super::size::SizeError;
use super::source::{MemoryInfo, SourceError};
use super::stream::StreamId;
use super::tracker::TrackerError;

/// Why a request could not be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// A size that no block can have.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// There is no memory, after everything that was cached and could go has gone.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// The pool serves a capture and may place only in the segments that it has.
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
    /// The stream captures, and the pool gives its memory to others before the graph is gone.
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
    /// A tracker asked for what needs the lock under which it is told of entries.
    #[error(
        "{operation} inside a tracker: a tracker waits for nobody, so it may only allocate what is cached, and free"
    )]
    ReentrantTracker {
        /// What it tried.
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
    /// A re-mappable pool serves no more streams at a time.
    #[error("pool {} serves {streams} streams, the most at a time; ask another pool for memory of {stream}", pool.0)]
    TooManyStreams {
        /// The pool.
        pool: PoolId,
        /// How many it serves.
        streams: usize,
        /// The stream that a block was asked for on.
        stream: StreamId,
    },
    /// A symmetric pool is bound to one stream, so that its order of requests is one.
    #[error("pool {} is bound to {bound}, but a block for {stream} was asked for; use the pool's own stream", pool.0)]
    StreamNotOfPool {
        /// The pool.
        pool: PoolId,
        /// Its stream.
        bound: StreamId,
        /// The stream asked for.
        stream: StreamId,
    },
    /// What a symmetric pool reuses may not depend on when work ends.
    #[error(
        "a block of symmetric pool {} cannot be kept back for {stream}: let {bound} wait for {stream} before the block \
         is dropped, on every rank", pool.0
    )]
    SymmetricUse {
        /// The pool.
        pool: PoolId,
        /// Its stream.
        bound: StreamId,
        /// The stream that uses the block.
        stream: StreamId,
    },
    /// The source's segments cannot be multiples of 2 MiB only.
    #[error(
        "the source makes segments in steps of {granularity} bytes; a symmetric pool needs steps that divide 2 MiB"
    )]
    Granularity {
        /// The source's granularity.
        granularity: u64,
    },
    /// Settings of a pool that contradict each other.
    #[error("pool {pool:?} cannot be made so: {what}")]
    PoolSettings {
        /// The name that was given.
        pool: String,
        /// What cannot be, and why.
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
    /// The source failed for another reason than want of memory.
    #[error("a segment of {bytes} bytes could not be made")]
    Source {
        /// The segment's size.
        bytes: u64,
        /// What the source said.
        #[source]
        source: SourceError,
    },
}

/// The figures of a request that found no memory. All sizes in bytes.
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
    /// What was asked for.
    pub wanted: u64,
    /// The smallest segment that would have done.
    pub segment: u64,
    /// The device's memory, if its source could say.
    pub info: Option<MemoryInfo>,
    /// In segments of this allocator.
    pub reserved: u64,
    /// In blocks that are handed out.
    pub allocated: u64,
    /// In blocks whose owners let go but which other streams may still use.
    pub pending: u64,
    /// Kept because somebody holds it.
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

/// Why a tracker could not be attached, or a snapshot or trim not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrackError {
    /// Asked for inside a tracker.
    #[error("{operation} inside a tracker would wait for the entry that is being delivered; do it elsewhere")]
    Reentrant {
        /// What was tried.
        operation: &'static str,
    },
    /// The tracker refused the snapshot.
    #[error("tracker {tracker} refused to attach")]
    Refused {
        /// Its name.
        tracker: String,
        /// What it said.
        #[source]
        source: TrackerError,
    },
    /// The tracker panicked over the snapshot.
    #[error("tracker {tracker} panicked while attaching: {message}")]
    Panicked {
        /// Its name.
        tracker: String,
        /// The panic's message.
        message: String,
    },
}

/// Something that went wrong where no caller could be told; see [`Allocator::faults`](super::Allocator::faults).
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
    /// An observer of want of memory panicked.
    ObserverPanicked {
        /// The panic's message.
        message: String,
    },
    /// A segment should have gone back but is held.
    Quarantined {
        /// The segment.
        segment: Segment,
        /// Who holds it.
        holders: Vec<Arc<str>>,
    },
    /// A source failed to take a segment back.
    ReleaseFailed {
        /// The segment.
        segment: Segment,
        /// The error, with its causes.
        message: String,
    },
    /// Addresses or pages of a re-mappable pool could not be given back; they are lost to it.
    Unmapped {
        /// The pool.
        pool: PoolId,
        /// The error, with its causes.
        message: String,
    },
    /// A stream's work could not be marked. What it uses stays pending until it can be.
    Unordered {
        /// The stream.
        stream: StreamId,
        /// The error, with its causes.
        message: String,
    },
    /// A source did not say how much memory its device has: it is taken to have plenty.
    MemoryUnknown {
        /// The pool of the source.
        pool: PoolId,
        /// The error, with its causes.
        message: String,
    },
    /// The end of the work on a segment could not be awaited, so it stays where it is.
    Stranded {
        /// The segment.
        segment: Segment,
        /// The error, with its causes.
        message: String,
    },
}

/// An error with its causes, on one line.
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

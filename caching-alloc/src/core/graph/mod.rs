//! Pools for CUDA graphs, whose memory stays in place.
//!
//! A graph contains the addresses that were handed out during its capture, and uses them at each launch. So these
//! addresses come from a pool that only captures use. While a graph of the pool exists, the pool neither releases nor
//! lends memory. Later captures may still reuse memory that earlier ones have freed.

mod checkpoint;

pub use self::checkpoint::{Checkpoint, RestoreError};
use super::allocator::Allocator;
use super::error::AllocError;
use super::pool::Pool;
use super::pool_info::{Freeze, Keep};
use super::segment::{Hold, PoolId, Segment};
use super::settings::{PoolKind, PoolSettings};
use super::stats::Stats;
use super::stream::StreamId;

/// A pool for graphs. Several graphs can be captured from it, one after another. Each of them may reuse memory that the
/// earlier ones have freed. So graphs of one pool must be launched one after the other, in the order of their captures,
/// and must not run at the same time.
///
/// ```
/// # use std::sync::Arc;
/// # use caching_alloc::core::{Allocator, PoolSettings, Settings, StreamId};
/// # use caching_alloc::host::{HostSource, HostStreams};
/// # fn main() -> Result<(), caching_alloc::core::AllocError> {
/// # let (source, streams) = (Arc::new(HostSource::new(1 << 30)), Arc::new(HostStreams::new()));
/// let allocator = Allocator::new(source, streams.clone(), Settings::default());
/// let pool = allocator.graph_pool(PoolSettings { name: "decode".into(), ..PoolSettings::default() })?;
///
/// let stream = StreamId(1);
/// let capture = pool.capture(&[stream]);
/// streams.set_capturing(stream, true); // the driver's capture begins
/// let block = allocator.allocate(1 << 20, stream)?;
/// assert_eq!(block.pool(), pool.id());
/// drop(block); // the next request of the capture can reuse it
/// streams.set_capturing(stream, false); // the driver's capture ends
/// let memory = capture.end();
///
/// allocator.empty_cache().unwrap();
/// assert!(pool.stats().reserved.current > 0); // the memory stays as long as the graph can be launched
/// drop(memory);
/// allocator.empty_cache().unwrap();
/// assert_eq!(pool.stats().reserved.current, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct GraphPool(Pool);

/// A guard that routes the requests for some streams to a graph pool; see [`GraphPool::capture`]. [`end`](Self::end)
/// returns the memory of the captured graph. After a warm-up run without a graph, drop the guard instead, so that the
/// pool may release its memory again.
#[derive(Debug)]
#[must_use = "requests go to the graph pool until this is ended or dropped"]
pub struct Capture {
    pool: GraphPool,
    route: u64,
    keep: Keep,
}

/// Keeps the memory of a graph. While it lives, the graph's pool neither releases nor lends memory. Drop it when the
/// graph is destroyed and its last launch has ended.
///
/// If the allocator's [`StreamEvents`](super::StreamEvents) detect captures, as
/// [`DriverEvents`](crate::driver::DriverEvents) do, the graph itself keeps the memory that was allocated in its capture,
/// even if this value is dropped first.
#[derive(Debug)]
#[must_use = "the graph's memory can go when this is dropped"]
pub struct GraphMemory {
    // The holds are dropped before `pool`, because the drop of a pool releases only segments that nobody holds.
    holds: Vec<Hold>,
    _keep: Keep,
    pool: GraphPool,
}

impl Allocator {
    /// Creates a pool for graphs.
    ///
    /// # Errors
    /// [`AllocError::PoolSettings`] if the kind is neither [`Cached`](PoolKind::Cached) nor
    /// [`NoSplit`](PoolKind::NoSplit), or if the pool lends or borrows. Otherwise the errors of [`pool`](Self::pool).
    pub fn graph_pool(&self, settings: PoolSettings) -> Result<GraphPool, AllocError> {
        let what = match settings.kind {
            PoolKind::Cached | PoolKind::NoSplit if !settings.lends && !settings.borrows => {
                return self.pool(settings).map(GraphPool);
            }
            PoolKind::Cached | PoolKind::NoSplit => "memory of graphs is neither lent nor borrowed",
            PoolKind::Remappable => "a graph's memory never moves; use a pool of fixed segments",
        };
        Err(AllocError::PoolSettings { pool: settings.name, what })
    }
}

impl GraphPool {
    /// Returns the pool's number in its allocator.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.0.id()
    }

    /// Returns the pool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Returns the pool's statistics.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// Routes calls of [`Allocator::allocate`] for these streams, on every thread, to this pool, until the returned
    /// guard is ended or dropped. A newer guard of a thread ([`Pool::use_on_this_thread`]) takes precedence. Call this
    /// method before the driver's capture begins, and end the guard after the driver's capture has ended.
    ///
    /// Blocks while a pool of the allocator grows or is trimmed. After it returns and until the guard is gone, the
    /// allocator does not make the host wait for the streams, because that would invalidate the driver's capture.
    ///
    /// Inside a tracker, that is, in a call from a method of a [`Tracker`](super::Tracker), it does not block. A growth
    /// or trim that has begun before may then still make the host wait for the streams.
    pub fn capture(&self, streams: &[StreamId]) -> Capture {
        let route = self.0.begin_capture(streams);
        Capture { pool: self.clone(), route, keep: self.0.keep() }
    }

    /// Returns a guard that freezes the pool; see [`Pool::freeze`]. Until it is dropped, a request that the stream's
    /// own free memory cannot serve fails with
    /// [`PoolWouldGrowDuringCapture`](AllocError::PoolWouldGrowDuringCapture). Use it for captures after a warm-up run.
    pub fn freeze(&self) -> Freeze {
        self.0.freeze()
    }
}

impl Capture {
    /// Adds a stream that will join the capture. Blocks like [`GraphPool::capture`], with the same exception.
    pub fn add_stream(&self, stream: StreamId) {
        self.pool.0.add_to_capture(self.route, stream);
    }

    /// Ends the routing. The returned value keeps the graph's memory, so keep it as long as the graph. Blocks until no
    /// pool of the allocator grows or is trimmed. Inside a tracker, it does not block, and
    /// [`GraphMemory::segments`] may lack a segment that is being added or moved.
    pub fn end(self) -> GraphMemory {
        let segments = self.pool.0.segments();
        let name = format!("graph of pool {}", self.pool.name());
        // All segments are live, because the pool releases none while `self` exists.
        let holds = segments.iter().filter_map(|segment| segment.hold(&name).ok()).collect();
        GraphMemory { holds, _keep: self.keep.clone(), pool: self.pool.clone() }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.pool.0.end_capture(self.route);
    }
}

impl GraphMemory {
    /// Returns the pool that the graph was captured from.
    #[must_use]
    pub fn pool(&self) -> &GraphPool {
        &self.pool
    }

    /// Returns the segments that the pool had at the end of the capture; see [`Capture::end`] for an exception.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.holds.iter().map(Hold::segment)
    }
}

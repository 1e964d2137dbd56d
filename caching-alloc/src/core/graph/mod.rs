//! Pools for CUDA graphs, whose memory must stay in place.
//!
//! A graph contains the addresses that were handed out during its capture, and uses them at each launch. So
//! they come from a pool of their own, which only captures use. While a graph lives, its pool releases and
//! lends nothing, but further captures may reuse memory that earlier ones have freed.

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

/// A pool for graphs. Several graphs can be captured from it, one after another. Graphs that share a pool
/// must be launched one after the other, in the order of their captures, and never at the same time: each may
/// reuse memory that the earlier ones have freed.
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
/// drop(block); // the next request of the capture may have it
/// streams.set_capturing(stream, false); // and ends
/// let memory = capture.end();
///
/// allocator.empty_cache().unwrap();
/// assert!(pool.stats().reserved.current > 0); // as long as the graph can be launched
/// drop(memory);
/// allocator.empty_cache().unwrap();
/// assert_eq!(pool.stats().reserved.current, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct GraphPool(Pool);

/// Routes requests of streams to a graph pool. Dropping it ends that and keeps no memory: for a warm-up run.
#[derive(Debug)]
#[must_use = "requests go to the graph pool until this is ended or dropped"]
pub struct Capture {
    pool: GraphPool,
    route: u64,
    keep: Keep,
}

/// Keeps the memory of a graph's pool in place, and for that pool alone. Drop it when the graph is gone and
/// its last launch has ended.
#[derive(Debug)]
#[must_use = "the graph's memory can go when this is dropped"]
pub struct GraphMemory {
    // Dropped before the pool, which releases segments that nobody holds.
    holds: Vec<Hold>,
    _keep: Keep,
    pool: GraphPool,
}

impl Allocator {
    /// A new pool for graphs.
    ///
    /// # Errors
    /// [`AllocError::PoolSettings`] for a kind other than [`Cached`](PoolKind::Cached) and
    /// [`NoSplit`](PoolKind::NoSplit), or one that lends or borrows; otherwise as [`pool`](Self::pool).
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
    /// Its number.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.0.id()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Its statistics.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// Starts to route requests of these streams to [`Allocator::allocate`], on every thread, to this pool.
    /// Begin before the driver's capture and end after it.
    ///
    /// Blocks until a running growth or trim has ended. After it, the allocator waits for none of the
    /// streams, so it cannot disturb the driver's capture.
    pub fn capture(&self, streams: &[StreamId]) -> Capture {
        let route = self.0.begin_capture(streams);
        Capture { pool: self.clone(), route, keep: self.0.keep() }
    }

    /// Until the guard is dropped, a request that needs a new segment fails with
    /// [`PoolWouldGrowDuringCapture`](AllocError::PoolWouldGrowDuringCapture). Use it for captures after a
    /// warm-up run.
    pub fn freeze(&self) -> Freeze {
        self.0.freeze()
    }
}

impl Capture {
    /// Adds a stream that will join the capture. Blocks like [`GraphPool::capture`].
    pub fn add_stream(&self, stream: StreamId) {
        self.pool.0.add_to_capture(self.route, stream);
    }

    /// Ends the capture; the result belongs to the graph.
    pub fn end(self) -> GraphMemory {
        let segments = self.pool.0.segments();
        let name = format!("graph of pool {}", self.pool.name());
        // All are live: the pool releases none now.
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
    /// The pool that the graph was captured from.
    #[must_use]
    pub fn pool(&self) -> &GraphPool {
        &self.pool
    }

    /// All segments of the pool at the end of the capture.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.holds.iter().map(Hold::segment)
    }
}

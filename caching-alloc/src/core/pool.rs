//! Handles of pools.

use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use super::block::Block;
use super::engine::Engine;
use super::error::AllocError;
use super::key::Key;
use super::pool_core::{Conflict, PoolHandle, SavedBlock};
use super::pool_info::{Freeze, Keep, PoolInfo};
use super::recent;
use super::request::{Name, Request, RequestInfo};
use super::route::RoutedRequest;
use super::segment::{PoolId, Segment};
use super::settings::PoolKind;
use super::size::units_for;
use super::stats::{Counters, Gauge, Stats};
use super::stream::StreamId;

/// A pool of memory with its own segments. A `Pool` is a cheap handle.
///
/// After the last handle and the last block of the pool are dropped, its segments are released to their source, once no
/// work uses them and no [`Hold`](super::Hold) keeps them.
#[derive(Clone)]
pub struct Pool {
    handle: Arc<PoolHandle>,
    engine: Arc<Engine>,
}

impl Pool {
    pub(super) fn new(engine: &Arc<Engine>, handle: Arc<PoolHandle>) -> Self {
        Self { handle, engine: engine.clone() }
    }

    fn info(&self) -> &Arc<PoolInfo> {
        &self.handle.core.info
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns the ordinal of the device.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.engine.registry.ordinal()
    }

    /// Returns the pool's number in its allocator.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.info().id
    }

    /// Returns the pool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.info().name
    }

    /// Returns the kind of the pool.
    #[must_use]
    pub fn kind(&self) -> PoolKind {
        self.info().kind
    }

    /// Returns true if the source of the pool's segments can [export](Block::export) them. NCCL registers only such
    /// memory.
    #[must_use]
    pub fn is_exportable(&self) -> bool {
        self.info().source.is_exportable()
    }

    /// Returns the number of handles of this pool, including those in thread routes, captures and
    /// [`GraphMemory`](super::GraphMemory). Blocks and [`Freeze`] guards do not count.
    #[must_use]
    pub fn use_count(&self) -> usize {
        Arc::strong_count(&self.handle)
    }

    /// Allocates a block of at least `bytes`, for use on `stream` from now on.
    ///
    /// A stream that is being captured is served only by a pool that keeps its memory for the graph: a
    /// [frozen](Self::freeze) pool, or a graph pool during [`GraphPool::capture`](super::GraphPool::capture). Other
    /// pools return [`CaptureOutsideGraphPool`](AllocError::CaptureOutsideGraphPool). While the counter that
    /// [`StreamEvents::captures`](super::StreamEvents::captures) returned is 0, or if there is none, only requests that
    /// find no free block in the stream's cache query the capture status. Other requests are not refused then.
    ///
    /// # Errors
    /// [`AllocError`]. Cached memory may have been released before the request failed.
    #[inline]
    #[track_caller]
    pub fn allocate(&self, bytes: u64, stream: StreamId) -> Result<Block, AllocError> {
        self.allocate_as(bytes, stream, RequestInfo::here())
    }

    /// Like [`allocate`](Self::allocate), with a name that trace entries and snapshots show.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    #[inline]
    #[track_caller]
    pub fn allocate_named(&self, bytes: u64, stream: StreamId, name: Name) -> Result<Block, AllocError> {
        self.allocate_as(bytes, stream, RequestInfo { name: Some(name), ..RequestInfo::here() })
    }

    #[inline]
    pub(super) fn allocate_as(
        &self,
        bytes: u64,
        stream: StreamId,
        info: RequestInfo,
    ) -> Result<Block, AllocError> {
        let handle = &*self.handle;
        let rounded = handle.rounding.map_or(bytes, |rounding| rounding.round(bytes));
        let request = Request { units: units_for(rounded)?, bytes, info };
        let key = Key { pool: handle.core.info.key, stream };
        if handle.captures.get() != 0 {
            return self.allocate_beside_captures(key, request);
        }
        self.serve(key, request)
    }

    #[inline]
    fn serve(&self, key: Key, request: Request) -> Result<Block, AllocError> {
        match recent::find(key).and_then(|slot| Block::hit(slot, key, request)) {
            Some(block) => Ok(block),
            None => self.engine.allocate(&self.handle.core, key, request),
        }
    }

    /// Serves a request while any stream may be capturing.
    #[cold]
    fn allocate_beside_captures(&self, key: Key, request: Request) -> Result<Block, AllocError> {
        let info = &self.handle.core.info;
        let may_capture = info.refuse_capture(key.stream)?;
        let block = self.serve(key, request)?;
        if may_capture {
            info.registry.events.note_allocation(key.stream, block.address(), block.bytes());
        }
        Ok(block)
    }

    /// Returns a guard. Until it is dropped, the pool neither grows, nor releases or lends memory. A request for which
    /// the stream's free memory in the pool has no room then fails with
    /// [`PoolWouldGrowDuringCapture`](AllocError::PoolWouldGrowDuringCapture), even if another stream of the pool has
    /// free memory.
    ///
    /// If the allocator detects the capture, as with [`DriverEvents`](crate::driver::DriverEvents), a block that a
    /// captured request gets is not reused before the end of the graph, not even by later requests of the same
    /// capture. So a captured loop that allocates and frees needs the memory of all its blocks, and fails with
    /// `PoolWouldGrowDuringCapture` if the pool has less. A [`GraphPool`](super::GraphPool) reuses blocks within a
    /// capture.
    ///
    /// Blocks while any pool of the allocator grows or is trimmed, so that a growth or trim of this pool does not
    /// continue under the guard. Inside a tracker, that is, in a call from a method of a [`Tracker`](super::Tracker),
    /// it does not block: the growth or trim that called the tracker may still complete.
    pub fn freeze(&self) -> Freeze {
        self.handle.core.freeze()
    }

    /// Returns a guard. Until it is dropped, the pool neither releases nor lends memory. Blocks like
    /// [`freeze`](Self::freeze).
    pub(super) fn keep(&self) -> Keep {
        self.handle.core.keep()
    }

    /// Returns the pool's current segments, or none for a re-mappable pool. The caller must hold a guard of
    /// [`keep`](Self::keep).
    pub(super) fn segments(&self) -> Vec<Segment> {
        self.handle.core.segments()
    }

    /// Sets each [`Gauge::peak`] in the pool's statistics to the gauge's current value.
    pub fn reset_peaks(&self) {
        self.handle.core.reset(Gauge::reset_peak, Counters::reset_peaks);
    }

    /// Sets each [`Gauge::total`] in the pool's statistics to the gauge's current value.
    pub fn reset_totals(&self) {
        self.handle.core.reset(Gauge::reset_total, Counters::reset_totals);
    }

    /// Returns the pool's statistics.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.handle.core.stats()
    }

    /// Makes [`Allocator::allocate`](super::Allocator::allocate) on this thread use this pool until the guard is
    /// dropped. If several guards, or a [capture](super::GraphPool::capture) of the stream, apply to a request, the
    /// newest one wins. Other threads and other allocators are not affected.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use caching_alloc::core::{Allocator, PoolSettings, Settings, StreamId};
    /// # use caching_alloc::host::{HostSource, HostStreams};
    /// # fn main() -> Result<(), caching_alloc::core::AllocError> {
    /// # let (source, streams) = (Arc::new(HostSource::new(1 << 30)), Arc::new(HostStreams::new()));
    /// let allocator = Allocator::new(source, streams, Settings::default());
    /// let pool = allocator.pool(PoolSettings { name: "weights".into(), ..PoolSettings::default() })?;
    /// let weights = {
    ///     let _weights = pool.use_on_this_thread();
    ///     allocator.allocate(1 << 20, StreamId(1))?
    /// };
    /// assert_eq!(weights.pool(), pool.id());
    /// assert_ne!(allocator.allocate(1 << 20, StreamId(1))?.pool(), pool.id());
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "use_mem_pool")]
    pub fn use_on_this_thread(&self) -> ThreadRoute {
        let made = self.engine.routes.begin_here(self.handle.clone(), None);
        ThreadRoute { made, engine: self.engine.clone(), _thread: PhantomData }
    }

    /// Like [`use_on_this_thread`](Self::use_on_this_thread), but only for requests for which `selects` returns true.
    /// For other requests, the next older guard applies. `selects` is called on this thread, for each request to the
    /// allocator and each call of [`pool_for`](super::Allocator::pool_for) to which no newer guard of this thread
    /// applies. It may request memory, and create and drop guards. While it runs, guards with a predicate, of any
    /// allocator, do not apply to requests of this thread.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use caching_alloc::core::{Allocator, PoolSettings, Settings, StreamId};
    /// # use caching_alloc::host::{HostSource, HostStreams};
    /// # fn main() -> Result<(), caching_alloc::core::AllocError> {
    /// # let (source, streams) = (Arc::new(HostSource::new(1 << 30)), Arc::new(HostStreams::new()));
    /// # let allocator = Allocator::new(source, streams, Settings::default());
    /// let long = allocator.pool(PoolSettings { name: "long".into(), ..PoolSettings::default() })?;
    /// let _route = long.use_on_this_thread_if(|request| request.bytes >= 1 << 20);
    /// assert_eq!(allocator.allocate(2 << 20, StreamId(1))?.pool(), long.id());
    /// assert_ne!(allocator.allocate(1000, StreamId(1))?.pool(), long.id());
    /// # Ok(())
    /// # }
    /// ```
    pub fn use_on_this_thread_if(&self, selects: impl Fn(RoutedRequest) -> bool + 'static) -> ThreadRoute {
        let made = self.engine.routes.begin_here(self.handle.clone(), Some(Rc::new(selects)));
        ThreadRoute { made, engine: self.engine.clone(), _thread: PhantomData }
    }

    /// Returns the pool's number among all pools of the process.
    pub(super) fn key(&self) -> u64 {
        self.info().key
    }

    /// Returns the blocks that are handed out.
    pub(super) fn owned_blocks(&self) -> Vec<SavedBlock> {
        self.handle.core.owned_blocks()
    }

    /// Hands out those saved blocks that are not handed out now, or none if that fails for any of them. Returns the
    /// blocks that it handed out.
    pub(super) fn restore(&self, blocks: &[SavedBlock]) -> Result<Vec<Block>, Conflict> {
        self.handle.core.restore(blocks)
    }

    /// Routes the requests for these streams, on every thread, to this pool. Returns the number of the route.
    pub(super) fn begin_capture(&self, streams: &[StreamId]) -> u64 {
        self.engine.routes.begin_capture(self.handle.clone(), streams)
    }

    /// Adds a stream to the route of a capture. Then blocks until running growths and trims of pools have ended,
    /// because they may make the host wait for the stream. Inside a tracker, does not block.
    pub(super) fn add_to_capture(&self, route: u64, stream: StreamId) {
        self.engine.registry.announce_capture(route, &[stream]);
        if let Some(mut structure) = self.engine.registry.lock_structure() {
            structure.wait_for_changes();
        }
    }

    /// Ends the route of a capture.
    pub(super) fn end_capture(&self, route: u64) {
        self.engine.routes.end_capture(route);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("id", &self.id().0)
            .field("name", &self.name())
            .field("kind", &self.kind())
            .finish_non_exhaustive()
    }
}

/// A guard that makes [`Allocator::allocate`](super::Allocator::allocate) on this thread use a pool; see
/// [`Pool::use_on_this_thread`].
#[derive(Debug)]
#[must_use = "the thread uses the pool until this is dropped"]
pub struct ThreadRoute {
    /// The number of the route.
    made: u64,
    engine: Arc<Engine>,
    /// Makes the guard `!Send`: it must be dropped on the thread that created it.
    _thread: PhantomData<*const ()>,
}

impl Drop for ThreadRoute {
    fn drop(&mut self) {
        self.engine.routes.end_here(self.made);
    }
}

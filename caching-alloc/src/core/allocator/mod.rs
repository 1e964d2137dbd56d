//! [`Allocator`]: the public handle of an allocator.

mod raw;
mod watch;

use std::sync::Arc;

pub use self::raw::RawError;
pub use self::watch::Attachment;
use super::block::Block;
use super::engine::Engine;
use super::error::{AllocError, Fault, OutOfMemory, TrackError};
use super::graph_use::GraphUse;
use super::observer::{Observation, OomAction};
use super::pool::Pool;
use super::registry::Registry;
use super::request::{Name, RequestInfo};
use super::rounding::Fraction;
use super::route::RoutedRequest;
use super::settings::{PoolKind, PoolSettings, Settings};
use super::snapshot::AddressInfo;
use super::source::{MemoryInfo, SegmentSource, SourceError};
use super::stats::{Counters, Gauge, MemoryReport, Stats, Usages};
use super::stream::{CapturedUses as _, StreamEvents, StreamId};
use crate::sync::atomic::Ordering;

/// A caching allocator for the memory of one device. It is a cheap handle that can be used from any thread.
///
/// ```
/// use std::sync::Arc;
/// use caching_alloc::core::{Allocator, Settings, StreamId};
/// use caching_alloc::host::{HostSource, HostStreams};
///
/// # fn main() -> Result<(), caching_alloc::core::AllocError> {
/// let source = Arc::new(HostSource::new(1 << 30));
/// let streams = Arc::new(HostStreams::new());
/// let allocator = Allocator::new(source, streams, Settings::default());
///
/// let stream = StreamId(1);
/// let block = allocator.allocate(1000, stream)?;
/// assert_eq!(block.bytes(), 1024);
/// let address = block.address();
/// drop(block); // freed on its stream, so the next request on that stream can reuse it at once
/// assert_eq!(allocator.allocate(1000, stream)?.address(), address);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Allocator {
    engine: Arc<Engine>,
    default: Pool,
}

impl Allocator {
    /// Creates an allocator that requests memory from `source`, and orders the work of streams through `events`. It
    /// requests no memory before the first allocation.
    #[must_use]
    pub fn new(source: Arc<dyn SegmentSource>, events: Arc<dyn StreamEvents>, settings: Settings) -> Self {
        Self::with_default(source, events, settings, PoolKind::Cached)
    }

    /// Like [`new`](Self::new), but the default pool is [`Remappable`](PoolKind::Remappable).
    ///
    /// # Errors
    /// [`AllocError::NoPages`] if `source` is not a source of pages: its [`SegmentSource::as_pages`] returns `None`.
    pub fn remapping(
        source: Arc<dyn SegmentSource>,
        events: Arc<dyn StreamEvents>,
        settings: Settings,
    ) -> Result<Self, AllocError> {
        if source.as_pages().is_none() {
            return Err(AllocError::NoPages);
        }
        Ok(Self::with_default(source, events, settings, PoolKind::Remappable))
    }

    fn with_default(
        source: Arc<dyn SegmentSource>,
        events: Arc<dyn StreamEvents>,
        settings: Settings,
        kind: PoolKind,
    ) -> Self {
        let engine = Engine::new(Registry::new(source, events, settings));
        let default = Pool::new(&engine, engine.add_default_pool(kind));
        Self { engine, default }
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns the ordinal of the device.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.engine.registry.ordinal()
    }

    /// Returns the settings with which the allocator was created.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.engine.registry.settings
    }

    /// Allocates a block of at least `bytes`, for use on `stream` from now on. The request goes to the default pool,
    /// unless a guard of this thread ([`Pool::use_on_this_thread`]) or a capture of the stream
    /// ([`GraphPool::capture`](super::GraphPool::capture)) has selected another pool.
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
    /// ```
    /// # use std::sync::Arc;
    /// # use caching_alloc::core::{Allocator, Name, Settings, StreamId};
    /// # use caching_alloc::host::{HostSource, HostStreams};
    /// # fn main() -> Result<(), caching_alloc::core::AllocError> {
    /// # let (source, streams) = (Arc::new(HostSource::new(1 << 30)), Arc::new(HostStreams::new()));
    /// # let allocator = Allocator::new(source, streams, Settings::default());
    /// let weights = Name::new("weights");
    /// let block = allocator.allocate_named(1 << 20, StreamId(1), weights)?;
    /// assert_eq!(block.name(), Some(weights));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    #[inline]
    #[track_caller]
    pub fn allocate_named(&self, bytes: u64, stream: StreamId, name: Name) -> Result<Block, AllocError> {
        self.allocate_as(bytes, stream, RequestInfo { name: Some(name), ..RequestInfo::here() })
    }

    #[inline]
    fn allocate_as(&self, bytes: u64, stream: StreamId, info: RequestInfo) -> Result<Block, AllocError> {
        if self.engine.routes.any() {
            return self.pool_for(bytes, stream).allocate_as(bytes, stream, info);
        }
        self.default.allocate_as(bytes, stream, info)
    }

    /// Returns the pool that [`allocate`](Self::allocate) would use for a request with these arguments, made now and on
    /// this thread.
    #[cold]
    #[must_use]
    pub fn pool_for(&self, bytes: u64, stream: StreamId) -> Pool {
        let found = self.engine.routes.find(&self.engine.registry, RoutedRequest { bytes, stream });
        found.map_or_else(|| self.default.clone(), |handle| Pool::new(&self.engine, handle))
    }

    /// Returns the pool that [`allocate`](Self::allocate) uses unless another one was selected.
    #[must_use]
    pub fn default_pool(&self) -> &Pool {
        &self.default
    }

    /// Creates a pool.
    ///
    /// # Errors
    /// [`AllocError::ReentrantTracker`] inside a tracker, that is, if a method of a [`Tracker`](super::Tracker) makes
    /// this call. [`AllocError::PoolSettings`] if the settings contradict each other. [`AllocError::OtherDevice`] if
    /// the pool's source allocates on another device than this allocator. [`AllocError::NoPages`] if the pool is
    /// re-mappable but its source is not a source of pages.
    pub fn pool(&self, settings: PoolSettings) -> Result<Pool, AllocError> {
        Ok(Pool::new(&self.engine, self.engine.add_pool(settings)?))
    }

    /// Marks `stream` as one that carries collectives. From now on, the allocator adds no device-side waits between
    /// `stream` and other streams, in either direction. Other ranks would not have the same waits, so such a wait could
    /// deadlock a collective. [`forget_stream`](Self::forget_stream) removes the mark.
    pub fn mark_collective(&self, stream: StreamId) {
        self.engine.registry.mark_collective(stream);
    }

    /// Sets the limit on the total length of all segments, in bytes. `None` leaves only the source's own limit.
    /// Existing segments are not released.
    pub fn set_memory_limit(&self, limit: Option<u64>) {
        self.engine.registry.limit.store(limit.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Sets the memory limit to a part of the total memory that the allocator's source reports. Returns the limit in
    /// bytes. All segments count towards the limit, also those of pools with another source. For example, pinned host
    /// memory of a pool counts towards a part of the device's memory.
    ///
    /// # Errors
    /// The source's error if it cannot report the device's memory. The limit is not changed then.
    #[doc(alias = "set_per_process_memory_fraction")]
    pub fn set_memory_fraction(&self, part: Fraction) -> Result<u64, SourceError> {
        let limit = part.of(self.engine.registry.source.memory_info()?.total);
        self.set_memory_limit(Some(limit));
        Ok(limit)
    }

    /// Sets [`Settings::collect_above`] for later requests: a part of the memory limit. While more is reserved, idle
    /// segments of at least average idle time are released before new memory is requested, and a re-mappable pool moves
    /// idle pages before it makes new ones. `None` turns this off. Has no effect without a memory limit.
    pub fn set_collect_above(&self, part: Option<Fraction>) {
        self.engine.registry.collect.store(part.map_or(u32::MAX, Fraction::millionths), Ordering::Relaxed);
    }

    /// Sets each [`Gauge::peak`] in the statistics to the gauge's current value.
    pub fn reset_peaks(&self) {
        let mut totals = self.engine.registry.totals();
        totals.reserved.reset_peak();
        totals.segments.reset_peak();
        drop(totals);
        self.engine.pools().iter().for_each(|pool| pool.reset(Gauge::reset_peak, Counters::reset_peaks));
    }

    /// Resets the sums in the statistics: sets each [`Gauge::total`] to the gauge's current value, and every other
    /// running sum, such as [`Stats::retries`], to 0.
    pub fn reset_totals(&self) {
        self.engine.registry.totals().reset_totals();
        self.engine.pools().iter().for_each(|pool| pool.reset(Gauge::reset_total, Counters::reset_totals));
    }

    /// Returns the usage of the blocks in each stream's memory, summed over all pools. A block counts for the
    /// stream whose memory it is in, even if the request was for another stream. Peaks are summed too, so a peak is an
    /// upper bound. Counts of dropped pools are not included. If the allocator has removed the state of a stream in a
    /// pool (see [`Entry`](super::Entry)), the counts of that state are not included either.
    #[must_use]
    pub fn usage_by_stream(&self) -> Vec<(StreamId, Usages)> {
        let mut all: Vec<(StreamId, Usages)> = Vec::new();
        for cache in self.engine.caches() {
            let usages = cache.state.lock().usages().all;
            match all.iter_mut().find(|(stream, _)| *stream == cache.stream) {
                Some((_, sum)) => sum.merge(&usages),
                None => all.push((cache.stream, usages)),
            }
        }
        all
    }

    /// Returns the device's memory by owner. `total` and `free` are those that the allocator's source reports.
    /// `reserved` and `active` are sums over all pools, also over pools with another source. [`MemoryReport::foreign`]
    /// is the remainder, but at least 0. It is too low if a pool's source allocates pinned host memory and the
    /// allocator's source allocates device memory: the pool's memory then counts as reserved too.
    ///
    /// The result may be inexact if this allocator reserves or releases memory between the query of the source and the
    /// reading of its own statistics.
    ///
    /// # Errors
    /// The source's error if it cannot report the device's memory.
    pub fn memory_report(&self) -> Result<MemoryReport, SourceError> {
        let MemoryInfo { free, total } = self.engine.registry.source.memory_info()?;
        let stats = self.stats();
        let reserved = stats.reserved.current;
        let foreign = total.saturating_sub(free).saturating_sub(reserved);
        Ok(MemoryReport { total, free, reserved, active: stats.all.active.current, foreign })
    }

    /// Returns the statistics of the allocator, including those of all its pools.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Returns the number of the newest structural [trace entry](super::Entry), or 0 if there is none. Each change of
    /// the segments adds such an entry, so while the number stays the same, no segment is added or removed.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.engine.registry.generation()
    }

    /// Releases all idle segments. Returns the number of bytes released. A segment is idle if none of its blocks is
    /// handed out or still used by other streams. Blocks the host until the work of the streams that used this memory
    /// has ended.
    ///
    /// Does not release memory of frozen pools, memory that graphs use, or memory of streams that are being captured.
    /// Quarantines idle segments that are held ([`Hold`](super::Hold)): from then on they serve no requests. When they
    /// are no longer held, [`reap`](Self::reap) or a later trim releases them.
    ///
    /// # Errors
    /// [`TrackError::Reentrant`] inside a tracker.
    pub fn empty_cache(&self) -> Result<u64, TrackError> {
        self.trim_to(0)
    }

    /// Does the same as [`reap`](Self::reap). Then releases idle segments until all segments together have at most
    /// `bytes`, or no other segment can be released. Returns the number of bytes released by both steps. Blocks like
    /// [`empty_cache`](Self::empty_cache).
    ///
    /// # Errors
    /// As [`empty_cache`](Self::empty_cache).
    pub fn trim_to(&self, bytes: u64) -> Result<u64, TrackError> {
        let mut structure =
            self.engine.registry.lock_structure().ok_or(TrackError::Reentrant { operation: "a trim" })?;
        self.engine.registry.reap(&mut structure);
        let reserved = self.stats().reserved.current;
        if reserved > bytes {
            for cache in self.engine.caches().iter().filter(|cache| !cache.pool.is_kept()) {
                cache.synchronize_pending();
            }
            self.engine.release_cached(&mut structure, reserved - bytes, None);
        }
        Ok(structure.own_released())
    }

    /// Releases memory that could not be released earlier. Returns the number of bytes released. Such memory is:
    /// - quarantined segments: those that were held ([`Hold`](super::Hold)) when they should have been released. This
    ///   call releases the ones that are no longer held.
    /// - memory of dropped pools that could not be released when they were dropped. This call blocks the host until the
    ///   work that may use the memory has ended. Memory that captured streams use stays reserved.
    ///
    /// # Errors
    /// [`TrackError::Reentrant`] inside a tracker.
    pub fn reap(&self) -> Result<u64, TrackError> {
        let mut structure =
            self.engine.registry.lock_structure().ok_or(TrackError::Reentrant { operation: "reaping" })?;
        self.engine.registry.reap(&mut structure);
        Ok(structure.own_released())
    }

    /// Removes the state of a stream that will get no more work, and releases the memory that is cached for it. Returns
    /// the number of bytes released. Call this method before the stream is destroyed. Blocks the host until the work
    /// that may use the memory has ended. In a re-mappable pool, the memory stays reserved, and the pool's other
    /// streams may use it.
    ///
    /// Releases nothing while the stream is being captured. This memory is not released either:
    /// - memory of pools that are frozen or used by a graph
    /// - segments in which a block is still handed out
    /// - segments that are held ([`Hold`](super::Hold))
    ///
    /// A later call, or the next trim, releases such memory when the reason is gone.
    ///
    /// # Errors
    /// [`TrackError::Reentrant`] inside a tracker.
    pub fn forget_stream(&self, stream: StreamId) -> Result<u64, TrackError> {
        let mut structure = self
            .engine
            .registry
            .lock_structure()
            .ok_or(TrackError::Reentrant { operation: "forgetting a stream" })?;
        self.engine.forget_stream(&mut structure, stream);
        Ok(structure.own_released())
    }

    /// Returns the newest faults (at most 1024), oldest first. A fault is a failure that could not be returned to a
    /// caller.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        self.engine.registry.faults()
    }

    /// Returns the segment and the block that contain an address. Returns `None` in these cases:
    /// - No segment of the allocator's pools contains the address.
    /// - The cache of the segment was dropped, and the segment awaits its release.
    /// - Another thread is adding, moving or removing the segment.
    ///
    /// Finds the segment in logarithmic time. In a pool that is not re-mappable, then walks over the blocks of the
    /// segment, under the lock of the segment's cache. This is the cache of the segment's stream. If that cache does
    /// not have the segment, searches all caches of the pool.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<AddressInfo> {
        self.engine.find(address)
    }

    /// Makes `graph` a user of the blocks that contain a part of the `bytes` bytes at `address`. While a clone of
    /// `graph` exists, the memory of these blocks stays in place and goes to no other block. Call this method for
    /// memory that captured work uses, before its blocks are dropped. Returns true if the allocator has handed out such
    /// a block. In that case, the graph also keeps the allocator's source and [`StreamEvents`](super::StreamEvents)
    /// (see [`GraphUse`]).
    ///
    /// For memory of a [graph pool](super::GraphPool) that has a capture or a [`GraphMemory`](super::GraphMemory), the
    /// segments stay in place, but the pool may reuse the blocks, as for its other graphs.
    ///
    /// Programs whose streams are the driver's need not call this:
    /// [`DriverEvents`](crate::driver::DriverEvents) detects captured work of this workspace's crates.
    pub fn used_by_graph(&self, address: u64, bytes: u64, graph: &GraphUse) -> bool {
        self.engine.registry.used_by_graph(address, bytes, graph)
    }

    /// Attaches an observer until the returned guard is dropped. The observer is called when a request has found no
    /// memory, and gets the memory use at that time. It runs on the thread of the request, without any lock of the
    /// allocator. It may free blocks, allocate and trim. All observers are called. If any of them returns
    /// [`OomAction::Retry`], the request is tried once more.
    ///
    /// Requests that the observer itself makes are not reported to observers. A panic of the observer is recorded as a
    /// [`Fault`], and counts as [`OomAction::GiveUp`].
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// use caching_alloc::core::{Allocator, Settings, StreamId, OomAction};
    /// use caching_alloc::host::{HostSource, HostStreams};
    ///
    /// # fn main() -> Result<(), caching_alloc::core::AllocError> {
    /// let (source, streams) = (Arc::new(HostSource::new(8 << 20)), Arc::new(HostStreams::new()));
    /// let allocator = Allocator::new(source, streams, Settings::default());
    /// let cache = Arc::new(Mutex::new(vec![allocator.allocate(8 << 20, StreamId(1))?]));
    /// let entries = cache.clone();
    /// let _observation = allocator.on_out_of_memory(move |figures| {
    ///     eprintln!("{figures}");
    ///     entries.lock().unwrap().pop().map_or(OomAction::GiveUp, |_| OomAction::Retry)
    /// });
    /// assert!(allocator.allocate(8 << 20, StreamId(1)).is_ok());
    /// assert!(cache.lock().unwrap().is_empty());
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "FreeMemoryCallback")]
    pub fn on_out_of_memory(
        &self,
        observe: impl Fn(&OutOfMemory) -> OomAction + Send + Sync + 'static,
    ) -> Observation {
        self.engine.observers.add(observe)
    }
}

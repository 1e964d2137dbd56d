//! The allocator's handle.

use std::sync::Arc;

use super::block::Block;
use super::device::Device;
use super::entry::Action;
use super::error::{AllocError, Fault, TrackError};
use super::pool::Pool;
use super::rounding::Fraction;
use super::segment::{PoolId, Segment};
use super::settings::{PoolKind, PoolSettings, Settings};
use super::snapshot::{BlockState, Snapshot};
use super::source::{MemoryInfo, SegmentSource, SourceError};
use super::stats::{Gauge, MemoryReport, Stats, Tallies, Usages};
use super::stream::{StreamEvents, StreamId};
use super::sync::atomic::Ordering;
use super::tracker::{Attachment, Filter, Tracker};

/// A caching allocator of one device's memory. A cheap handle, usable from any thread.
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
/// drop(block); // freed on its stream: the next request there may have it at once
/// assert_eq!(allocator.allocate(1000, stream)?.address(), address);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Allocator {
    device: Arc<Device>,
    default: Pool,
}

/// The segment and the block that contain an address; see [`Allocator::find`].
#[derive(Debug, Clone)]
pub struct Found {
    /// The segment.
    pub segment: Segment,
    /// The block.
    pub block: BlockState,
}

impl Allocator {
    /// Makes an allocator over `source`, whose streams are ordered by `events`. It allocates nothing until
    /// the first request.
    #[must_use]
    pub fn new(source: Arc<dyn SegmentSource>, events: Arc<dyn StreamEvents>, settings: Settings) -> Self {
        let device = Device::new(source, events, settings);
        let default = Pool::default_of(&device, PoolKind::Cached);
        Self { device, default }
    }

    /// The same, with a default pool that is [`Remappable`](PoolKind::Remappable).
    ///
    /// # Errors
    /// [`AllocError::NoPages`] if `source` has none.
    pub fn remapping(
        source: Arc<dyn SegmentSource>,
        events: Arc<dyn StreamEvents>,
        settings: Settings,
    ) -> Result<Self, AllocError> {
        if source.as_pages().is_none() {
            return Err(AllocError::NoPages);
        }
        let device = Device::new(source, events, settings);
        let default = Pool::default_of(&device, PoolKind::Remappable);
        Ok(Self { device, default })
    }

    pub(super) fn shared(&self) -> &Arc<Device> {
        &self.device
    }

    /// Ordinal of the device.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.device.ordinal()
    }

    /// The settings that it was made with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.device.settings
    }

    /// Allocates a block of at least `bytes`, for use on `stream` from now on. It comes from the default
    /// pool, unless this thread ([`Pool::use_on_this_thread`]) or a capture of the stream
    /// ([`GraphPool::capture`](super::GraphPool::capture)) has selected another pool.
    ///
    /// # Errors
    /// See [`AllocError`]. Nothing is changed then.
    #[inline]
    #[track_caller]
    pub fn allocate(&self, bytes: u64, stream: StreamId) -> Result<Block, AllocError> {
        if self.device.routes.any() {
            return self.pool_for(stream).allocate(bytes, stream);
        }
        self.default.allocate(bytes, stream)
    }

    /// The pool that [`allocate`](Self::allocate) now uses for `stream` on this thread.
    #[cold]
    #[must_use]
    pub fn pool_for(&self, stream: StreamId) -> Pool {
        self.device.routes.find(&self.device, stream).unwrap_or_else(|| self.default.clone())
    }

    /// The pool that [`allocate`](Self::allocate) uses unless another one has been selected.
    #[must_use]
    pub fn default_pool(&self) -> &Pool {
        &self.default
    }

    /// A new private pool.
    ///
    /// # Errors
    /// [`AllocError::ReentrantTracker`] inside a tracker; [`AllocError::PoolSettings`] if they contradict each other;
    /// [`AllocError::NoPages`] and [`AllocError::Granularity`] if the source cannot serve the kind: for example if a symmetric pool's source does
    /// not make segments in steps that divide 2 MiB.
    pub fn pool(&self, settings: PoolSettings) -> Result<Pool, AllocError> {
        Pool::new(&self.device, settings)
    }

    /// Marks `stream` as one that carries collectives: it never waits for another stream's memory, and no
    /// stream waits for its memory.
    pub fn mark_collective(&self, stream: StreamId) {
        self.device.mark_collective(stream);
    }

    /// Sets the limit on all segments together, in bytes; `None`: the source's limit. Existing segments stay.
    pub fn set_memory_limit(&self, limit: Option<u64>) {
        self.device.limit.store(limit.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Sets the memory limit to a part of the device's memory; returns the limit in bytes.
    ///
    /// # Errors
    /// If the source cannot report the device's memory. The limit is then unchanged.
    #[doc(alias = "set_per_process_memory_fraction")]
    pub fn set_memory_fraction(&self, part: Fraction) -> Result<u64, SourceError> {
        let limit = part.of(self.device.source.memory_info()?.total);
        self.set_memory_limit(Some(limit));
        Ok(limit)
    }

    /// Sets [`Settings::collect_above`] for growth from now on.
    pub fn set_collect_above(&self, part: Option<Fraction>) {
        self.device.collect.store(part.map_or(u32::MAX, Fraction::millionths), Ordering::Relaxed);
    }

    /// Resets every peak of the statistics to the current value.
    pub fn reset_peaks(&self) {
        let mut totals = self.device.totals();
        totals.reserved.reset_peak();
        totals.segments.reset_peak();
        drop(totals);
        self.device.pools().iter().for_each(|pool| pool.reset(Gauge::reset_peak, Tallies::reset_peaks));
    }

    /// Resets every total of the statistics to the current value, and every count to 0.
    pub fn reset_totals(&self) {
        self.device.totals().reset_totals();
        self.device.pools().iter().for_each(|pool| pool.reset(Gauge::reset_total, Tallies::reset_totals));
    }

    /// Usage of each stream's memory, in all pools together.
    #[must_use]
    pub fn usage_by_stream(&self) -> Vec<(StreamId, Usages)> {
        let mut all: Vec<(StreamId, Usages)> = Vec::new();
        for shard in self.device.shards() {
            let usages = shard.state.lock().usages().all;
            match all.iter_mut().find(|(stream, _)| *stream == shard.stream) {
                Some((_, sum)) => sum.merge(&usages),
                None => all.push((shard.stream, usages)),
            }
        }
        all
    }

    /// The device's memory and its owners, as reported by the allocator's source. Other processes and
    /// allocators may allocate and free between the queries, so the figures need not add up exactly.
    ///
    /// # Errors
    /// If the source cannot report the device's memory.
    pub fn memory_report(&self) -> Result<MemoryReport, SourceError> {
        let MemoryInfo { free, total } = self.device.source.memory_info()?;
        let stats = self.stats();
        let reserved = stats.reserved.current;
        let foreign = total.saturating_sub(free).saturating_sub(reserved);
        Ok(MemoryReport { total, free, reserved, active: stats.all.active.current, foreign })
    }

    /// Statistics of all pools.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.device.stats()
    }

    /// Number of the last structural entry. While it stays the same, no segment is added or removed.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.device.generation()
    }

    /// Attaches a tracker: it gets a snapshot, then every later entry that passes `filter`.
    ///
    /// # Errors
    /// [`TrackError`]; the tracker is not attached then.
    pub fn attach(&self, tracker: Arc<dyn Tracker>, filter: Filter) -> Result<Attachment, TrackError> {
        let slot = self.device.attach(tracker, filter)?;
        Ok(Attachment { device: self.device.clone(), slot })
    }

    /// The state of everything, with the entries that are still kept. Trackers have received every earlier
    /// entry by then.
    ///
    /// # Errors
    /// [`TrackError::Reentrant`] inside a tracker.
    pub fn snapshot(&self) -> Result<Snapshot, TrackError> {
        let mut growth = self.device.grow().ok_or(TrackError::Reentrant { operation: "a snapshot" })?;
        self.device.emit(&mut growth, PoolId::default(), StreamId::default(), Action::Snapshot);
        self.device.flush();
        Ok(self.device.capture(&growth))
    }

    /// Adds an annotation of the program to the entries.
    ///
    /// # Errors
    /// [`TrackError::Reentrant`] inside a tracker.
    pub fn annotate(&self, text: &str) -> Result<(), TrackError> {
        let mut growth = self.device.grow().ok_or(TrackError::Reentrant { operation: "an annotation" })?;
        self.device.emit(
            &mut growth,
            PoolId::default(),
            StreamId::default(),
            Action::Annotation(text.into()),
        );
        Ok(())
    }

    /// Releases every segment without blocks that are handed out; returns the number of bytes released. Waits
    /// for the work of the streams concerned. Frozen, captured and symmetric memory stays.
    ///
    /// # Errors
    /// [`TrackError::Reentrant`] inside a tracker.
    pub fn empty_cache(&self) -> Result<u64, TrackError> {
        self.trim_to(0)
    }

    /// Releases segments without blocks that are handed out until all segments together have at most `bytes`;
    /// returns the number of bytes released.
    ///
    /// # Errors
    /// As [`empty_cache`](Self::empty_cache).
    pub fn trim_to(&self, bytes: u64) -> Result<u64, TrackError> {
        let mut growth = self.device.grow().ok_or(TrackError::Reentrant { operation: "a trim" })?;
        let before = self.stats().reserved.current;
        self.device.reap(&mut growth);
        let reserved = self.stats().reserved.current;
        if reserved > bytes {
            for shard in self.device.shards().iter().filter(|shard| !shard.pool.is_kept()) {
                shard.synchronize_pending();
            }
            self.device.release_cached(&mut growth, reserved - bytes, None);
        }
        Ok(before - self.stats().reserved.current)
    }

    /// Releases quarantined segments that are no longer held, and the memory of dropped pools; returns the
    /// number of bytes released.
    ///
    /// # Errors
    /// [`TrackError::Reentrant`] inside a tracker.
    pub fn reap(&self) -> Result<u64, TrackError> {
        let mut growth = self.device.grow().ok_or(TrackError::Reentrant { operation: "reaping" })?;
        let before = self.stats().reserved.current;
        self.device.reap(&mut growth);
        Ok(before - self.stats().reserved.current)
    }

    /// Removes all state of a stream that gets no more work: releases the memory cached for it, after waiting
    /// for its work. Call it before the stream is destroyed. Returns the number of bytes released.
    ///
    /// The cache of a stream stays if its memory is frozen, a graph's or a symmetric pool's. So do segments
    /// with blocks of the stream that are still handed out; a later call, or the next trim, releases them.
    ///
    /// # Errors
    /// [`TrackError::Reentrant`] inside a tracker.
    pub fn forget_stream(&self, stream: StreamId) -> Result<u64, TrackError> {
        let mut growth =
            self.device.grow().ok_or(TrackError::Reentrant { operation: "forgetting a stream" })?;
        let before = self.device.totals().reserved.current;
        self.device.forget_stream(&mut growth, stream);
        Ok(before - self.device.totals().reserved.current)
    }

    /// The most recent faults that could not be returned to a caller, oldest first.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        self.device.faults()
    }

    /// The segment and block that contain an address. It walks all segments and, under their stream's lock,
    /// the blocks of one: for diagnosis, not for every call.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<Found> {
        let fixed = self.device.shards().iter().find_map(|shard| shard.find(address));
        fixed.or_else(|| self.device.pools().iter().find_map(|pool| pool.find_mapped(address)))
    }
}

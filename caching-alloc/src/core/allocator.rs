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

/// A caching allocator of one device's memory: a cheap handle, for use from any thread.
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

/// What an address is part of; see [`Allocator::find`].
#[derive(Debug, Clone)]
pub struct Found {
    /// The segment.
    pub segment: Segment,
    /// The block.
    pub block: BlockState,
}

impl Allocator {
    /// An allocator over `source`, whose streams are ordered by `events`. It has nothing until it is asked.
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

    /// Its settings, as it was made with them.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.device.settings
    }

    /// A block of at least `bytes`, for use on `stream` from now on: from the default pool, or from the one that this
    /// thread ([`Pool::use_on_this_thread`]) or a capture of the stream ([`GraphPool::capture`](super::GraphPool::capture))
    /// has put in its place.
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

    /// The pool that [`allocate`](Self::allocate) uses for `stream` on this thread now.
    #[cold]
    #[must_use]
    pub fn pool_for(&self, stream: StreamId) -> Pool {
        self.device.routes.find(&self.device, stream).unwrap_or_else(|| self.default.clone())
    }

    /// The pool that [`allocate`](Self::allocate) uses where no other has been put in its place.
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

    /// Says that `stream` carries collectives: it never waits for another stream's memory, nor another for its.
    pub fn mark_collective(&self, stream: StreamId) {
        self.device.mark_collective(stream);
    }

    /// Sets the most that all segments together may have, in bytes; `None`: what the source gives. What there is
    /// already stays.
    pub fn set_memory_limit(&self, limit: Option<u64>) {
        self.device.limit.store(limit.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Sets that to a part of the device's memory; returns how many bytes it is.
    ///
    /// # Errors
    /// If the source cannot say how much there is. The limit is as it was then.
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

    /// Lets every peak of the statistics begin anew, at what there is now.
    pub fn reset_peaks(&self) {
        let mut totals = self.device.totals();
        totals.reserved.reset_peak();
        totals.segments.reset_peak();
        drop(totals);
        self.device.pools().iter().for_each(|pool| pool.reset(Gauge::reset_peak, Tallies::reset_peaks));
    }

    /// Lets every total of the statistics begin anew, at what there is now, and every count at 0.
    pub fn reset_totals(&self) {
        self.device.totals().reset_totals();
        self.device.pools().iter().for_each(|pool| pool.reset(Gauge::reset_total, Tallies::reset_totals));
    }

    /// What each stream's memory is used for, in all pools together.
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

    /// The device's memory and whose it is, by what the allocator's source says. Other processes and other allocators
    /// may take and give between the looks: a picture, not an account.
    ///
    /// # Errors
    /// If the source cannot say how much there is.
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

    /// Number of the last structural entry: as long as it stays, no segment has come or gone.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.device.generation()
    }

    /// Attaches a tracker: it gets a snapshot, then every entry from there on that `filter` lets through.
    ///
    /// # Errors
    /// [`TrackError`]; the tracker is not attached then.
    pub fn attach(&self, tracker: Arc<dyn Tracker>, filter: Filter) -> Result<Attachment, TrackError> {
        let slot = self.device.attach(tracker, filter)?;
        Ok(Attachment { device: self.device.clone(), slot })
    }

    /// The state of everything, with the entries that are still kept. Trackers have then got everything that
    /// happened before.
    ///
    /// # Errors
    /// [`TrackError::Reentrant`] inside a tracker.
    pub fn snapshot(&self) -> Result<Snapshot, TrackError> {
        let mut growth = self.device.grow().ok_or(TrackError::Reentrant { operation: "a snapshot" })?;
        self.device.emit(&mut growth, PoolId::default(), StreamId::default(), Action::Snapshot);
        self.device.flush();
        Ok(self.device.capture(&growth))
    }

    /// Places a word of the program among the entries.
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

    /// Gives back every segment that no block is handed out of; returns how many bytes went. Waits for the work of
    /// the streams concerned. Frozen, captured and symmetric memory stays.
    ///
    /// # Errors
    /// [`TrackError::Reentrant`] inside a tracker.
    pub fn empty_cache(&self) -> Result<u64, TrackError> {
        self.trim_to(0)
    }

    /// Gives back segments that no block is handed out of until all together have at most `bytes`; returns how
    /// many bytes went.
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

    /// Gives back what waited in quarantine and is not held any longer, and what dropped pools left; returns how
    /// many bytes went.
    ///
    /// # Errors
    /// [`TrackError::Reentrant`] inside a tracker.
    pub fn reap(&self) -> Result<u64, TrackError> {
        let mut growth = self.device.grow().ok_or(TrackError::Reentrant { operation: "reaping" })?;
        let before = self.stats().reserved.current;
        self.device.reap(&mut growth);
        Ok(before - self.stats().reserved.current)
    }

    /// Says that a stream gets no more work, so that nothing of the allocator is left of it: gives back what is cached
    /// for it, after waiting for its work. To be called before the stream is destroyed. Returns how many bytes went.
    ///
    /// What is cached for a stream whose memory is frozen, a graph's or a symmetric pool's stays, and so does what the
    /// stream's blocks need that are still out; a later call, or the next trim, gives that back.
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

    /// The last things that went wrong where no caller could be told, oldest first.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        self.device.faults()
    }

    /// The segment and block that an address lies in. It walks all segments and, with their stream's lock held, the
    /// blocks of one: for looking at, not for every call.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<Found> {
        let fixed = self.device.shards().iter().find_map(|shard| shard.find(address));
        fixed.or_else(|| self.device.pools().iter().find_map(|pool| pool.find_mapped(address)))
    }
}

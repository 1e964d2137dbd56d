//! Pools, and how a request finds its shard.

use std::fmt;
use std::sync::atomic::AtomicUsize as CaptureCount;
use std::sync::{Arc, OnceLock, Weak};

use super::allocator::Found;
use super::block::Block;
use super::device::{Device, Grave, Growth, locked, reentrant};
use super::error::AllocError;
use super::fixed::Splitting;
use super::heap::List;
use super::lock::{Guard, Rank, Ranked};
use super::pending::Pending;
use super::remap::{Arena, Remains};
use super::rounding::Rounding;
use super::segment::{PoolId, Segment};
use super::settings::{PoolKind, PoolSettings};
use super::shard::{Request, Shard};
use super::size::{MAX_BLOCK, UNIT, Units, units_for};
use super::source::{self, SegmentSource};
use super::stats::{Gauge, Stats, Tallies};
use super::stream::StreamId;
use super::symmetric::{Log, SEGMENT_STEP, SymmetricSegment};
use super::sync::atomic::{AtomicUsize, Ordering};
use super::sync::{Mutex, MutexGuard};

/// Memory that is kept apart from all other pools: a cheap handle.
///
/// When the last handle and the last block are gone, its segments go back to their source.
#[derive(Clone)]
pub struct Pool(Arc<Handle>);

struct Handle {
    core: Arc<PoolCore>,
    /// Not 0 while a stream may be capturing.
    captures: Arc<CaptureCount>,
    shards: ShardTable,
    /// If requests are rounded to more than units.
    rounding: Option<Rounding>,
}

/// What a pool's shards know of it.
#[derive(Debug)]
pub(super) struct PoolCore {
    pub(super) id: PoolId,
    pub(super) name: Arc<str>,
    pub(super) kind: PoolKind,
    pub(super) source: Arc<dyn SegmentSource>,
    pub(super) device: Arc<Device>,
    lends: bool,
    borrows: bool,
    freezes: AtomicUsize,
    keeps: AtomicUsize,
    shards: Mutex<Vec<Weak<Shard>>>,
    /// What the streams of a re-mappable pool share.
    pub(super) arena: Option<Arc<Ranked<Arena>>>,
    /// What dead shards of such a pool left in use by other streams.
    orphans: Mutex<Orphans>,
    reserved: Mutex<Gauge>,
}

/// What is still to be waited for when a re-mappable pool goes.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    pub(super) streams: Vec<StreamId>,
    pub(super) pending: Vec<Pending>,
}

/// Keeps a pool from giving memory back, and from lending it, while it is alive.
#[derive(Debug)]
pub(super) struct Keep(Arc<PoolCore>);

/// Keeps a pool from growing, and from asking the driver anything, while it is alive: for capture.
#[derive(Debug)]
#[must_use = "the pool thaws when this is dropped"]
pub struct Freeze(Arc<PoolCore>);

impl Pool {
    pub(super) fn new(device: &Arc<Device>, settings: PoolSettings) -> Result<Self, AllocError> {
        let source = settings.source.as_ref().unwrap_or(&device.source);
        if let Some(what) = settings.contradiction() {
            return Err(AllocError::PoolSettings { pool: settings.name, what });
        }
        let (wanted, found) = (device.ordinal(), source.device());
        if wanted != found {
            return Err(AllocError::OtherDevice { pool: settings.name, wanted, found });
        }
        if settings.kind == PoolKind::Remappable && source.as_pages().is_none() {
            return Err(AllocError::NoPages);
        }
        let granularity = source.granularity();
        if matches!(settings.kind, PoolKind::Symmetric { .. })
            && (granularity == 0 || !SEGMENT_STEP.is_multiple_of(granularity))
        {
            return Err(AllocError::Granularity { granularity });
        }
        let mut growth = device.grow().ok_or_else(reentrant)?;
        Ok(Self::add(device, &mut growth, settings))
    }

    /// The pool that a new allocator has.
    pub(super) fn default_of(device: &Arc<Device>, kind: PoolKind) -> Self {
        let settings = PoolSettings { name: "default".into(), kind, ..PoolSettings::default() };
        Self::add(device, &mut device.growth.lock(), settings)
    }

    fn add(device: &Arc<Device>, growth: &mut Growth, settings: PoolSettings) -> Self {
        let PoolSettings { name, source, kind, lends, borrows } = settings;
        let source = source.unwrap_or_else(|| device.source.clone());
        let arena = (kind == PoolKind::Remappable)
            .then(|| Arc::new(Ranked::new(Rank::Arena, Arena::new(source::step(&*source)))));
        let core = device.add_pool(growth, |id| PoolCore {
            id,
            name: name.into(),
            kind,
            source,
            device: device.clone(),
            lends,
            borrows,
            freezes: AtomicUsize::new(0),
            keeps: AtomicUsize::new(0),
            shards: Mutex::default(),
            arena,
            orphans: Mutex::default(),
            reserved: Mutex::default(),
        });
        let splits = matches!(kind, PoolKind::Cached | PoolKind::Remappable);
        let rounding = Some(device.settings.rounding).filter(|set| splits && *set != Rounding::none());
        let captures = device.events.captures().unwrap_or_default();
        Self(Arc::new(Handle { core, captures, shards: ShardTable::default(), rounding }))
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.0.core.id
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.core.name
    }

    /// What it is for.
    #[must_use]
    pub fn kind(&self) -> PoolKind {
        self.0.core.kind
    }

    /// Where its segments come from.
    #[must_use]
    pub fn source(&self) -> &Arc<dyn SegmentSource> {
        &self.0.core.source
    }

    /// A block of at least `bytes`, for use on `stream` from now on.
    ///
    /// A stream that captures is served only by a pool whose memory stays for the graph: a symmetric one, one that is
    /// [frozen](Self::freeze), or a graph pool during [`GraphPool::capture`](super::GraphPool::capture). Otherwise the
    /// request is [`CaptureOutsideGraphPool`](AllocError::CaptureOutsideGraphPool). A hit during a capture that
    /// [`StreamEvents::captures`](super::StreamEvents::captures) does not count goes unnoticed.
    ///
    /// # Errors
    /// See [`AllocError`]. Nothing is changed then.
    #[inline]
    #[track_caller]
    pub fn allocate(&self, bytes: u64, stream: StreamId) -> Result<Block, AllocError> {
        let rounded = self.0.rounding.map_or(bytes, |rounding| rounding.round(bytes));
        let request = Request { units: units_for(rounded)?, bytes, site: std::panic::Location::caller() };
        if self.0.captures.load(Ordering::Relaxed) != 0 {
            self.0.core.refuse_capture(stream)?;
        }
        let shard = match self.0.shards.find(stream) {
            Some(shard) => shard,
            None => self.add_shard(stream)?,
        };
        match shard.hit(request) {
            Some(block) => Ok(block),
            None => shard.miss(request),
        }
    }

    /// Until the guard is dropped, a request that needs a new segment fails with
    /// [`PoolWouldGrowDuringCapture`](AllocError::PoolWouldGrowDuringCapture), and nothing of the pool is trimmed
    /// or lent.
    ///
    /// Blocks until a growth or trim that is under way has ended, so that none overlaps the guard. Inside a tracker
    /// it does not block: the entry that is being delivered belongs to a change that still completes.
    pub fn freeze(&self) -> Freeze {
        self.0.core.retain(&self.0.core.freezes);
        Freeze(self.0.core.clone())
    }

    /// Nothing of the pool is given back or lent until the guard is dropped. Blocks as [`freeze`](Self::freeze) does.
    pub(super) fn keep(&self) -> Keep {
        self.0.core.retain(&self.0.core.keeps);
        Keep(self.0.core.clone())
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.0.core.device
    }

    /// Its segments now, but for those of a re-mappable pool.
    pub(super) fn segments(&self) -> Vec<Segment> {
        let shards = self.0.core.shards();
        let of = |shard: &Arc<Shard>| {
            shard.state.lock().fixed.segments.iter().flatten().cloned().collect::<Vec<_>>()
        };
        shards.iter().flat_map(of).collect()
    }

    /// Lets every peak of its statistics begin anew, at what there is now.
    pub fn reset_peaks(&self) {
        self.0.core.reset(Gauge::reset_peak, Tallies::reset_peaks);
    }

    /// Lets every total of its statistics begin anew, at what there is now.
    pub fn reset_totals(&self) {
        self.0.core.reset(Gauge::reset_total, Tallies::reset_totals);
    }

    /// The pool's statistics.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.core.stats()
    }

    /// A symmetric pool's segments, with its allocation log at the creation of each; of another pool: none.
    #[must_use]
    pub fn symmetric_segments(&self) -> Vec<SymmetricSegment> {
        let PoolKind::Symmetric { stream, .. } = self.kind() else { return Vec::new() };
        let Some(shard) = self.0.shards.find(stream) else { return Vec::new() };
        shard.state.lock().symmetric.as_ref().map(|journal| journal.segments().to_vec()).unwrap_or_default()
    }

    /// A symmetric pool's allocation log; of another pool, or before the first request: nothing.
    #[must_use]
    pub fn log(&self) -> Option<Log> {
        let PoolKind::Symmetric { stream, .. } = self.kind() else { return None };
        self.0.shards.find(stream)?.state.lock().symmetric.as_ref().map(|journal| journal.state().clone())
    }

    fn add_shard(&self, stream: StreamId) -> Result<&Arc<Shard>, AllocError> {
        let core = &self.0.core;
        if let PoolKind::Symmetric { stream: bound, .. } = core.kind
            && bound != stream
        {
            return Err(AllocError::StreamNotOfPool { pool: core.id, bound, stream });
        }
        if !core.device.events.knows(stream) {
            return Err(AllocError::UnknownStream { stream });
        }
        // Trackers and their snapshots see every shard: none is added while one attaches.
        let growth = core.device.grow().ok_or_else(reentrant)?;
        let streams = locked(&core.shards).len();
        if core.arena.is_some() && streams >= Arena::STREAMS && self.0.shards.find(stream).is_none() {
            return Err(AllocError::TooManyStreams { pool: core.id, streams, stream });
        }
        Ok(self.0.shards.add(stream, || core.make_shard(&growth, stream)))
    }
}

impl fmt::Debug for Pool {
    /// Not what is in it: pools and what diverts requests to them refer to each other.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("id", &self.id().0)
            .field("name", &self.name())
            .field("kind", &self.kind())
            .finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.shards().iter().for_each(|shard| shard.close());
    }
}

impl PoolCore {
    /// Its shards, in order of creation.
    pub(super) fn shards(&self) -> Vec<Arc<Shard>> {
        locked(&self.shards).iter().filter_map(Weak::upgrade).collect()
    }

    /// Increments `count`, and returns when no growth or release is under way that has not seen it.
    fn retain(&self, count: &AtomicUsize) {
        let growth = self.device.grow();
        count.fetch_add(1, Ordering::AcqRel);
        if growth.is_none() {
            // Inside a tracker. Memory is withdrawn under these locks, where the count is read again.
            self.shards().iter().for_each(|shard| drop(shard.state.lock()));
            drop(self.arena.as_ref().map(|arena| arena.lock()));
        }
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.freezes.load(Ordering::Acquire) > 0
    }

    /// Whether nothing of it may be given back or lent: it is frozen, or its memory is a graph's.
    pub(super) fn is_kept(&self) -> bool {
        self.is_frozen() || self.keeps.load(Ordering::Acquire) > 0
    }

    /// An error if the stream captures and the pool would give its memory to others while the graph can be launched.
    #[cold]
    pub(super) fn refuse_capture(&self, stream: StreamId) -> Result<(), AllocError> {
        // Without an answer there is no capture: only of a stream that takes no part in one is the driver silent.
        if self.is_symmetric() || self.is_kept() || !self.device.events.is_capturing(stream).unwrap_or(false)
        {
            return Ok(());
        }
        Err(AllocError::CaptureOutsideGraphPool { pool: self.id, stream })
    }

    /// Whether this pool may have free blocks of the other before it is out of memory.
    pub(super) fn may_borrow_from(&self, other: &Self) -> bool {
        let is_default = |pool: &Self| pool.id == PoolId::default();
        let agreed = is_default(self) && other.lends || self.borrows && is_default(other);
        // What moves is for its own device alone: it is no substitute for what stays.
        let stays = self.arena.is_some() || other.arena.is_none();
        agreed && stays && !other.is_kept()
    }

    /// Which of its blocks may be parts of segments.
    pub(super) fn splitting(&self) -> Splitting {
        let settings = &self.device.settings;
        match (self.kind, settings.max_split) {
            (PoolKind::NoSplit, _) => Splitting::NONE,
            (PoolKind::Cached, Some(longest)) => {
                let step = SEGMENT_STEP.max(source::step(&*self.source));
                let up = |bytes: u64| bytes.clamp(1, MAX_BLOCK).next_multiple_of(step);
                let units = |bytes: u64| Units::try_from(up(bytes) / UNIT).unwrap_or(Units::MAX);
                Splitting { longest: units(longest), waste: units(settings.max_unsplit_waste) }
            }
            _ => Splitting::ALL,
        }
    }

    pub(super) fn is_symmetric(&self) -> bool {
        matches!(self.kind, PoolKind::Symmetric { .. })
    }

    /// What the streams of a re-mappable pool share.
    pub(super) fn arena_mut(&self) -> Guard<'_, Arena> {
        self.arena.as_ref().expect("asked of a re-mappable pool").lock()
    }

    /// The page of a re-mappable pool and the block that an address lies in.
    pub(super) fn find_mapped(&self, address: u64) -> Option<Found> {
        let shards = self.shards();
        let found = self.arena.as_ref()?.lock().find(address).map(|(page, tile)| (page.clone(), tile))?;
        let (segment, tile) = found;
        let tenant = shards.iter().find_map(|shard| shard.state.lock().tenant(tile.id));
        Some(Found { segment, block: super::shard::block_state(&tile, tenant) })
    }

    /// The streams that may use memory of a re-mappable pool, those too whose shards are gone.
    pub(super) fn streams(&self) -> Vec<StreamId> {
        let mut streams = locked(&self.orphans).streams.clone();
        streams.extend(self.shards().iter().map(|shard| shard.stream));
        streams
    }

    /// A shard of a re-mappable pool is gone: its memory stays until the pool is.
    pub(super) fn leave(&self, stream: StreamId, pending: impl IntoIterator<Item = Pending>) {
        let mut orphans = locked(&self.orphans);
        orphans.streams.push(stream);
        orphans.pending.extend(pending);
    }

    pub(super) fn reserved(&self) -> MutexGuard<'_, Gauge> {
        locked(&self.reserved)
    }

    pub(super) fn reset(&self, gauge: fn(&mut Gauge), tallies: fn(&mut Tallies)) {
        gauge(&mut self.reserved());
        self.shards().iter().for_each(|shard| tallies(&mut shard.state.lock().tallies));
    }

    pub(super) fn stats(&self) -> Stats {
        let mut stats = Stats { reserved: *self.reserved(), ..Stats::default() };
        for shard in self.shards() {
            let state = shard.state.lock();
            let (all, [small, large]) = state.usages();
            stats.all.merge(&all);
            stats.small.merge(&small);
            stats.large.merge(&large);
        }
        stats
    }

    fn make_shard(self: &Arc<Self>, growth: &Growth, stream: StreamId) -> Arc<Shard> {
        let slots = Device::block_trackers(growth);
        let mut shards = locked(&self.shards);
        let list = List::try_from(shards.len()).unwrap_or(List::MAX);
        let shard = Shard::new(self.clone(), stream, list, slots);
        shards.push(Arc::downgrade(&shard));
        shard
    }
}

impl Drop for PoolCore {
    /// No stream of the pool has a block any more.
    fn drop(&mut self) {
        let Some(arena) = self.arena.take().and_then(Arc::into_inner) else { return };
        let Remains { pages, old, events, ranges } = arena.into_inner().dissolve();
        let Orphans { streams, pending } = std::mem::take(&mut *locked(&self.orphans));
        let source = Some(self.source.clone());
        let kept = Grave { streams, segments: pages, pending, ..Grave::default() };
        self.device.bury(Grave { old, events, ranges, source, ..kept });
    }
}

impl Clone for Keep {
    fn clone(&self) -> Self {
        self.0.keeps.fetch_add(1, Ordering::AcqRel);
        Self(self.0.clone())
    }
}

impl Drop for Keep {
    fn drop(&mut self) {
        self.0.keeps.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Freeze {
    fn drop(&mut self) {
        self.0.freezes.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Streams of a pool before a second table is needed.
const SLOTS: usize = 16;

/// A pool's shards by stream: only ever added to, read without a lock.
#[derive(Debug, Default)]
struct ShardTable {
    slots: [OnceLock<(StreamId, Arc<Shard>)>; SLOTS],
    more: OnceLock<Box<ShardTable>>,
}

impl ShardTable {
    #[inline]
    fn find(&self, stream: StreamId) -> Option<&Arc<Shard>> {
        let (key, shard) = self.slots[Self::first(stream)].get()?;
        if *key == stream { Some(shard) } else { self.find_further(stream) }
    }

    #[cold]
    fn find_further(&self, stream: StreamId) -> Option<&Arc<Shard>> {
        let first = Self::first(stream);
        for step in 0..SLOTS {
            let (key, shard) = self.slots[(first + step) % SLOTS].get()?;
            if *key == stream {
                return Some(shard);
            }
        }
        self.more.get()?.find(stream)
    }

    /// Adds a shard, unless there is one. The caller holds the growth lock: one at a time.
    fn add(&self, stream: StreamId, make: impl FnOnce() -> Arc<Shard>) -> &Arc<Shard> {
        let mut at = Self::first(stream);
        for _ in 0..SLOTS {
            match self.slots[at].get() {
                Some((key, shard)) if *key == stream => return shard,
                Some(_) => at = (at + 1) % SLOTS,
                None => return &self.slots[at].get_or_init(|| (stream, make())).1,
            }
        }
        self.more.get_or_init(Box::default).add(stream, make)
    }

    /// Where a stream is looked for first.
    fn first(stream: StreamId) -> usize {
        (stream.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize
    }
}

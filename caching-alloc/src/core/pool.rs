//! Pools, and the lookup of a request's shard.

use std::fmt;
use std::sync::atomic::AtomicUsize as CaptureCount;
use std::sync::{Arc, OnceLock};

use super::allocator::Found;
use super::block::Block;
use super::device::{Device, Grave, Growth, locked, reentrant};
use super::error::{AllocError, Fault, chain};
use super::fixed::Splitting;
use super::lock::{Guard, Rank, Ranked};
use super::pending::{Pending, Wait};
use super::recent;
use super::remap::{Arena, Remains};
use super::rounding::Rounding;
use super::segment::{PoolId, Segment};
use super::settings::{PoolKind, PoolSettings};
use super::shard::{Request, Shard};
use super::size::{MAX_BLOCK, UNIT, Units, units_for};
use super::slot::Key;
use super::source::{self, SegmentSource};
use super::stats::{Gauge, PastUsages, PoolUsages, Stats, Tallies};
use super::stream::StreamId;
use super::symmetric::{Log, SEGMENT_STEP, SymmetricSegment};
use super::sync::atomic::{AtomicUsize, Ordering};
use super::sync::{Mutex, MutexGuard};
use super::table::ShardTable;

/// Memory that is kept apart from all other pools. A cheap handle.
///
/// When the last handle and the last block are gone, its segments go back to their source.
#[derive(Clone)]
pub struct Pool(Arc<Handle>);

struct Handle {
    core: Arc<PoolCore>,
    /// Non-zero while a stream may be capturing.
    captures: Arc<CaptureCount>,
    /// Set if requests are rounded to more than units.
    rounding: Option<Rounding>,
}

/// The part of a pool that its shards refer to.
#[derive(Debug)]
pub(super) struct PoolCore {
    pub(super) id: PoolId,
    /// Its number among all pools of the process.
    pub(super) key: u64,
    pub(super) name: Arc<str>,
    pub(super) kind: PoolKind,
    pub(super) source: Arc<dyn SegmentSource>,
    pub(super) device: Arc<Device>,
    lends: bool,
    borrows: bool,
    freezes: AtomicUsize,
    keeps: AtomicUsize,
    shards: Mutex<ShardTable>,
    /// Usage counted by retired shards.
    past: Mutex<PastUsages>,
    /// The arena that the streams of a re-mappable pool share.
    pub(super) arena: Option<Arc<Ranked<Arena>>>,
    /// Pending blocks that removed shards of such a pool left, in use by other streams.
    orphans: Mutex<Orphans>,
    reserved: Mutex<Gauge>,
    /// The memory of the source's device, in bytes, once it has been queried.
    total: OnceLock<u64>,
}

/// Uses that must end before the memory of a dropped re-mappable pool is released.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    pub(super) streams: Vec<StreamId>,
    pub(super) pending: Vec<Pending>,
}

/// Prevents a pool from releasing and lending memory while it is alive.
#[derive(Debug)]
pub(super) struct Keep(Arc<PoolCore>);

/// Prevents a pool from growing, and from calling the driver, while it is alive: for capture.
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

    /// The default pool of a new allocator.
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
            key: Key::new_pool(),
            name: name.into(),
            kind,
            source,
            device: device.clone(),
            lends,
            borrows,
            freezes: AtomicUsize::new(0),
            keeps: AtomicUsize::new(0),
            shards: Mutex::default(),
            past: Mutex::default(),
            arena,
            orphans: Mutex::default(),
            reserved: Mutex::default(),
            total: OnceLock::new(),
        });
        let splits = matches!(kind, PoolKind::Cached | PoolKind::Remappable);
        let rounding = Some(device.settings.rounding).filter(|set| splits && *set != Rounding::none());
        let captures = device.events.captures().unwrap_or_default();
        Self(Arc::new(Handle { core, captures, rounding }))
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

    /// The kind of the pool.
    #[must_use]
    pub fn kind(&self) -> PoolKind {
        self.0.core.kind
    }

    /// The source of its segments.
    #[must_use]
    pub fn source(&self) -> &Arc<dyn SegmentSource> {
        &self.0.core.source
    }

    /// Allocates a block of at least `bytes`, for use on `stream` from now on.
    ///
    /// A stream that captures is served only by a pool whose memory stays in place for the graph. These are
    /// symmetric pools, [frozen](Self::freeze) pools, and a graph pool during
    /// [`GraphPool::capture`](super::GraphPool::capture). Otherwise the request fails with
    /// [`CaptureOutsideGraphPool`](AllocError::CaptureOutsideGraphPool). A hit is not checked during a
    /// capture that [`StreamEvents::captures`](super::StreamEvents::captures) does not count.
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
        let key = Key { pool: self.0.core.key, stream };
        match recent::find(key).and_then(|slot| slot.hit(key, request)) {
            Some(block) => Ok(block),
            None => self.0.core.allocate(key, request),
        }
    }

    /// Until the guard is dropped, a request that needs a new segment fails with
    /// [`PoolWouldGrowDuringCapture`](AllocError::PoolWouldGrowDuringCapture), and nothing of the pool is trimmed
    /// or lent.
    ///
    /// Blocks until a running growth or trim has ended, so that none overlaps the guard. Inside a tracker it
    /// does not block: the entry that is being delivered belongs to a change that still completes.
    pub fn freeze(&self) -> Freeze {
        self.0.core.retain(&self.0.core.freezes);
        Freeze(self.0.core.clone())
    }

    /// Prevents the pool from releasing and lending memory until the guard is dropped. Blocks like
    /// [`freeze`](Self::freeze).
    pub(super) fn keep(&self) -> Keep {
        self.0.core.retain(&self.0.core.keeps);
        Keep(self.0.core.clone())
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.0.core.device
    }

    /// Its current segments, except those of a re-mappable pool.
    pub(super) fn segments(&self) -> Vec<Segment> {
        // Inside a tracker the lock is already held, or no change of the pool is running.
        let _growth = self.0.core.device.grow();
        self.0.core.shards().iter().flat_map(|shard| shard.segments()).collect()
    }

    /// Resets every peak of its statistics to the current value.
    pub fn reset_peaks(&self) {
        self.0.core.reset(Gauge::reset_peak, Tallies::reset_peaks);
    }

    /// Resets every total of its statistics to the current value.
    pub fn reset_totals(&self) {
        self.0.core.reset(Gauge::reset_total, Tallies::reset_totals);
    }

    /// The pool's statistics.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.core.stats()
    }

    /// The segments of a symmetric pool, with its allocation log at the creation of each; empty for another
    /// pool.
    #[must_use]
    pub fn symmetric_segments(&self) -> Vec<SymmetricSegment> {
        let PoolKind::Symmetric { stream, .. } = self.kind() else { return Vec::new() };
        let Some(shard) = self.0.core.find(stream) else { return Vec::new() };
        shard.state.lock().symmetric.as_ref().map(|journal| journal.segments().to_vec()).unwrap_or_default()
    }

    /// The allocation log of a symmetric pool; `None` for another pool, or before the first request.
    #[must_use]
    pub fn log(&self) -> Option<Log> {
        let PoolKind::Symmetric { stream, .. } = self.kind() else { return None };
        let shard = self.0.core.find(stream)?;
        let state = shard.state.lock();
        state.symmetric.as_ref().map(|journal| journal.state().clone())
    }
}

impl fmt::Debug for Pool {
    /// Omits the contents: pools and their routes refer to each other.
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
        let shards = locked(&self.core.shards).close();
        shards.iter().for_each(|shard| shard.close());
    }
}

impl PoolCore {
    /// Its shards, in order of creation.
    pub(super) fn shards(&self) -> Vec<Arc<Shard>> {
        locked(&self.shards).all()
    }

    /// The shard of a stream, unless the pool's handles are gone.
    pub(super) fn find(&self, stream: StreamId) -> Option<Arc<Shard>> {
        locked(&self.shards).find(stream)
    }

    /// Allocates a block from a shard that this thread has not cached, or that has no free block at hand.
    #[cold]
    fn allocate(self: &Arc<Self>, key: Key, request: Request) -> Result<Block, AllocError> {
        loop {
            let shard = match self.find(key.stream) {
                Some(shard) => shard,
                None => self.add_shard(key.stream)?,
            };
            recent::remember(key, shard.state);
            if let Some(block) = shard.hit(request) {
                return Ok(block);
            }
            if let Some(block) = shard.miss(request)? {
                return Ok(block);
            }
            // The shard was retired meanwhile.
        }
    }

    fn add_shard(self: &Arc<Self>, stream: StreamId) -> Result<Arc<Shard>, AllocError> {
        if let PoolKind::Symmetric { stream: bound, .. } = self.kind
            && bound != stream
        {
            return Err(AllocError::StreamNotOfPool { pool: self.id, bound, stream });
        }
        if !self.device.events.knows(stream) {
            return Err(AllocError::UnknownStream { stream });
        }
        // Trackers and their snapshots cover every shard, so none is added while a tracker attaches.
        let growth = self.device.grow().ok_or_else(reentrant)?;
        if let Some(shard) = self.find(stream) {
            return Ok(shard);
        }
        let retired = self.retire_idle();
        let slots = Device::block_trackers(&growth);
        let mut shards = locked(&self.shards);
        let list = if self.arena.is_some() { shards.take_list() } else { Some(Arena::NOBODYS_LIST) };
        let Some(list) = list else {
            return Err(AllocError::TooManyStreams { pool: self.id, streams: Arena::STREAMS, stream });
        };
        let shard = shards.add(|age| Shard::new(self.clone(), stream, age, list, slots));
        // Dropping the shards takes locks of its own.
        drop(shards);
        drop(retired);
        Ok(shard)
    }

    /// Retires shards without memory and blocks, if there are many shards.
    fn retire_idle(&self) -> Vec<Arc<Shard>> {
        let limit = if self.arena.is_some() { Arena::STREAMS } else { usize::MAX };
        let candidates = locked(&self.shards).candidates(limit);
        if candidates.is_empty() {
            return Vec::new();
        }
        let retired = self.retire(&candidates, false);
        locked(&self.shards).settle();
        retired
    }

    /// Retires those of the shards that are empty, and returns them, to be dropped without a lock except the
    /// growth lock, which the caller holds. Their free memory in an arena goes to the other streams if the
    /// host sees that their streams' work has ended, or, with `wait`, has waited for that.
    pub(super) fn retire(&self, shards: &[Arc<Shard>], wait: bool) -> Vec<Arc<Shard>> {
        let mut retired = shards.to_vec();
        retired.retain(|shard| self.leave_arena(shard, wait));
        // A thread that sums the usages waits for this lock until the retired shards are counted as past.
        let mut past = locked(&self.past);
        retired.retain(|shard| shard.retire());
        if retired.is_empty() {
            return retired;
        }
        let mut gone = PoolUsages::default();
        retired.iter().for_each(|shard| gone.merge(&shard.state.lock().usages()));
        past.add(gone, sum_of(&self.shards()));
        drop(past);
        let mut table = locked(&self.shards);
        retired.iter().for_each(|shard| table.remove(shard));
        retired
    }

    /// Leaves a shard's free memory in the arena, if there is one, to the others. Returns whether it has none
    /// left there.
    fn leave_arena(&self, shard: &Shard, wait: bool) -> bool {
        if self.arena.is_none() {
            return true;
        }
        if shard.state.lock().tallies.active() > 0 {
            return false;
        }
        shard.merge();
        if self.arena_mut().is_list_empty(shard.list) {
            return true;
        }
        let ended = if wait {
            self.device.drain_stream(shard.stream).is_ok()
        } else {
            let mut mark = Wait { stream: shard.stream, event: self.device.mark(shard.stream) };
            let ended = mark.event.is_some() && self.device.has_ended(&mut mark);
            if let Some(event) = mark.event.filter(|_| !ended) {
                self.device.events.recycle(event);
            }
            ended
        };
        if ended {
            self.arena_mut().leave_list(shard.list);
        }
        ended
    }

    /// The pages of a re-mappable pool, by address. The caller holds the growth lock.
    pub(super) fn pages(&self) -> Vec<Segment> {
        /// Granules that are examined per acquisition of the lock.
        const PIECE: usize = 1024;
        let Some(arena) = &self.arena else { return Vec::new() };
        let mut pages = Vec::new();
        let (mut range, mut first) = (0, 0);
        loop {
            pages.reserve(PIECE);
            let more = arena.lock().copy_pages(range, first, PIECE, &mut pages);
            match more {
                None => break,
                Some(true) => first += PIECE,
                Some(false) => (range, first) = (range + 1, 0),
            }
        }
        pages.sort_unstable_by_key(Segment::address);
        pages
    }

    /// Increments `count`, and returns when no running growth or release can have missed the increment.
    fn retain(&self, count: &AtomicUsize) {
        let growth = self.device.grow();
        count.fetch_add(1, Ordering::AcqRel);
        if growth.is_none() {
            // Inside a tracker. Memory is withdrawn under these locks, and the count is read again there.
            self.shards().iter().for_each(|shard| drop(shard.state.lock()));
            drop(self.arena.as_ref().map(|arena| arena.lock()));
        }
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.freezes.load(Ordering::Acquire) > 0
    }

    /// Returns true if no memory of the pool may be released or lent: it is frozen, or a graph uses its
    /// memory.
    pub(super) fn is_kept(&self) -> bool {
        self.is_frozen() || self.keeps.load(Ordering::Acquire) > 0
    }

    /// Returns an error if the stream captures and the pool would reuse its memory while the graph can be
    /// launched.
    #[cold]
    pub(super) fn refuse_capture(&self, stream: StreamId) -> Result<(), AllocError> {
        // An error counts as no capture: the driver fails to answer only for streams that take part in none.
        if self.is_symmetric() || self.is_kept() || !self.device.events.is_capturing(stream).unwrap_or(false)
        {
            return Ok(());
        }
        Err(AllocError::CaptureOutsideGraphPool { pool: self.id, stream })
    }

    /// Returns true if this pool may use free blocks of the other before it is out of memory.
    pub(super) fn may_borrow_from(&self, other: &Self) -> bool {
        let is_default = |pool: &Self| pool.id == PoolId::default();
        let agreed = is_default(self) && other.lends || self.borrows && is_default(other);
        // Memory that moves is for its own device alone, so it cannot replace memory that stays in place.
        let stays = self.arena.is_some() || other.arena.is_none();
        agreed && stays && !other.is_kept()
    }

    /// The rule for splitting its blocks.
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

    /// The arena that the streams of a re-mappable pool share.
    pub(super) fn arena_mut(&self) -> Guard<'_, Arena> {
        self.arena.as_ref().expect("asked of a re-mappable pool").lock()
    }

    /// The page of a re-mappable pool, and the block, that contain an address.
    pub(super) fn find_mapped(&self, address: u64) -> Option<Found> {
        let shards = self.shards();
        let found = self.arena.as_ref()?.lock().find(address).map(|(page, tile)| (page.clone(), tile))?;
        let (segment, tile) = found;
        let tenant = shards.iter().find_map(|shard| shard.state.lock().tenant(tile.id));
        Some(Found { segment, block: super::shard::block_state(&tile, tenant) })
    }

    /// The streams that may use memory of a re-mappable pool, including those whose shards are gone.
    pub(super) fn streams(&self) -> Vec<StreamId> {
        let mut streams = locked(&self.orphans).streams.clone();
        streams.extend(self.shards().iter().map(|shard| shard.stream));
        streams
    }

    /// Takes over from a removed shard of a re-mappable pool, whose memory stays until the pool is dropped.
    pub(super) fn leave(&self, stream: StreamId, pending: impl IntoIterator<Item = Pending>) {
        let mut orphans = locked(&self.orphans);
        orphans.streams.push(stream);
        orphans.pending.extend(pending);
    }

    /// Bytes that the allocator may still request from the pool's source, as far as is known without another
    /// query.
    pub(super) fn available(&self) -> u64 {
        let total = *self.total.get_or_init(|| match self.source.memory_info() {
            Ok(info) => info.total,
            Err(error) => {
                self.device.fault(Fault::MemoryUnknown { pool: self.id, message: chain(&error) });
                u64::MAX
            }
        });
        let reserved = self.device.totals().reserved.current;
        self.device.room().min(total.saturating_sub(reserved))
    }

    pub(super) fn reserved(&self) -> MutexGuard<'_, Gauge> {
        locked(&self.reserved)
    }

    pub(super) fn reset(&self, gauge: fn(&mut Gauge), tallies: fn(&mut Tallies)) {
        gauge(&mut self.reserved());
        locked(&self.past).reset(gauge);
        self.shards().iter().for_each(|shard| tallies(&mut shard.state.lock().tallies));
    }

    pub(super) fn stats(&self) -> Stats {
        let PoolUsages { all, small, large } = self.usages();
        Stats { all, small, large, reserved: *self.reserved(), ..Stats::default() }
    }

    /// The current and past usage of its blocks.
    pub(super) fn usages(&self) -> PoolUsages {
        let shards = self.shards();
        // The lock stays held, so no shard is retired between the two sums.
        let mut past = locked(&self.past);
        past.with(sum_of(&shards))
    }
}

/// The usage of shards that are not retired.
fn sum_of(shards: &[Arc<Shard>]) -> PoolUsages {
    let mut sum = PoolUsages::default();
    for state in shards.iter().map(|shard| shard.state.lock()) {
        if state.key != Key::RETIRED {
            sum.merge(&state.usages());
        }
    }
    sum
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

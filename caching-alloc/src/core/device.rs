//! One device: the state shared by all pools and streams of an allocator.
//!
//! Structure (segments and trackers) changes only under the growth lock. That lock is held while the source and
//! trackers are called; a shard's lock never is.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Instant, SystemTime};

use super::block::Block;
use super::entry::{Action, Entry};
use super::error::{AllocError, Fault};
use super::lock::{Guard, Rank, Ranked};
use super::observer::Observers;
use super::pending::Pending;
use super::pool::PoolCore;
use super::rounding::Fraction;
use super::route::Routes;
use super::segment::{PoolId, Segment, SegmentId, SegmentParts, SizeClass};
use super::settings::Settings;
use super::shard::{Request, Shard};
use super::snapshot::{SegmentState, Usage};
use super::source::{self, SegmentSource, SourceError};
use super::stats::{PoolUsages, SourceCalls, Stats};
use super::stream::{EventId, StreamEvents, StreamId};
use super::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use super::sync::{Mutex, MutexGuard, RwLock};
use super::tracker::{self, Slot, Slots};

/// Number of faults that are kept.
const FAULTS: usize = 1 << 10;

#[derive(Debug)]
pub(super) struct Device {
    pub(super) source: Arc<dyn SegmentSource>,
    pub(super) events: Arc<dyn StreamEvents>,
    pub(super) settings: Settings,
    pub(super) growth: Ranked<Growth>,
    /// Number of the last structural entry.
    generation: AtomicU64,
    pub(super) routes: Routes,
    pub(super) observers: Observers,
    /// Blocks that were allocated raw.
    pub(super) raw: Mutex<HashMap<u64, Arc<Block>>>,
    pools: Mutex<Vec<Weak<PoolCore>>>,
    collective: RwLock<HashSet<StreamId>>,
    faults: Mutex<VecDeque<Fault>>,
    pub(super) graves: Mutex<Vec<Grave>>,
    /// The limit on all segments in bytes; `u64::MAX`: no limit.
    pub(super) limit: AtomicU64,
    /// The part of the limit above which garbage is collected, in millionths; `u32::MAX`: never.
    pub(super) collect: AtomicU32,
    /// Segments' statistics; those of blocks are with the shards.
    totals: Mutex<Stats>,
    pub(super) born: Instant,
    /// The same moment as wall-clock time.
    pub(super) began: SystemTime,
}

/// State that changes under the growth lock only.
#[derive(Debug)]
pub(super) struct Growth {
    pub(super) trackers: Slots,
    pub(super) ring: VecDeque<Entry>,
    /// Segments whose creation trackers have seen, but not their removal.
    pub(super) segments: BTreeMap<SegmentId, Segment>,
    last_time: u64,
    next_segment: u64,
    next_pool: u32,
    pub(super) quarantine: Vec<Segment>,
}

impl Growth {
    /// The number of a new segment.
    pub(super) fn segment_id(&mut self) -> SegmentId {
        let id = SegmentId(self.next_segment);
        self.next_segment += 1;
        id
    }
}

/// Memory and entries left by a removed shard or re-mappable pool, to be released later.
#[derive(Debug, Default)]
pub(super) struct Grave {
    pub(super) streams: Vec<StreamId>,
    pub(super) segments: Vec<Segment>,
    pub(super) pending: Vec<Pending>,
    /// Block entries not yet delivered, and the trackers that receive them.
    pub(super) entries: Vec<Entry>,
    pub(super) slots: Slots,
    /// Old addresses of moved pages, events that mark their last uses, the ranges that contain them, and
    /// their source.
    pub(super) old: Vec<(u64, u64)>,
    pub(super) events: Vec<EventId>,
    pub(super) ranges: Vec<(u64, u64)>,
    pub(super) source: Option<Arc<dyn SegmentSource>>,
}

impl Grave {
    /// The state for a snapshot: every segment as one block, which counts as in use while a block of it may
    /// be.
    pub(super) fn capture(&self) -> impl Iterator<Item = SegmentState> {
        let usage = if self.pending.is_empty() { Usage::Inactive } else { Usage::PendingFree };
        self.segments.iter().map(move |segment| SegmentState::whole(segment, usage))
    }

    /// Takes the undelivered entries, with the trackers that receive them.
    pub(super) fn take_entries(&mut self) -> (Slots, Vec<Entry>) {
        (self.slots.clone(), std::mem::take(&mut self.entries))
    }
}

impl Device {
    pub(super) fn new(
        source: Arc<dyn SegmentSource>,
        events: Arc<dyn StreamEvents>,
        settings: Settings,
    ) -> Arc<Self> {
        let growth = Growth {
            trackers: Arc::new([]),
            ring: VecDeque::new(),
            segments: BTreeMap::new(),
            last_time: 0,
            next_segment: 0,
            next_pool: 0,
            quarantine: Vec::new(),
        };
        Arc::new(Self {
            limit: AtomicU64::new(settings.memory_limit.unwrap_or(u64::MAX)),
            collect: AtomicU32::new(settings.collect_above.map_or(u32::MAX, Fraction::millionths)),
            totals: Mutex::default(),
            source,
            events,
            settings,
            growth: Ranked::new(Rank::Growth, growth),
            generation: AtomicU64::new(0),
            routes: Routes::default(),
            observers: Observers::default(),
            raw: Mutex::default(),
            pools: Mutex::default(),
            collective: RwLock::default(),
            faults: Mutex::default(),
            graves: Mutex::default(),
            born: Instant::now(),
            began: SystemTime::now(),
        })
    }

    pub(super) fn ordinal(&self) -> u32 {
        self.source.device()
    }

    /// Nanoseconds since it was made.
    pub(super) fn now(&self) -> u64 {
        super::ring::nanoseconds_since(self.born)
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The limit on all segments in bytes.
    pub(super) fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|limit| *limit != u64::MAX)
    }

    /// Bytes that segments may still grow by under the limit.
    pub(super) fn room(&self) -> u64 {
        self.limit.load(Ordering::Relaxed).saturating_sub(self.totals().reserved.current)
    }

    pub(super) fn totals(&self) -> MutexGuard<'_, Stats> {
        locked(&self.totals)
    }

    /// Counts calls of sources.
    pub(super) fn count(&self, add: impl FnOnce(&mut SourceCalls)) {
        add(&mut self.totals().calls);
    }

    /// Takes the growth lock. Returns `None` inside a tracker, which would deadlock.
    pub(super) fn grow(&self) -> Option<Guard<'_, Growth>> {
        (!tracker::inside()).then(|| self.growth.lock())
    }

    pub(super) fn fault(&self, fault: Fault) {
        let mut faults = locked(&self.faults);
        if faults.len() == FAULTS {
            faults.pop_front();
        }
        faults.push_back(fault);
    }

    pub(super) fn faults(&self) -> Vec<Fault> {
        locked(&self.faults).iter().cloned().collect()
    }

    pub(super) fn mark_collective(&self, stream: StreamId) {
        self.collective.write().unwrap_or_else(PoisonError::into_inner).insert(stream);
    }

    pub(super) fn unmark_collective(&self, stream: StreamId) {
        self.collective.write().unwrap_or_else(PoisonError::into_inner).remove(&stream);
    }

    pub(super) fn is_collective(&self, stream: StreamId) -> bool {
        self.collective.read().unwrap_or_else(PoisonError::into_inner).contains(&stream)
    }

    /// Returns true if a stream may wait for others, and others for it, because of this rank's memory alone.
    /// False for a stream that carries collectives or is being captured.
    pub(super) fn may_wait(&self, stream: StreamId) -> bool {
        !self.is_collective(stream) && !self.events.is_capturing(stream).unwrap_or(true)
    }

    /// The pools that are in use, in order of creation.
    pub(super) fn pools(&self) -> Vec<Arc<PoolCore>> {
        let mut pools = locked(&self.pools);
        pools.retain(|pool| pool.strong_count() > 0);
        pools.iter().filter_map(Weak::upgrade).collect()
    }

    /// All shards, by pool and in order of creation.
    pub(super) fn shards(&self) -> Vec<Arc<Shard>> {
        self.pools().iter().flat_map(|pool| pool.shards()).collect()
    }

    /// The number of blocks handed out, freed and completed so far.
    pub(super) fn operations(&self) -> u64 {
        self.shards().iter().map(|shard| shard.state.lock().ring.operations()).sum()
    }

    pub(super) fn add_pool(
        &self,
        growth: &mut Growth,
        make: impl FnOnce(PoolId) -> PoolCore,
    ) -> Arc<PoolCore> {
        let pool = Arc::new(make(PoolId(growth.next_pool)));
        growth.next_pool += 1;
        locked(&self.pools).push(Arc::downgrade(&pool));
        pool
    }

    /// Trackers that want block entries.
    pub(super) fn block_trackers(growth: &Growth) -> Slots {
        growth.trackers.iter().filter(|slot| slot.wants_blocks()).cloned().collect()
    }

    /// Delivers entries to trackers and records their failures as faults.
    pub(super) fn tell(&self, slots: &[Arc<Slot>], entries: &[Entry]) {
        if !entries.is_empty() {
            slots.iter().filter_map(|slot| slot.deliver(entries)).for_each(|fault| self.fault(fault));
        }
    }

    /// Numbers a structural entry, keeps it and delivers it.
    pub(super) fn emit(&self, growth: &mut Growth, pool: PoolId, stream: StreamId, action: Action) -> u64 {
        match &action {
            Action::SegmentAlloc(segment) | Action::SegmentMap(segment) => {
                growth.segments.insert(segment.id(), segment.clone());
            }
            Action::SegmentFree(segment) | Action::SegmentUnmap(segment) => {
                growth.segments.remove(&segment.id());
            }
            _ => {}
        }
        growth.last_time = self.now().max(growth.last_time + 1);
        let number = self.generation() + 1;
        let time_ns = growth.last_time;
        let entry = Entry { number, time_ns, device: self.ordinal(), pool, stream, action };
        if growth.ring.len() >= self.settings.structural_entries.max(1) {
            growth.ring.pop_front();
        }
        growth.ring.push_back(entry.clone());
        self.generation.store(number, Ordering::Release);
        let trackers = growth.trackers.clone();
        self.tell(&trackers, &[entry]);
        time_ns
    }

    /// Allocates a segment of `bytes` for the shard and notifies every tracker before publishing it there.
    /// The requested block is the first one from it.
    pub(super) fn add_segment(
        &self,
        growth: &mut Growth,
        shard: &Arc<Shard>,
        class: SizeClass,
        bytes: u64,
        request: Request,
    ) -> Result<Block, SourceError> {
        if self.totals().reserved.current.saturating_add(bytes) > self.limit.load(Ordering::Relaxed) {
            return Err(SourceError::OutOfMemory { wanted: bytes });
        }
        let source = &shard.pool.source;
        self.totals().source_allocations += 1;
        self.count(|calls| calls.allocate += 1);
        let units = super::size::units_for(bytes).map_err(|_| SourceError::OutOfMemory { wanted: bytes })?;
        let memory = source::allocate(&**source, bytes)?;
        let segment = Segment::new(SegmentParts {
            id: growth.segment_id(),
            device: source.device(),
            pool: shard.pool.id,
            stream: shard.stream,
            class,
            memory,
            source: source.clone(),
        });
        self.totals().reserved.add(bytes);
        self.totals().segments.add(1);
        shard.pool.reserved().add(bytes);
        let now = self.emit(growth, shard.pool.id, shard.stream, Action::SegmentAlloc(segment.clone()));
        let mut state = shard.state.lock();
        state.publish(segment, units, now);
        let id = state.reserve(request.units).expect("a new segment has room for what it was made for");
        Ok(shard.state.hand_out(state, id, request, shard.stream))
    }

    /// Notifies trackers that a segment is removed, and releases it unless it is held. No block of it is
    /// used, no work on it is left, and no shard has it.
    pub(super) fn remove_segment(&self, growth: &mut Growth, segment: Segment) {
        self.emit(growth, segment.pool(), segment.stream(), Action::SegmentFree(segment.clone()));
        if segment.try_release() {
            self.give_back(&segment);
        } else {
            self.totals().quarantined += segment.bytes();
            self.fault(Fault::Quarantined { holders: segment.holders(), segment: segment.clone() });
            growth.quarantine.push(segment);
        }
    }

    /// Releases the memory of removed shards, and quarantined segments that are no longer held.
    pub(super) fn reap(&self, growth: &mut Growth) {
        let graves = std::mem::take(&mut *locked(&self.graves));
        for grave in graves {
            self.empty(growth, grave);
        }
        for segment in std::mem::take(&mut growth.quarantine) {
            if segment.try_release() {
                self.totals().quarantined -= segment.bytes();
                self.give_back(&segment);
            } else {
                growth.quarantine.push(segment);
            }
        }
    }

    /// Blocks the host until all work enqueued on `stream` has ended. It does not touch the stream's memory.
    pub(super) fn drain_stream(&self, stream: StreamId) -> Result<(), super::stream::EventError> {
        let ended = self.events.record(stream).and_then(|event| {
            let ended = self.events.synchronize(event);
            self.events.recycle(event);
            ended
        });
        // A destroyed stream takes no event, but its work may still run.
        ended.or_else(|_| self.events.synchronize_device())
    }

    /// Takes over the memory of a removed shard.
    pub(super) fn bury(&self, grave: Grave) {
        if grave.segments.is_empty() && grave.entries.is_empty() && grave.ranges.is_empty() {
            return;
        }
        locked(&self.graves).push(grave);
        // If the growth lock is taken (perhaps by this very thread, in a tracker), the next growth releases
        // it.
        if !tracker::inside()
            && let Some(mut growth) = self.growth.try_lock()
        {
            self.reap(&mut growth);
        }
    }

    fn empty(&self, growth: &mut Growth, mut grave: Grave) {
        let (slots, entries) = grave.take_entries();
        self.tell(&slots, &entries);
        for pending in &mut grave.pending {
            pending.waits.retain(|wait| !self.wait_for(wait));
        }
        grave.pending.retain(|pending| !pending.waits.is_empty());
        if grave.streams.iter().any(|stream| self.is_captured(*stream)) || !grave.pending.is_empty() {
            locked(&self.graves).push(grave);
            return;
        }
        let used = if grave.segments.is_empty() { &[] } else { &grave.streams[..] };
        match used.iter().try_for_each(|stream| self.drain_stream(*stream)) {
            Ok(()) => {
                self.unmap_old(&grave);
                grave.segments.into_iter().for_each(|segment| self.remove_segment(growth, segment));
                if let Some(source) = grave.source.as_ref().and_then(|source| source.as_pages()) {
                    self.count(|calls| calls.unreserve += grave.ranges.len() as u64);
                    grave.ranges.iter().for_each(|(base, bytes)| source.unreserve(*base, *bytes));
                }
            }
            Err(error) => {
                let message = super::error::chain(&error);
                for segment in &grave.segments {
                    self.fault(Fault::Stranded { segment: segment.clone(), message: message.clone() });
                }
                locked(&self.graves).push(grave);
            }
        }
    }

    /// Unmaps the old addresses of moved pages. No work uses them any more.
    fn unmap_old(&self, grave: &Grave) {
        let Some(source) = grave.source.as_ref().and_then(|source| source.as_pages()) else { return };
        grave.events.iter().for_each(|event| self.events.recycle(*event));
        for (address, bytes) in &grave.old {
            self.count(|calls| calls.unmap += 1);
            if let Err(error) = source.unmap(*address, *bytes) {
                let pool = grave.segments.first().map(Segment::pool).unwrap_or_default();
                self.fault(Fault::Unmapped { pool, message: super::error::chain(&error) });
            }
        }
    }

    fn give_back(&self, segment: &Segment) {
        self.totals().source_releases += 1;
        self.count(|calls| calls.release += 1);
        let bytes = segment.bytes();
        self.totals().reserved.sub(bytes);
        self.totals().segments.sub(1);
        if let Some(pool) = self.pools().iter().find(|pool| pool.id == segment.pool()) {
            pool.reserved().sub(bytes);
        }
        if let Err(error) = segment.source().release(&segment.memory()) {
            let message = super::error::chain(&error);
            self.fault(Fault::ReleaseFailed { segment: segment.clone(), message });
        }
    }

    /// The allocator's statistics.
    pub(super) fn stats(&self) -> Stats {
        let stats = *self.totals();
        let mut usages = PoolUsages::default();
        self.pools().iter().for_each(|pool| usages.merge(&pool.usages()));
        let PoolUsages { all, small, large } = usages;
        Stats { all, small, large, ..stats }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // The last handle may be dropped inside a tracker. The lock is free even then, since no other handle
        // is left.
        if let Some(mut growth) = self.growth.try_lock() {
            self.reap(&mut growth);
        }
    }
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error for a miss inside a tracker.
pub(super) fn reentrant() -> AllocError {
    AllocError::ReentrantTracker { operation: "a request that needs more memory" }
}

//! The registry: the state that all pools and streams of an allocator share. It has the source, the streams, the live
//! segments, the trackers, the structural entries, the limits, totals and faults.
//!
//! The set of segments and the set of trackers change only under the structure lock. Under this lock, the source and
//! trackers may be called. They are never called under a lock that a hit takes.

mod deferred;
mod ordering;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::{Instant, SystemTime};

pub(super) use self::deferred::DeferredRelease;
use self::ordering::StreamMarks;
use super::entry::{Action, Entry};
use super::error::Fault;
use super::lock::{Guard, Rank, Ranked};
use super::rounding::Fraction;
use super::segment::{PoolId, Segment, SegmentId};
use super::settings::Settings;
use super::source::SegmentSource;
use super::stats::{Gauge, SourceCalls, Stats};
use super::stream::{StreamEvents, StreamId};
use super::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use super::sync::{Mutex, MutexGuard};
use super::tracker::{self, Slot, Slots};

/// Maximum number of faults to keep. The oldest ones are dropped.
const FAULTS: usize = 1 << 10;

#[derive(Debug)]
pub(super) struct Registry {
    pub(super) source: Arc<dyn SegmentSource>,
    pub(super) events: Arc<dyn StreamEvents>,
    pub(super) settings: Settings,
    pub(super) structure: Ranked<Structure>,
    /// The number of the newest structural entry.
    generation: AtomicU64,
    /// Streams that carry collectives, and those whose capture was announced.
    marks: StreamMarks,
    faults: Mutex<VecDeque<Fault>>,
    /// Memory of dropped caches and pools, to be released later.
    pub(super) deferred: Mutex<Vec<DeferredRelease>>,
    /// The limit on the total length of all segments in bytes. `u64::MAX` means no limit.
    pub(super) limit: AtomicU64,
    /// The part of the limit, in millionths, above which idle segments are released before growth. `u32::MAX` means
    /// never.
    pub(super) collect: AtomicU32,
    /// The live segments, by address. A segment is live from the emission of its creation entry to that of its removal
    /// entry.
    live: Mutex<BTreeMap<u64, Segment>>,
    /// Statistics of segments. Stream caches count the blocks.
    totals: Mutex<Stats>,
    /// For each pool in use, the total length of its segments in bytes.
    reserved: Mutex<HashMap<PoolId, Gauge>>,
    /// The creation time of the allocator.
    pub(super) born: Instant,
    /// The creation time as wall-clock time.
    pub(super) began: SystemTime,
}

/// The state that the structure lock guards.
#[derive(Debug)]
pub(super) struct Structure {
    pub(super) trackers: Slots,
    /// The newest structural entries, oldest first.
    pub(super) ring: VecDeque<Entry>,
    /// The time of the newest structural entry. Times increase strictly.
    last_time: u64,
    next_segment: u64,
    next_pool: u32,
    /// Segments that should have been released, but are held.
    pub(super) quarantine: Vec<Segment>,
}

impl Structure {
    /// Returns the number for a new pool.
    pub(super) fn pool_id(&mut self) -> PoolId {
        let id = PoolId(self.next_pool);
        self.next_pool += 1;
        id
    }

    /// Returns the number for a new segment.
    pub(super) fn segment_id(&mut self) -> SegmentId {
        let id = SegmentId(self.next_segment);
        self.next_segment += 1;
        id
    }
}

impl Registry {
    pub(super) fn new(
        source: Arc<dyn SegmentSource>,
        events: Arc<dyn StreamEvents>,
        settings: Settings,
    ) -> Arc<Self> {
        let structure = Structure {
            trackers: Arc::new([]),
            ring: VecDeque::new(),
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
            structure: Ranked::new(Rank::Structure, structure),
            generation: AtomicU64::new(0),
            marks: StreamMarks::default(),
            live: Mutex::default(),
            reserved: Mutex::default(),
            faults: Mutex::default(),
            deferred: Mutex::default(),
            born: Instant::now(),
            began: SystemTime::now(),
        })
    }

    /// Returns the ordinal of the device.
    pub(super) fn ordinal(&self) -> u32 {
        self.source.device()
    }

    /// Returns the nanoseconds since the allocator was created.
    pub(super) fn now(&self) -> u64 {
        super::ring::nanoseconds_since(self.born)
    }

    /// Returns the number of the newest structural entry.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the limit on the total length of all segments in bytes, if there is one.
    pub(super) fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|limit| *limit != u64::MAX)
    }

    /// Returns the threshold in reserved bytes above which idle segments are released before growth. `None` means
    /// never.
    pub(super) fn collect_above(&self) -> Option<u64> {
        let part = Fraction::from_millionths(self.collect.load(Ordering::Relaxed))?;
        self.limit().map(|limit| part.of(limit))
    }

    /// Returns how many more bytes may be reserved under the limit.
    pub(super) fn room(&self) -> u64 {
        self.limit.load(Ordering::Relaxed).saturating_sub(self.totals().reserved.current)
    }

    pub(super) fn totals(&self) -> MutexGuard<'_, Stats> {
        locked(&self.totals)
    }

    /// Returns the gauge of a pool's reserved memory: the total length of its segments in bytes.
    pub(super) fn pool_reserved(&self, pool: PoolId) -> Gauge {
        locked(&self.reserved).get(&pool).copied().unwrap_or_default()
    }

    /// Calls `change` with the gauge of a pool's reserved memory.
    pub(super) fn change_pool_reserved(&self, pool: PoolId, change: impl FnOnce(&mut Gauge)) {
        change(locked(&self.reserved).entry(pool).or_default());
    }

    /// Removes the gauge of a dropped pool.
    pub(super) fn forget_pool(&self, pool: PoolId) {
        locked(&self.reserved).remove(&pool);
    }

    /// Returns the live segment that contains an address.
    pub(super) fn segment_at(&self, address: u64) -> Option<Segment> {
        let live = locked(&self.live);
        let (_, segment) = live.range(..=address).next_back()?;
        (address < segment.memory().end()).then(|| segment.clone())
    }

    /// Returns the live segments in order of address.
    pub(super) fn live_segments(&self) -> Vec<Segment> {
        locked(&self.live).values().cloned().collect()
    }

    /// Counts `number` new segments of a pool, with a total length of `bytes`.
    pub(super) fn count_in(&self, pool: PoolId, number: u64, bytes: u64) {
        let mut totals = self.totals();
        totals.reserved.add(bytes);
        totals.segments.add(number);
        drop(totals);
        self.change_pool_reserved(pool, |reserved| reserved.add(bytes));
    }

    /// Counts the release of a segment of `bytes`.
    pub(super) fn count_out(&self, pool: PoolId, bytes: u64) {
        let mut totals = self.totals();
        totals.source_releases += 1;
        totals.reserved.sub(bytes);
        totals.segments.sub(1);
        drop(totals);
        if let Some(reserved) = locked(&self.reserved).get_mut(&pool) {
            reserved.sub(bytes);
        }
    }

    /// Calls `add` with the counters of calls to sources.
    pub(super) fn count(&self, add: impl FnOnce(&mut SourceCalls)) {
        add(&mut self.totals().calls);
    }

    /// Takes the structure lock. Returns `None` inside a tracker, because this thread may hold the lock already.
    pub(super) fn lock_structure(&self) -> Option<Guard<'_, Structure>> {
        (!tracker::inside()).then(|| self.structure.lock())
    }

    /// Records a fault. Drops the oldest one if there are too many.
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

    /// Returns the trackers that receive block entries.
    pub(super) fn block_trackers(structure: &Structure) -> Slots {
        structure.trackers.iter().filter(|slot| slot.wants_blocks()).cloned().collect()
    }

    /// Delivers entries to trackers. Failures of trackers are recorded as faults.
    pub(super) fn tell(&self, slots: &[Arc<Slot>], entries: &[Entry]) {
        if !entries.is_empty() {
            slots.iter().filter_map(|slot| slot.deliver(entries)).for_each(|fault| self.fault(fault));
        }
    }

    /// Makes a structural entry with the next number, keeps it for snapshots, and delivers it to all trackers. Returns
    /// the entry's time in nanoseconds since the allocator was created.
    pub(super) fn emit(
        &self,
        structure: &mut Structure,
        pool: PoolId,
        stream: StreamId,
        action: Action,
    ) -> u64 {
        match &action {
            Action::SegmentAlloc(segment) | Action::SegmentMap(segment) => {
                locked(&self.live).insert(segment.address(), segment.clone());
            }
            Action::SegmentFree(segment) | Action::SegmentUnmap(segment) => {
                locked(&self.live).remove(&segment.address());
            }
            _ => {}
        }
        structure.last_time = self.now().max(structure.last_time + 1);
        let number = self.generation() + 1;
        let time_ns = structure.last_time;
        let entry = Entry { number, time_ns, device: self.ordinal(), pool, stream, action };
        if structure.ring.len() >= self.settings.structural_entries.max(1) {
            structure.ring.pop_front();
        }
        structure.ring.push_back(entry.clone());
        self.generation.store(number, Ordering::Release);
        let trackers = structure.trackers.clone();
        self.tell(&trackers, &[entry]);
        time_ns
    }

    /// Notifies trackers that a segment is removed. Then releases it to its source, or quarantines it if it is held.
    /// The caller ensures that the segment has no blocks, that no work uses it any more, and that no cache has it.
    pub(super) fn remove_segment(&self, structure: &mut Structure, segment: Segment) {
        self.emit(structure, segment.pool(), segment.stream(), Action::SegmentFree(segment.clone()));
        if segment.try_release() {
            self.give_back(&segment);
        } else {
            self.totals().quarantined += segment.bytes();
            self.fault(Fault::Quarantined { holders: segment.holders(), segment: segment.clone() });
            structure.quarantine.push(segment);
        }
    }

    /// Releases a segment to its source. A failure is recorded as a fault.
    fn give_back(&self, segment: &Segment) {
        self.count(|calls| calls.release += 1);
        self.count_out(segment.pool(), segment.bytes());
        if let Err(error) = segment.source().release(&segment.memory()) {
            let message = super::error::chain(&error);
            self.fault(Fault::ReleaseFailed { segment: segment.clone(), message });
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // The last reference may be dropped inside a tracker, where `lock_structure` returns `None`. The lock is free
        // even then, because nobody else refers to this registry.
        if let Some(mut structure) = self.structure.try_lock() {
            self.reap(&mut structure);
        }
    }
}

/// Locks a mutex, even if a thread has panicked while it held the lock.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

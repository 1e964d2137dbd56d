//! The registry: state below the pools that all pools and streams of an allocator share. The source and the streams,
//! live segments, trackers and their entries, limits, totals and faults.
//!
//! Structure (segments and trackers) changes only under the structure lock. That lock is held while the source and
//! trackers are called; a stream cache's lock never is.

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

/// Number of faults that are kept.
const FAULTS: usize = 1 << 10;

#[derive(Debug)]
pub(super) struct Registry {
    pub(super) source: Arc<dyn SegmentSource>,
    pub(super) events: Arc<dyn StreamEvents>,
    pub(super) settings: Settings,
    pub(super) structure: Ranked<Structure>,
    /// Number of the last structural entry.
    generation: AtomicU64,
    /// Streams that carry collectives, and those whose capture was announced.
    marks: StreamMarks,
    faults: Mutex<VecDeque<Fault>>,
    pub(super) deferred: Mutex<Vec<DeferredRelease>>,
    /// The limit on all segments in bytes; `u64::MAX`: no limit.
    pub(super) limit: AtomicU64,
    /// The part of the limit above which garbage is collected, in millionths; `u32::MAX`: never.
    pub(super) collect: AtomicU32,
    /// Segments whose creation trackers have seen, but not their removal, by address.
    live: Mutex<BTreeMap<u64, Segment>>,
    /// Segments' statistics; those of blocks are with the stream caches.
    totals: Mutex<Stats>,
    /// Bytes in segments of each pool that is in use.
    reserved: Mutex<HashMap<PoolId, Gauge>>,
    pub(super) born: Instant,
    /// The same moment as wall-clock time.
    pub(super) began: SystemTime,
}

/// State that changes under the structure lock only.
#[derive(Debug)]
pub(super) struct Structure {
    pub(super) trackers: Slots,
    pub(super) ring: VecDeque<Entry>,
    last_time: u64,
    next_segment: u64,
    next_pool: u32,
    pub(super) quarantine: Vec<Segment>,
}

impl Structure {
    /// The number of a new pool.
    pub(super) fn pool_id(&mut self) -> PoolId {
        let id = PoolId(self.next_pool);
        self.next_pool += 1;
        id
    }

    /// The number of a new segment.
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

    /// The threshold in reserved bytes above which idle segments are collected.
    pub(super) fn collect_above(&self) -> Option<u64> {
        let part = Fraction::from_millionths(self.collect.load(Ordering::Relaxed))?;
        self.limit().map(|limit| part.of(limit))
    }

    /// Bytes that segments may still grow by under the limit.
    pub(super) fn room(&self) -> u64 {
        self.limit.load(Ordering::Relaxed).saturating_sub(self.totals().reserved.current)
    }

    pub(super) fn totals(&self) -> MutexGuard<'_, Stats> {
        locked(&self.totals)
    }

    /// Bytes in segments of a pool.
    pub(super) fn pool_reserved(&self, pool: PoolId) -> Gauge {
        locked(&self.reserved).get(&pool).copied().unwrap_or_default()
    }

    /// Changes the gauge of a pool's bytes in segments.
    pub(super) fn change_pool_reserved(&self, pool: PoolId, change: impl FnOnce(&mut Gauge)) {
        change(locked(&self.reserved).entry(pool).or_default());
    }

    /// Removes the gauge of a pool that is dropped.
    pub(super) fn forget_pool(&self, pool: PoolId) {
        locked(&self.reserved).remove(&pool);
    }

    /// The live segment that contains an address.
    pub(super) fn segment_at(&self, address: u64) -> Option<Segment> {
        let live = locked(&self.live);
        let (_, segment) = live.range(..=address).next_back()?;
        (address < segment.memory().end()).then(|| segment.clone())
    }

    /// The live segments, by address.
    pub(super) fn live_segments(&self) -> Vec<Segment> {
        locked(&self.live).values().cloned().collect()
    }

    /// Counts `number` new segments with `bytes` together.
    pub(super) fn count_in(&self, pool: PoolId, number: u64, bytes: u64) {
        let mut totals = self.totals();
        totals.reserved.add(bytes);
        totals.segments.add(number);
        drop(totals);
        self.change_pool_reserved(pool, |reserved| reserved.add(bytes));
    }

    /// Counts a segment as released.
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

    /// Counts calls of sources.
    pub(super) fn count(&self, add: impl FnOnce(&mut SourceCalls)) {
        add(&mut self.totals().calls);
    }

    /// Takes the structure lock. Returns `None` inside a tracker, which would deadlock.
    pub(super) fn lock_structure(&self) -> Option<Guard<'_, Structure>> {
        (!tracker::inside()).then(|| self.structure.lock())
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

    /// Trackers that want block entries.
    pub(super) fn block_trackers(structure: &Structure) -> Slots {
        structure.trackers.iter().filter(|slot| slot.wants_blocks()).cloned().collect()
    }

    /// Delivers entries to trackers and records their failures as faults.
    pub(super) fn tell(&self, slots: &[Arc<Slot>], entries: &[Entry]) {
        if !entries.is_empty() {
            slots.iter().filter_map(|slot| slot.deliver(entries)).for_each(|fault| self.fault(fault));
        }
    }

    /// Numbers a structural entry, keeps it and delivers it.
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

    /// Notifies trackers that a segment is removed, and releases it unless it is held. No block of it is
    /// used, no work on it is left, and no cache has it.
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
        // The last handle may be dropped inside a tracker. The lock is free even then, since no other handle
        // is left.
        if let Some(mut structure) = self.structure.try_lock() {
            self.reap(&mut structure);
        }
    }
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

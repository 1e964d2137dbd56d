//! The registry: the state that all pools and streams of an allocator share. It has the source of segments, the
//! [`StreamEvents`], the live segments, the trackers, the structural trace entries (all except those about blocks), the
//! limits, the totals and the faults.
//!
//! The set of segments and the set of trackers change only under the structure lock. The lock is held while the
//! source allocates or releases memory, but not while a tracker is called. In neither case does the thread hold a
//! lock that a hit takes. A *hit* is a request that the free memory of its stream's cache serves.

mod captured;
mod deferred;
mod ordering;
mod structure;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, OnceLock, PoisonError, Weak};
use std::time::{Instant, SystemTime};

pub(super) use self::deferred::{DeferredBlock, DeferredRelease};
use self::ordering::StreamMarks;
use self::structure::{Progress, Turn};
pub(super) use self::structure::{Structure, StructureLock};
use super::entry::{Action, Entry};
use super::error::{Fault, chain};
use super::lock::{Rank, Ranked};
use super::rounding::Fraction;
use super::segment::{PoolId, Segment};
use super::settings::Settings;
use super::source::SegmentSource;
use super::stats::{Gauge, SourceCalls, Stats};
use super::stream::{CapturedUses, EventError, StreamEvents, StreamId};
use super::tracker::{Slot, Slots};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// Maximum number of faults to keep. The oldest ones are dropped.
const FAULTS: usize = 1 << 10;

#[derive(Debug)]
pub(super) struct Registry {
    pub(super) source: Arc<dyn SegmentSource>,
    pub(super) events: Arc<dyn StreamEvents>,
    pub(super) settings: Settings,
    me: Weak<Self>,
    /// The allocator and its pools, which may be dropped before the registry.
    engine: OnceLock<Weak<dyn CapturedUses>>,
    structure: Ranked<Structure>,
    /// The progress of deliveries to trackers, and of changes that have released the structure lock (see
    /// `structure`).
    progress: Progress,
    /// The number of the newest structural entry.
    generation: AtomicU64,
    /// Streams that carry collectives, and those whose capture was announced.
    marks: StreamMarks,
    faults: Mutex<VecDeque<Fault>>,
    /// Memory of dropped caches and pools, to be released later.
    pub(super) deferred: Mutex<Vec<DeferredRelease>>,
    /// The limit on the total length of all segments in bytes. `u64::MAX` means no limit.
    pub(super) limit: AtomicU64,
    /// The fraction of the limit, in millionths. While more than this fraction is reserved, idle segments are
    /// released before the allocator grows. `u32::MAX` means never.
    pub(super) collect: AtomicU32,
    /// The live segments, by address. A segment is live from the emission of its creation entry to that of its removal
    /// entry.
    live: Mutex<BTreeMap<u64, Segment>>,
    /// Statistics of segments, of calls to sources, and of requests that found no free block. The stream caches count
    /// the blocks.
    totals: Mutex<Stats>,
    /// For each pool in use, the total length of its segments in bytes.
    reserved: Mutex<HashMap<PoolId, Gauge>>,
    /// The creation time of the allocator.
    pub(super) born: Instant,
    /// The creation time as wall-clock time.
    pub(super) began: SystemTime,
}

/// Structural entries that are to be delivered to trackers.
#[derive(Debug)]
#[must_use = "the entries are to be delivered"]
pub(super) struct Notice {
    entries: Vec<Entry>,
    trackers: Slots,
    /// The place of the delivery in the order of deliveries. `None` if there are no trackers.
    turn: Option<Turn>,
}

impl Registry {
    pub(super) fn new(
        source: Arc<dyn SegmentSource>,
        events: Arc<dyn StreamEvents>,
        settings: Settings,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            engine: OnceLock::new(),
            limit: AtomicU64::new(settings.memory_limit.unwrap_or(u64::MAX)),
            collect: AtomicU32::new(settings.collect_above.map_or(u32::MAX, Fraction::millionths)),
            totals: Mutex::default(),
            source,
            events,
            settings,
            structure: Ranked::new(Rank::Structure, Structure::default()),
            progress: Progress::default(),
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

    /// Returns the number of reserved bytes above which idle segments are released before the allocator grows.
    /// Returns `None` if they are never released for that reason: there is no limit, or no threshold.
    pub(super) fn collect_above(&self) -> Option<u64> {
        let part = Fraction::from_millionths(self.collect.load(Ordering::Relaxed))?;
        self.limit().map(|limit| part.of(limit))
    }

    /// Returns the number of bytes that may still be reserved under the limit. Without a limit, it is `u64::MAX` less
    /// the reserved bytes.
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

    /// Returns the address of the first live segment that begins after an address.
    pub(super) fn segment_after(&self, address: u64) -> Option<u64> {
        locked(&self.live).range(address.saturating_add(1)..).next().map(|(begin, _)| *begin)
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

    /// Counts the release of one segment of the pool, with a length of `bytes`.
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

    /// Records a fault. Drops the oldest one if there are too many.
    pub(super) fn fault(&self, fault: Fault) {
        let mut faults = locked(&self.faults);
        if faults.len() == FAULTS {
            faults.pop_front();
        }
        faults.push_back(fault);
    }

    /// Records that a segment could not be released because a wait for its uses failed. Each release is tried again, so
    /// the fault is recorded only once for a segment.
    pub(super) fn strand(&self, segment: &Segment, error: &EventError) {
        let is_it = |fault: &Fault| matches!(fault, Fault::Stranded { segment: other, .. } if other.id() == segment.id());
        if !locked(&self.faults).iter().any(is_it) {
            self.fault(Fault::Stranded { segment: segment.clone(), message: chain(error) });
        }
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

    /// Makes a structural entry for each action, with the next numbers, and keeps the entries for snapshots. The
    /// caller delivers the returned notice.
    pub(super) fn note(
        &self,
        structure: &mut Structure,
        pool: PoolId,
        stream: StreamId,
        actions: impl IntoIterator<Item = Action>,
    ) -> Notice {
        let entries = actions.into_iter().map(|action| self.entry(structure, pool, stream, action)).collect();
        let trackers = structure.trackers.clone();
        let turn = (!trackers.is_empty()).then(|| structure.turn());
        Notice { entries, trackers, turn }
    }

    fn entry(&self, structure: &mut Structure, pool: PoolId, stream: StreamId, action: Action) -> Entry {
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
        entry
    }

    /// Delivers the entries of a notice to the trackers, after all earlier turns have ended. The caller must hold
    /// neither the structure lock nor a lock that a hit takes.
    pub(super) fn deliver(&self, notice: Notice) {
        let Notice { entries, trackers, turn: Some(turn) } = notice else { return };
        self.in_turn(turn, || {
            entries.iter().for_each(|entry| self.tell(&trackers, std::slice::from_ref(entry)))
        });
    }

    /// Makes structural entries, and delivers them without the structure lock. Returns the time of the last one in
    /// nanoseconds since the allocator was created.
    pub(super) fn emit(
        &self,
        structure: &mut StructureLock<'_>,
        pool: PoolId,
        stream: StreamId,
        actions: impl IntoIterator<Item = Action>,
    ) -> u64 {
        let notice = self.note(structure, pool, stream, actions);
        let time_ns = structure.last_time;
        if notice.turn.is_some() {
            structure.unlocked(|| self.deliver(notice));
        }
        time_ns
    }

    /// Notifies trackers that a segment is removed. Then releases it to its source, or quarantines it if a
    /// [`Hold`](super::Hold) keeps it. The segment must have no blocks and be in no cache, and its uses must have
    /// ended.
    pub(super) fn remove_segment(&self, structure: &mut StructureLock<'_>, segment: Segment) {
        self.emit(structure, segment.pool(), segment.stream(), [Action::SegmentFree(segment.clone())]);
        if segment.try_release() {
            self.give_back(structure, &segment);
        } else {
            self.totals().quarantined += segment.bytes();
            self.fault(Fault::Quarantined { holders: segment.holders(), segment: segment.clone() });
            structure.quarantine.push(segment);
        }
    }

    /// Releases a segment to its source. A failure is recorded as a fault.
    fn give_back(&self, structure: &mut StructureLock<'_>, segment: &Segment) {
        structure.count_released(segment.bytes());
        self.count(|calls| calls.release += 1);
        self.count_out(segment.pool(), segment.bytes());
        if let Err(error) = segment.source().release(&segment.memory()) {
            self.fault(Fault::ReleaseFailed { segment: segment.clone(), message: chain(&error) });
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // The last reference may be dropped inside a tracker of another allocator. The lock may be taken even there:
        // nothing else refers to this registry, so the lock is free. No tracker is attached to it, so nothing is
        // delivered.
        if let Some(mut structure) = self.try_structure() {
            self.reap(&mut structure);
        }
    }
}

/// Locks a mutex, even if a thread has panicked while it held the lock.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

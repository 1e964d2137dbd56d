//! Snapshots, attaching and detaching of trackers, and the answer to readers that poll for structural entries.
//!
//! Structural entries are all trace entries except those about blocks (see [`Entry`]). They are made under the
//! structure lock, and a snapshot is too. So each structural entry is either contained in the snapshot or comes after
//! it. A cache is copied piece by piece, so a request on another thread waits for the copy of one piece at most.

use std::collections::HashSet;
use std::iter::Peekable;
use std::sync::Arc;
use std::vec;

use super::Engine;
use crate::core::block_meta::InUse;
use crate::core::entry::Entry;
use crate::core::error::TrackError;
use crate::core::pool_core::PoolCore;
use crate::core::registry::{DeferredRelease, Registry, Structure, locked};
use crate::core::ring::{Batch, Origin};
use crate::core::segment::Segment;
use crate::core::size::bytes_of;
use crate::core::snapshot::{BlockState, MappedState, SegmentState, Snapshot, Usage};
use crate::core::stream_cache::{CacheCopy, CacheState, StreamCache};
use crate::core::tracker::{self, Filter, Slot, Slots, Tracker};
use crate::sync::atomic::Ordering;

/// The structural entries since a reader's last one; see [`Allocator::since`](crate::core::Allocator::since).
#[derive(Debug, Clone)]
pub enum Since {
    /// Every structural entry after the given generation, in order.
    Entries(Vec<Entry>),
    /// The current state, without a trace, because some of the entries are no longer kept, or because the given
    /// generation is in the future. Continue from the snapshot's generation.
    TooOld(Box<Snapshot>),
}

impl Engine {
    /// Returns the state of all pools, like [`capture`](Self::capture), but without a trace.
    pub(in crate::core) fn capture_without_trace(&self, structure: &Structure) -> Snapshot {
        let mut states = States::default();
        self.pools().iter().for_each(|pool| states.capture(pool, false, |_, _| {}));
        self.assemble(structure, states)
    }

    /// Returns the state of all pools, with the trace of recent entries. Each cache is captured as of one moment.
    pub(in crate::core) fn capture(&self, structure: &Structure) -> Snapshot {
        let mut states = States { trace: structure.ring.iter().cloned().collect(), ..States::default() };
        self.pools().iter().for_each(|pool| states.capture(pool, true, |_, _| {}));
        self.assemble(structure, states)
    }

    /// Makes the snapshot from the state of pools. Adds the live segments that are in no cache.
    fn assemble(&self, structure: &Structure, states: States) -> Snapshot {
        let States { mut segments, mut mapped, mut trace } = states;
        segments.extend(locked(&self.registry.deferred).iter().flat_map(DeferredRelease::capture));
        // A live segment is neither in a cache nor in `deferred` while its cache is being dropped, or while another
        // thread, which is calling trackers, adds, moves or removes the segment. Such a segment is added as one free
        // block.
        let mapped_ids = mapped.iter().flat_map(|range| &range.segments).map(Segment::id);
        let shown: HashSet<_> = segments.iter().map(|state| state.segment.id()).chain(mapped_ids).collect();
        let live = self.registry.live_segments();
        let left = live.iter().filter(|segment| !shown.contains(&segment.id()));
        let re_mappable: HashSet<_> =
            self.pools().iter().filter(|pool| pool.info.arena.is_some()).map(|pool| pool.info.id).collect();
        for segment in left {
            let SegmentState { segment, blocks } = SegmentState::whole(segment, Usage::Inactive);
            if re_mappable.contains(&segment.pool()) {
                mapped.push(MappedState { segments: vec![segment], blocks });
            } else {
                segments.push(SegmentState { segment, blocks });
            }
        }
        segments.sort_by_key(|state| state.segment.address());
        mapped.sort_by_key(|range| range.segments[0].address());
        // The sort is stable: entries of equal time keep their order, structural entries first.
        trace.sort_by_key(|entry| entry.time_ns);
        Snapshot {
            generation: self.registry.generation(),
            began: self.registry.began,
            time_ns: self.registry.now(),
            device: self.registry.ordinal(),
            segments,
            mapped,
            quarantined: structure.quarantine.clone(),
            trace,
            settings: self.registry.settings.clone(),
        }
    }

    /// Attaches a tracker. It gets a snapshot of the current state, and then every later entry that passes `filter`.
    pub(in crate::core) fn attach(
        &self,
        tracker: Arc<dyn Tracker>,
        filter: Filter,
    ) -> Result<Arc<Slot>, TrackError> {
        if tracker::inside() {
            return Err(TrackError::Reentrant { operation: "attaching a tracker" });
        }
        let slot = Arc::new(Slot::new(tracker, filter.of_device(self.registry.ordinal())));
        let register = |structure: &mut Structure, _: &[Arc<StreamCache>]| {
            let others = structure.trackers.iter().filter(|slot| slot.attached.load(Ordering::Acquire));
            structure.trackers = others.cloned().chain([slot.clone()]).collect();
            let for_blocks = Registry::block_trackers(structure);
            let (mut states, mut before) = (States::default(), Vec::new());
            for pool in self.pools() {
                states.capture(&pool, false, |cache, state| {
                    before.push((cache.origin(), StreamCache::resubscribe(state, &for_blocks)));
                });
            }
            // Structural entries that are made after this turn is taken have later turns. So they are delivered after
            // the snapshot.
            (before, self.assemble(structure, states), structure.turn())
        };
        let greeted = self.without_block_entries(register, |(before, snapshot, turn)| {
            self.tell_batches(before);
            self.registry.in_turn(turn, || {
                slot.greet(&snapshot)?;
                slot.deliver_early().into_iter().for_each(|fault| self.registry.fault(fault));
                Ok(())
            })
        });
        if let Err(error) = greeted {
            slot.detach();
            self.sweep();
            slot.wait_until_idle();
            return Err(error);
        }
        Ok(slot)
    }

    /// Calls `change` under the structure lock, and then `deliver` with its result, without that lock. `change` gets
    /// all caches. Meanwhile, no block entry of these caches is delivered, except by `deliver`. Entries of dropped
    /// caches, and of caches that are created after `change`, may be delivered while `deliver` runs.
    fn without_block_entries<T, R>(
        &self,
        change: impl FnOnce(&mut Structure, &[Arc<StreamCache>]) -> T,
        deliver: impl FnOnce(T) -> R,
    ) -> R {
        let _attaching = self.attachments.lock();
        loop {
            let caches = self.caches();
            let locked: HashSet<_> = caches.iter().map(Arc::as_ptr).collect();
            let _deliveries: Vec<_> = caches.iter().map(|cache| cache.delivery.lock()).collect();
            let mut structure = self.registry.structure();
            // Before the structure lock was taken, another thread may have added a cache.
            if self.caches().iter().all(|cache| locked.contains(&Arc::as_ptr(cache))) {
                let changed = change(&mut structure, &caches);
                drop(structure);
                return deliver(changed);
            }
        }
    }

    /// Delivers all block entries that are not delivered yet, including those of dropped caches.
    pub(in crate::core) fn flush(&self) {
        for cache in self.caches() {
            cache.settle_entries();
        }
        let left = self.registry.take_deferred_entries(&mut self.registry.structure());
        self.registry.deliver_deferred(left);
    }

    /// Delivers all earlier entries to a tracker, and removes it.
    pub(in crate::core) fn detach(&self, slot: &Slot) -> Result<(), TrackError> {
        if tracker::inside() {
            // No delivery that begins after this calls the tracker. The next attach or detach removes the slot.
            slot.detach();
            return Err(TrackError::Reentrant { operation: "detaching a tracker" });
        }
        self.flush();
        let turn = self.registry.structure().turn();
        self.registry.in_turn(turn, || slot.detach());
        self.sweep();
        slot.wait_until_idle();
        Ok(())
    }

    /// Removes the slots of detached trackers.
    fn sweep(&self) {
        let remove = |structure: &mut Structure, caches: &[Arc<StreamCache>]| {
            let attached = structure.trackers.iter().filter(|slot| slot.attached.load(Ordering::Acquire));
            structure.trackers = attached.cloned().collect();
            let for_blocks = Registry::block_trackers(structure);
            let rest = |cache: &Arc<StreamCache>| {
                (cache.origin(), StreamCache::resubscribe(&mut cache.state.lock(), &for_blocks))
            };
            caches.iter().map(rest).collect()
        };
        self.without_block_entries(remove, |rest| self.tell_batches(rest));
    }

    /// Delivers the entries of several caches to their trackers.
    fn tell_batches(&self, batches: Vec<(Origin, (Slots, Batch))>) {
        let mut entries = Vec::new();
        for (origin, (slots, batch)) in batches {
            entries.clear();
            batch.expand(origin, &mut entries);
            self.registry.tell(&slots, &entries);
        }
    }
}

/// The parts of a snapshot that come from pools. Each cache is captured as of one moment.
#[derive(Default)]
struct States {
    segments: Vec<SegmentState>,
    mapped: Vec<MappedState>,
    trace: Vec<Entry>,
}

impl States {
    /// Adds the state of a pool. The caller holds the structure lock, so no memory moves between streams meanwhile.
    /// Calls `look` once for each cache, with the cache's state locked. The snapshot shows the cache as it is at that
    /// moment, although it is copied piece by piece afterwards.
    fn capture(
        &mut self,
        pool: &PoolCore,
        with_trace: bool,
        mut look: impl FnMut(&StreamCache, &mut CacheState),
    ) {
        let mut shared = Vec::new();
        for cache in pool.caches() {
            let CacheCopy { segments, mut blocks, entries } =
                cache.copy(with_trace, |state| look(&cache, state));
            entries.expand(cache.origin(), &mut self.trace);
            if pool.info.arena.is_some() {
                shared.append(&mut blocks);
                continue;
            }
            let mut views = BlockViews::new(blocks);
            let mut segments = segments;
            segments.sort_unstable_by_key(Segment::address);
            self.segments.extend(segments.into_iter().map(|segment| {
                let blocks = views.over(segment.address(), segment.memory().end());
                SegmentState { segment, blocks }
            }));
        }
        let mut views = BlockViews::new(shared);
        let pages = pool.pages();
        for run in pages.chunk_by(|left, right| left.memory().end() == right.address()) {
            let end = run.last().map_or(0, |page| page.memory().end());
            let blocks = views.over(run[0].address(), end);
            self.mapped.push(MappedState { segments: run.to_vec(), blocks });
        }
    }
}

/// The blocks of some memory that are handed out or pending, in order of address. Memory between them is free.
struct BlockViews(Peekable<vec::IntoIter<InUse>>);

impl BlockViews {
    fn new(mut blocks: Vec<InUse>) -> Self {
        blocks.sort_unstable_by_key(|block| block.address);
        Self(blocks.into_iter().peekable())
    }

    /// Returns the blocks, used and free, that together cover the addresses from `begin` to `end`. Must be called for
    /// ranges in ascending order.
    fn over(&mut self, begin: u64, end: u64) -> Vec<BlockState> {
        let mut views = Vec::new();
        let mut at = begin;
        while let Some(block) = self.0.next_if(|block| block.address < end) {
            let InUse { address, units, requested, is_pending, info } = block;
            if at < address {
                views.push(BlockState::free(at, address - at));
            }
            let usage = if is_pending { Usage::PendingFree } else { Usage::Active };
            let bytes = bytes_of(units);
            views.push(BlockState { address, bytes, requested, usage, request: Some(info) });
            at = address + bytes;
        }
        if at < end {
            views.push(BlockState::free(at, end - at));
        }
        views
    }
}

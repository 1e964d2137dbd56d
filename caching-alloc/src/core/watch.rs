//! Watching a device: snapshots, attaching and detaching of trackers, and late readers of its structure.
//!
//! All of it runs under the growth lock, so a snapshot and the entries after it fit together exactly. A shard
//! is copied piece by piece, so a hit waits for one piece at most.

use std::collections::HashSet;
use std::iter::Peekable;
use std::sync::Arc;
use std::vec;

use super::allocator::Allocator;
use super::device::{Device, Grave, Growth, locked};
use super::entry::Entry;
use super::error::TrackError;
use super::lease::InUse;
use super::pool::PoolCore;
use super::ring::{Batch, Origin};
use super::segment::Segment;
use super::shard::{Shard, ShardCopy, ShardState};
use super::size::bytes_of;
use super::snapshot::{BlockState, MappedState, SegmentState, Snapshot, Usage};
use super::sync::atomic::Ordering;
use super::tracker::{Filter, Slot, Slots, Tracker};

/// The structural changes that a reader has missed; see [`Allocator::since`].
#[derive(Debug, Clone)]
pub enum Since {
    /// Every structural entry after the given one, in order.
    Entries(Vec<Entry>),
    /// Some of them are no longer kept: the current state instead, without a trace. Continue from its
    /// generation.
    TooOld(Box<Snapshot>),
}

impl Allocator {
    /// Returns the structural entries after `generation`, each exactly once. That is the generation of a
    /// snapshot, or the number of the caller's last entry. A new reader begins with a snapshot or with 0.
    /// [`Settings::structural_entries`](super::Settings::structural_entries) are kept. A reader that is too
    /// late for them, or passes a future generation, gets a snapshot instead.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use caching_alloc::core::{Allocator, Settings, Since, StreamId};
    /// # use caching_alloc::host::{HostSource, HostStreams};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (source, streams) = (Arc::new(HostSource::new(1 << 30)), Arc::new(HostStreams::new()));
    /// # let allocator = Allocator::new(source, streams, Settings::default());
    /// let mut seen = allocator.snapshot()?.generation;
    /// let _block = allocator.allocate(1 << 20, StreamId(1))?;
    /// match allocator.since(seen)? {
    ///     Since::Entries(entries) => {
    ///         assert_eq!(entries.len(), 1); // the segment that was made for the block
    ///         seen = entries.last().map_or(seen, |entry| entry.number);
    ///     }
    ///     Since::TooOld(snapshot) => seen = snapshot.generation, // and begin anew with what is in it
    /// }
    /// assert_eq!(seen, allocator.generation());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`TrackError::Reentrant`] inside a tracker.
    pub fn since(&self, generation: u64) -> Result<Since, TrackError> {
        let device = self.shared();
        let growth = device.grow().ok_or(TrackError::Reentrant { operation: "reading entries" })?;
        let last = device.generation();
        let kept = last - growth.ring.len() as u64..=last;
        if !kept.contains(&generation) {
            return Ok(Since::TooOld(Box::new(device.state_of_now(&growth))));
        }
        let seen = usize::try_from(generation - kept.start()).unwrap_or(usize::MAX);
        Ok(Since::Entries(growth.ring.iter().skip(seen).cloned().collect()))
    }
}

impl Device {
    /// The current state of everything, without a trace.
    fn state_of_now(&self, growth: &Growth) -> Snapshot {
        let mut states = States::default();
        self.pools().iter().for_each(|pool| states.capture(pool, false, |_, _| {}));
        self.assemble(growth, states)
    }

    /// The current state of everything; each shard's as of one moment.
    pub(super) fn capture(&self, growth: &Growth) -> Snapshot {
        let mut states = States { trace: growth.ring.iter().cloned().collect(), ..States::default() };
        self.pools().iter().for_each(|pool| states.capture(pool, true, |_, _| {}));
        self.assemble(growth, states)
    }

    fn assemble(&self, growth: &Growth, states: States) -> Snapshot {
        let States { mut segments, mapped, mut trace } = states;
        segments.extend(locked(&self.graves).iter().flat_map(Grave::capture));
        // A segment that moves from a removed shard is briefly in no list, although trackers know it.
        let mapped_ids = mapped.iter().flat_map(|range| &range.segments).map(Segment::id);
        let shown: HashSet<_> = segments.iter().map(|state| state.segment.id()).chain(mapped_ids).collect();
        let left = growth.segments.values().filter(|segment| !shown.contains(&segment.id()));
        segments.extend(left.map(|segment| SegmentState::whole(segment, Usage::Inactive)));
        segments.sort_by_key(|state| state.segment.address());
        // The sort is stable: equal stamps keep their order, structural entries first.
        trace.sort_by_key(|entry| entry.time_ns);
        Snapshot {
            generation: self.generation(),
            began: self.began,
            time_ns: self.now(),
            device: self.ordinal(),
            segments,
            mapped,
            quarantined: growth.quarantine.clone(),
            trace,
            settings: self.settings.clone(),
        }
    }

    /// Attaches a tracker: it gets the current state, and every entry from now on.
    pub(super) fn attach(&self, tracker: Arc<dyn Tracker>, filter: Filter) -> Result<Arc<Slot>, TrackError> {
        let mut growth = self.grow().ok_or(TrackError::Reentrant { operation: "attaching a tracker" })?;
        let slot =
            Arc::new(Slot { tracker, filter: filter.of_device(self.ordinal()), attached: true.into() });
        let others = growth.trackers.iter().filter(|slot| slot.attached.load(Ordering::Acquire)).cloned();
        growth.trackers = others.chain([slot.clone()]).collect();
        let for_blocks = Self::block_trackers(&growth);
        let shards = self.shards();
        // All deliveries wait, so no block entry overtakes the snapshot.
        let turns: Vec<_> = shards.iter().map(|shard| shard.delivery.lock()).collect();
        let mut states = States::default();
        let mut before = Vec::new();
        for pool in self.pools() {
            states.capture(&pool, false, |shard, state| {
                before.push((shard.origin(), shard.resubscribe(state, &for_blocks)));
            });
        }
        for (origin, (slots, batch)) in before {
            self.tell_batch(&slots, &batch, origin);
        }
        let greeted = slot.greet(&self.assemble(&growth, states));
        drop(turns);
        if let Err(error) = greeted {
            slot.attached.store(false, Ordering::Release);
            self.sweep(&mut growth);
            return Err(error);
        }
        Ok(slot)
    }

    /// Delivers the waiting block entries, including those of removed shards.
    pub(super) fn flush(&self) {
        for shard in self.shards() {
            shard.settle_entries();
        }
        // A tracker may free the last block of a pool, so no lock that this takes is held.
        let last: Vec<_> = locked(&self.graves).iter_mut().map(Grave::take_entries).collect();
        for (slots, entries) in last {
            self.tell(&slots, &entries);
        }
    }

    /// Delivers all earlier entries to a tracker, and removes it.
    pub(super) fn detach(&self, slot: &Slot) -> Result<(), TrackError> {
        let Some(mut growth) = self.grow() else {
            // The slot is inactive; the next attach or detach removes it.
            slot.attached.store(false, Ordering::Release);
            return Err(TrackError::Reentrant { operation: "detaching a tracker" });
        };
        self.flush();
        slot.attached.store(false, Ordering::Release);
        self.sweep(&mut growth);
        Ok(())
    }

    /// Removes trackers that are detached.
    fn sweep(&self, growth: &mut Growth) {
        let attached = growth.trackers.iter().filter(|slot| slot.attached.load(Ordering::Acquire)).cloned();
        growth.trackers = attached.collect();
        let for_blocks = Self::block_trackers(growth);
        for shard in self.shards() {
            let mut turn = shard.delivery.lock();
            shard.flush(&mut turn);
            let (slots, rest) = {
                let mut state = shard.state.lock();
                shard.resubscribe(&mut state, &for_blocks)
            };
            self.tell_batch(&slots, &rest, shard.origin());
        }
    }

    fn tell_batch(&self, slots: &Slots, batch: &Batch, origin: Origin) {
        let mut entries = Vec::new();
        batch.expand(origin, &mut entries);
        self.tell(slots, &entries);
    }
}

/// The state of pools, each shard's at one moment.
#[derive(Default)]
struct States {
    segments: Vec<SegmentState>,
    mapped: Vec<MappedState>,
    trace: Vec<Entry>,
}

impl States {
    /// Adds a pool; `look` sees each of its shards at the moment of its copy. The caller holds the growth
    /// lock, so no memory moves between streams during one shard's copy or between two.
    fn capture(&mut self, pool: &PoolCore, with_trace: bool, mut look: impl FnMut(&Shard, &mut ShardState)) {
        let mut shared = Vec::new();
        for shard in pool.shards() {
            let ShardCopy { segments, mut blocks, entries } =
                shard.copy(with_trace, |state| look(&shard, state));
            entries.expand(shard.origin(), &mut self.trace);
            if pool.arena.is_some() {
                shared.append(&mut blocks);
                continue;
            }
            let mut tiles = Tiles::new(blocks);
            let mut segments = segments;
            segments.sort_unstable_by_key(Segment::address);
            self.segments.extend(segments.into_iter().map(|segment| {
                let blocks = tiles.over(segment.address(), segment.memory().end());
                SegmentState { segment, blocks }
            }));
        }
        let mut tiles = Tiles::new(shared);
        let pages = pool.pages();
        for run in pages.chunk_by(|left, right| left.memory().end() == right.address()) {
            let end = run.last().map_or(0, |page| page.memory().end());
            let blocks = tiles.over(run[0].address(), end);
            self.mapped.push(MappedState { segments: run.to_vec(), blocks });
        }
    }
}

/// Used blocks by address; everything between them is free.
struct Tiles(Peekable<vec::IntoIter<InUse>>);

impl Tiles {
    fn new(mut blocks: Vec<InUse>) -> Self {
        blocks.sort_unstable_by_key(|block| block.address);
        Self(blocks.into_iter().peekable())
    }

    /// The blocks that tile the addresses from `begin` to `end`. Must be called in ascending order.
    fn over(&mut self, begin: u64, end: u64) -> Vec<BlockState> {
        let mut tiles = Vec::new();
        let mut at = begin;
        while let Some(block) = self.0.next_if(|block| block.address < end) {
            let InUse { address, units, requested, is_pending, site } = block;
            if at < address {
                tiles.push(BlockState::free(at, address - at));
            }
            let usage = if is_pending { Usage::PendingFree } else { Usage::Active };
            let bytes = bytes_of(units);
            tiles.push(BlockState { address, bytes, requested, usage, call_site: Some(site) });
            at = address + bytes;
        }
        if at < end {
            tiles.push(BlockState::free(at, end - at));
        }
        tiles
    }
}

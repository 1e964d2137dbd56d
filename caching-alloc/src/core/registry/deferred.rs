//! Deferred release of the memory that a dropped stream cache or re-mappable pool leaves.

use std::collections::HashSet;
use std::sync::Arc;

use super::structure::{Structure, Turn};
use super::{Registry, StructureLock, locked};
use crate::core::entry::Entry;
use crate::core::error::{Fault, chain};
use crate::core::pending::Pending;
use crate::core::segment::{Segment, SegmentId};
use crate::core::snapshot::{SegmentState, Usage};
use crate::core::source::SegmentSource;
use crate::core::stream::{EventId, StreamId};
use crate::core::tracker::{self, Slots};

/// The memory and the entries that a dropped stream cache or re-mappable pool leaves. The memory is released after its
/// last uses.
#[derive(Debug, Default)]
pub(in crate::core) struct DeferredRelease {
    /// The streams whose work may still use the memory.
    pub(in crate::core) streams: Vec<StreamId>,
    pub(in crate::core) segments: Vec<Segment>,
    /// Blocks that other streams or graphs may still use.
    pub(in crate::core) pending: Vec<DeferredBlock>,
    /// Block entries that are not delivered yet.
    pub(in crate::core) entries: Vec<Entry>,
    /// The trackers that receive these entries.
    pub(in crate::core) slots: Slots,
    /// Old addresses of moved pages, as (address, bytes). The pages are still mapped there too.
    pub(in crate::core) old: Vec<(u64, u64)>,
    /// Events that mark the last uses of the old addresses.
    pub(in crate::core) events: Vec<EventId>,
    /// The address ranges of a re-mappable pool, as (base, bytes).
    pub(in crate::core) ranges: Vec<(u64, u64)>,
    /// The source of these ranges.
    pub(in crate::core) source: Option<Arc<dyn SegmentSource>>,
}

/// A pending block of a dropped stream cache or re-mappable pool.
#[derive(Debug)]
pub(in crate::core) struct DeferredBlock {
    pub(in crate::core) pending: Pending,
    /// The segments that contain the block.
    pub(in crate::core) segments: Vec<Segment>,
}

impl DeferredRelease {
    /// Returns the segments for a snapshot, each shown as one block. The block is shown as [`Usage::PendingFree`] while
    /// a block of the segment is pending.
    pub(in crate::core) fn capture(&self) -> impl Iterator<Item = SegmentState> {
        let pending = self.pending_segments();
        self.segments.iter().map(move |segment| {
            let is_pending = pending.contains(&segment.id());
            SegmentState::whole(segment, if is_pending { Usage::PendingFree } else { Usage::Inactive })
        })
    }

    /// Returns the segments that contain pending blocks.
    fn pending_segments(&self) -> HashSet<SegmentId> {
        self.pending.iter().flat_map(|block| &block.segments).map(Segment::id).collect()
    }

    /// Takes the undelivered entries out, and returns them with the trackers that receive them. Returns `None` if
    /// there are none.
    fn take_entries(&mut self) -> Option<(Slots, Vec<Entry>)> {
        (!self.entries.is_empty()).then(|| (self.slots.clone(), std::mem::take(&mut self.entries)))
    }
}

/// Undelivered block entries of dropped caches, with the trackers that receive them.
#[derive(Debug)]
#[must_use = "later deliveries wait for it"]
pub(in crate::core) struct DeferredEntries {
    batches: Vec<(Slots, Vec<Entry>)>,
    /// `None` if there are no entries.
    turn: Option<Turn>,
}

impl Registry {
    /// Takes over the memory and the entries of a dropped stream cache or re-mappable pool. Calls [`reap`](Self::reap)
    /// at once if the structure lock is free and this thread is not inside a tracker.
    pub(in crate::core) fn defer_release(&self, left: DeferredRelease) {
        if left.segments.is_empty() && left.entries.is_empty() && left.ranges.is_empty() {
            return;
        }
        locked(&self.deferred).push(left);
        // If the lock is taken, or this thread is inside a tracker, the next call of `reap` releases the memory. A miss
        // or a trim calls it, for example.
        if !tracker::inside()
            && let Some(mut structure) = self.try_structure()
        {
            self.reap(&mut structure);
        }
    }

    /// Takes out the undelivered entries of dropped caches, and takes a turn for their delivery. A later detachment of
    /// a tracker waits for this turn, so the tracker still gets the entries.
    pub(in crate::core) fn take_deferred_entries(&self, structure: &mut Structure) -> DeferredEntries {
        let mut deferred = locked(&self.deferred);
        let batches: Vec<_> = deferred.iter_mut().filter_map(DeferredRelease::take_entries).collect();
        let turn = (!batches.is_empty()).then(|| structure.turn());
        DeferredEntries { batches, turn }
    }

    /// Delivers entries of dropped caches, after all earlier turns have ended. The caller must hold neither the
    /// structure lock nor a lock that a hit takes. A *hit* is a request that the free memory of its stream's cache
    /// serves.
    pub(in crate::core) fn deliver_deferred(&self, left: DeferredEntries) {
        if let Some(turn) = left.turn {
            self.in_turn(turn, || left.batches.iter().for_each(|(slots, entries)| self.tell(slots, entries)));
        }
    }

    /// Delivers the entries of dropped caches. Then waits on the host for the uses of deferred memory, and releases it.
    /// Memory that captured streams use stays deferred. Also releases those quarantined segments that are no longer
    /// held. A segment is quarantined if it was held when it should have been released.
    pub(in crate::core) fn reap(&self, structure: &mut StructureLock<'_>) {
        let deferred = loop {
            let entries = self.take_deferred_entries(structure);
            if entries.turn.is_some() {
                structure.unlocked(|| self.deliver_deferred(entries));
            }
            // Other threads add to the list without the structure lock.
            let mut deferred = locked(&self.deferred);
            if deferred.iter().all(|left| left.entries.is_empty()) {
                break std::mem::take(&mut *deferred);
            }
        };
        for left in deferred {
            self.release_deferred(structure, left);
        }
        for segment in std::mem::take(&mut structure.quarantine) {
            if segment.try_release() {
                self.totals().quarantined -= segment.bytes();
                self.give_back(structure, &segment);
            } else {
                structure.quarantine.push(segment);
            }
        }
    }

    /// Waits on the host for the uses of deferred memory, and releases it. Defers a segment again while a graph uses a
    /// block of it, or if the wait for another use of a block fails. Defers all segments again if a stream of `left`
    /// [is captured](Self::is_captured), or if the wait for it fails. The entries are delivered already.
    fn release_deferred(&self, structure: &mut StructureLock<'_>, mut left: DeferredRelease) {
        left.pending.retain_mut(|DeferredBlock { pending, .. }| {
            pending.waits.retain(|wait| !self.wait_for(wait));
            pending.is_in_graph() || !pending.waits.is_empty()
        });
        let pending = left.pending_segments();
        // Without a segment to release, there is no reason to wait for the streams.
        let are_all_pending =
            !left.pending.is_empty() && left.segments.iter().all(|segment| pending.contains(&segment.id()));
        if are_all_pending || left.streams.iter().any(|stream| self.is_captured(*stream)) {
            locked(&self.deferred).push(left);
            return;
        }
        let used = if left.segments.is_empty() { &[] } else { &left.streams[..] };
        if let Err(error) = used.iter().try_for_each(|stream| self.drain_stream(*stream)) {
            left.segments.iter().for_each(|segment| self.strand(segment, &error));
            locked(&self.deferred).push(left);
            return;
        }
        self.unmap_old(&mut left);
        let segments = std::mem::take(&mut left.segments).into_iter();
        let (kept, released): (Vec<_>, Vec<_>) =
            segments.partition(|segment| pending.contains(&segment.id()));
        released.into_iter().for_each(|segment| self.remove_segment(structure, segment));
        if !left.pending.is_empty() {
            // The streams are waited for again: the graphs may be launched on them.
            locked(&self.deferred).push(DeferredRelease { segments: kept, ..left });
        } else if let Some(source) = left.source.as_ref().and_then(|source| source.as_pages()) {
            self.count(|calls| calls.unreserve += left.ranges.len() as u64);
            left.ranges.iter().for_each(|(base, bytes)| source.unreserve(*base, *bytes));
        }
    }

    /// Unmaps the old addresses of moved pages, and recycles their events. The caller ensures that no work uses these
    /// addresses any more.
    fn unmap_old(&self, left: &mut DeferredRelease) {
        let Some(source) = left.source.as_ref().and_then(|source| source.as_pages()) else { return };
        left.events.drain(..).for_each(|event| self.events.recycle(event));
        for (address, bytes) in left.old.drain(..) {
            self.count(|calls| calls.unmap += 1);
            if let Err(error) = source.unmap(address, bytes) {
                let pool = left.segments.first().map(Segment::pool).unwrap_or_default();
                self.fault(Fault::Unmapped { pool, message: chain(&error) });
            }
        }
    }
}

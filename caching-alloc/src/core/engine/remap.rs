//! Effects that serve a miss in a re-mappable pool. Such a pool consists of pages, which it can map at other
//! addresses. A miss is a request for which the stream's cache has no free block that fits.

use super::attempts::Extent;
use super::miss::Miss;
use crate::core::block::Block;
use crate::core::entry::Action;
use crate::core::error::{AllocError, Fault, chain};
use crate::core::lock::RankedSpinGuard;
use crate::core::pending::Wait;
use crate::core::registry::StructureLock;
use crate::core::remap::{Arena, ArenaList, Budget, Plan};
use crate::core::segment::{Segment, SegmentParts};
use crate::core::settings::Reuse;
use crate::core::size::{SizeClass, bytes_of};
use crate::core::source::{self, Cause, PageSource, SegmentMemory, SourceError};

/// Divisor for the slack, the memory that a pool may reserve beyond its peak use before idle pages are moved. The slack
/// is the peak divided by this (1.6 %), but at least the smallest page, or [`COSTLY_SLACK`] if moves are costly.
const SLACK_SHARE: u64 = 64;
/// The minimum slack, in bytes, of a pool in which moves of pages are costly (8 MiB).
const COSTLY_SLACK: u64 = 8 << 20;
/// Moves are costly if they have needed more than one call to the source per this many operations of the pool. The
/// operations are: to hand out a block, to free one, and to make a pending block free after its last use.
const OPERATIONS_PER_CALL: u64 = 80;

/// Divisor for the limit on the bytes in each stream's quick list, the cache of whole freed blocks. The limit is the
/// pool's peak use divided by this, or [`quick_list_bytes`](crate::core::Settings::quick_list_bytes) if that is less.
/// The limit is low because blocks in the list do not merge.
const QUICK_LIST_SHARE: u64 = 4096;

/// Bytes of addresses to reserve at a time, unless a block needs more.
const RANGE: u64 = 256 << 30;

/// A failure to map the pages of a [`Plan`].
struct MapFailure {
    error: SourceError,
    /// True if no page is left mapped at the plan's addresses.
    is_undone: bool,
}

impl Miss<'_> {
    /// In all streams of the pool, frees the pending blocks whose uses have ended, and merges cached blocks. Then
    /// allocates the block from this stream's free memory.
    pub(super) fn merge_all(self) -> Option<Block> {
        for cache in self.pool.caches() {
            cache.poll_pending();
            cache.merge();
        }
        self.hit_now()
    }

    /// Like [`hit`](Self::hit), but first advances the clock of the cache's trace ring. Otherwise the block's entry
    /// could have an earlier time than the page mapping, or the free on another stream, that supplied its memory.
    fn hit_now(self) -> Option<Block> {
        let now = self.registry().now();
        self.cache.state.lock().ring.renew(now);
        self.hit()
    }

    /// Allocates a block that may lie outside of the request's tier. A pool has two tiers of addresses: one for short
    /// blocks, and one for long blocks. First tries this stream's free memory in the other tier. Then tries the free
    /// memory of all streams in both tiers; see [`take_fragments`](Self::take_fragments).
    pub(super) fn other_tier(self) -> Option<Block> {
        self.hit_other_tier().or_else(|| self.take_fragments(false))
    }

    fn hit_other_tier(self) -> Option<Block> {
        let mut state = self.cache.state.lock();
        let id = state.reserve_elsewhere(self.request.units)?;
        Some(Block::hand_out(self.cache.state, &mut state, id, self.request, self.stream()))
    }

    /// Allocates a block from the shortest free span that is long enough: one free block, or several neighbouring ones.
    /// The blocks may be free memory of this stream, memory of [`Arena::SHARED_LIST`], which any stream may use, and,
    /// if the settings allow it, free memory of other streams. Before memory of other streams is taken, this stream is
    /// ordered after them. If that is impossible for one of them, its memory is skipped.
    ///
    /// With `same_tier`, uses only the tier of the request.
    pub(super) fn take_fragments(self, same_tier: bool) -> Option<Block> {
        // If the pool has one stream and the shared list is empty, all free memory is this stream's, and its free
        // neighbours are merged already. So there are none to combine.
        if self.pool.caches().len() == 1 && self.arena().is_list_empty(Arena::SHARED_LIST) {
            return None;
        }
        let mut refused: Vec<ArenaList> = Vec::new();
        loop {
            let allowed =
                |list| self.is_own_or_shared(list) || self.may_reuse_others() && !refused.contains(&list);
            let fragments = {
                let mut arena = self.arena();
                let tier = same_tier.then(|| arena.tier(self.request.units));
                arena.detach_fit(self.request.units, tier, &allowed)?
            };
            match self.order_after(fragments.iter().map(|fragment| fragment.list)) {
                Ok(()) => {
                    self.arena().give(&fragments, self.cache.list);
                    self.registry().totals().borrowed += 1;
                    return self.hit_now().or_else(|| self.hit_other_tier());
                }
                Err(list) => {
                    self.arena().restore(fragments);
                    refused.push(list);
                }
            }
        }
    }

    /// Maps idle or new pages at addresses where the block fits, and allocates the block there. `extent` limits the new
    /// pages. Returns `None` if there is not enough memory. In that case, sets `cause` to the cause of the source's error.
    pub(super) fn map_pages(
        self,
        structure: &mut StructureLock<'_>,
        extent: Extent,
        cause: &mut Option<Cause>,
    ) -> Result<Option<Block>, AllocError> {
        let request = self.request;
        let failed = |source| AllocError::Source { bytes: bytes_of(request.units), source };
        let Some(source) = self.info().source.as_pages() else { return Ok(None) };
        self.pool.retire_old_mappings(false);
        // Unmaps the old addresses of moved pages when they exceed the reserved memory. Otherwise the pool could run
        // out of addresses.
        let excess = {
            let reserved = self.info().reserved();
            self.arena().take_stale(reserved)
        };
        self.pool.unmap_stale(source, &excess);
        let capturing = self.registry().events.is_capturing(self.stream()).unwrap_or(true);
        let mut refused: Vec<ArenaList> = Vec::new();
        let mut available = u64::MAX;
        loop {
            // While this stream is being captured, the plan has new pages only. `order_after` refuses other streams
            // that are being captured.
            let allowed = |list| {
                !capturing
                    && (self.is_own_or_shared(list) || self.may_reuse_others() && !refused.contains(&list))
            };
            let reserved = self.info().reserved();
            let mut budget = self.budget(reserved, extent);
            budget.at_most = budget.at_most.min(available);
            let planned = self.arena().plan(request.units, &allowed, budget);
            let Some(plan) = planned else {
                if self.arena().has_room(request.units) {
                    return Ok(None);
                }
                self.add_range(source).map_err(failed)?;
                continue;
            };
            if !self.pool.unmap_stale(source, &plan.stale) {
                self.arena().abandon(plan, false);
                continue;
            }
            if let Err(list) = self.order_after(plan.lists()) {
                self.arena().abandon(plan, true);
                refused.push(list);
                continue;
            }
            match self.map(source, &plan) {
                Ok(mapped) => {
                    self.publish(structure, plan, mapped);
                    // The allocation finds no block only if another thread has taken the memory on this stream
                    // meanwhile.
                    if let Some(block) = self.hit_now().or_else(|| self.hit_other_tier()) {
                        return Ok(Some(block));
                    }
                }
                Err(MapFailure { error, is_undone }) => {
                    let wanted = plan.makes.iter().sum::<u64>();
                    self.arena().abandon(plan, is_undone);
                    match error {
                        // With this ceiling, later plans move idle pages before they request new memory.
                        SourceError::OutOfMemory { .. } if budget.freely > 0 => {
                            self.arena().ceiling = reserved;
                        }
                        // A plan for another place may need less new memory.
                        SourceError::OutOfMemory { .. } if budget.anywhere && wanted > 0 => {
                            available = wanted - 1
                        }
                        SourceError::OutOfMemory { source, .. } => {
                            *cause = source;
                            return Ok(None);
                        }
                        source => return Err(failed(source)),
                    }
                }
            }
        }
    }

    /// Returns the limits on the memory that the plan for a request may use. `reserved` is the pool's reserved memory
    /// in bytes. Also updates the pool's peak, and the limit of the stream's quick list.
    fn budget(self, reserved: u64, extent: Extent) -> Budget {
        let operations: u64 =
            self.pool.caches().iter().map(|cache| cache.state.lock().ring.operations()).sum();
        let (peak, slack, ceiling) = {
            let mut arena = self.arena();
            let peak = arena.note_active(self.request.units);
            let is_costly = arena.move_calls * OPERATIONS_PER_CALL > operations;
            let least = if is_costly { COSTLY_SLACK } else { arena.smallest_page() };
            (peak, least.max(peak / SLACK_SHARE), arena.ceiling)
        };
        self.cache.state.lock().limit_quick_list(peak / QUICK_LIST_SHARE);
        let room = self.registry().room();
        let uncollected = self
            .registry()
            .collect_above()
            .map_or(u64::MAX, |above| above.saturating_sub(self.registry().totals().reserved.current));
        let freely = ceiling.min(peak + slack).saturating_sub(reserved).min(room).min(uncollected);
        let at_most = match extent {
            Extent::Need => freely,
            Extent::All => room,
        };
        Budget { peak, freely, at_most, anywhere: extent == Extent::All }
    }

    /// Creates the plan's new pages. Maps the moved pages and, after them, the new ones at the plan's addresses, and
    /// gives the device access. Returns the mapped pages in order of address. After a failure, unmaps all pages from
    /// the plan's addresses and discards the new ones. If the unmapping fails too, [`is_undone`](MapFailure::is_undone)
    /// is false.
    fn map(self, source: &dyn PageSource, plan: &Plan) -> Result<Vec<SegmentMemory>, MapFailure> {
        let unmapped = |error| MapFailure { error, is_undone: true };
        let made = self.make_pages(source, &plan.makes).map_err(unmapped)?;
        let moved = plan.moves.iter().map(|page| (page.bytes(), page.memory().token));
        let mut address = plan.address;
        let mut mapped = Vec::new();
        let mut outcome = Ok(());
        for (bytes, token) in moved.chain(made.iter().copied()) {
            let memory = SegmentMemory { address, bytes, token };
            self.registry().count(|calls| calls.map += 1);
            outcome = source.map(&memory);
            if outcome.is_err() {
                break;
            }
            mapped.push(memory);
            address += bytes;
        }
        let enable = || {
            self.registry().count(|calls| calls.enable += 1);
            source.enable(plan.address, plan.bytes)
        };
        match outcome.and_then(|()| enable()) {
            Ok(()) => Ok(mapped),
            Err(error) => Err(MapFailure { error, is_undone: self.undo(source, &mapped, &made) }),
        }
    }

    /// Counts the plan's pages, notifies trackers of the addresses that pages leave and of the new mappings, and only
    /// then makes the memory available.
    fn publish(self, structure: &mut StructureLock<'_>, mut plan: Plan, mapped: Vec<SegmentMemory>) {
        let made = plan.makes.iter().sum();
        self.arena().move_calls += plan.move_calls();
        let old = std::mem::take(&mut plan.moves);
        {
            let mut totals = self.registry().totals();
            totals.source_allocations += plan.makes.len() as u64;
            totals.remapped += old.iter().map(Segment::bytes).sum::<u64>();
        }
        self.registry().count_in(self.info().id, plan.makes.len() as u64, made);
        let reserved = self.info().reserved();
        self.arena().remove_exceeded_ceiling(reserved);
        let pages: Vec<_> = mapped.into_iter().map(|memory| self.page(structure, memory)).collect();
        let left = old.into_iter().map(Action::SegmentUnmap);
        let actions = left.chain(pages.iter().cloned().map(Action::SegmentMap));
        self.registry().emit(structure, self.info().id, self.stream(), actions);
        // This stream is ordered after all streams that used the moved pages, so its own event covers their uses.
        let wait = (!plan.is_new())
            .then(|| Wait { stream: self.stream(), event: self.registry().mark(self.stream()) });
        self.arena().settle(plan, pages, self.cache.list, wait);
    }

    /// Returns the segment for a page that was mapped at `memory.address`.
    fn page(self, structure: &mut StructureLock<'_>, memory: SegmentMemory) -> Segment {
        Segment::new(SegmentParts {
            id: structure.segment_id(),
            device: self.registry().ordinal(),
            pool: self.info().id,
            stream: self.stream(),
            class: SizeClass::Large,
            memory,
            source: self.info().source.clone(),
        })
    }

    /// Creates pages of these sizes in bytes. Returns the size and the token of each. If one fails, discards the
    /// others.
    fn make_pages(self, source: &dyn PageSource, sizes: &[u64]) -> Result<Vec<(u64, u64)>, SourceError> {
        let mut made = Vec::new();
        for bytes in sizes {
            self.registry().count(|calls| calls.create += 1);
            match source.create(*bytes) {
                Ok(token) => made.push((*bytes, token)),
                Err(error) => {
                    self.undo(source, &[], &made);
                    return Err(error);
                }
            }
        }
        Ok(made)
    }

    /// Unmaps the pages `mapped`, and discards the pages `made`, after a failure. Returns true if no page is left
    /// mapped. Failures of these calls are recorded as faults.
    fn undo(self, source: &dyn PageSource, mapped: &[SegmentMemory], made: &[(u64, u64)]) -> bool {
        self.registry().count(|calls| {
            calls.unmap += u64::from(!mapped.is_empty());
            calls.discard += made.len() as u64;
        });
        let outcome = match mapped {
            [] => Ok(()),
            [first, ..] => source.unmap(first.address, mapped.iter().map(|memory| memory.bytes).sum()),
        };
        let is_unmapped = outcome.is_ok();
        let discarded = made.iter().map(|(bytes, token)| source.discard(*token, *bytes));
        for error in std::iter::once(outcome).chain(discarded).filter_map(Result::err) {
            self.registry().fault(Fault::Unmapped { pool: self.info().id, message: chain(&error) });
        }
        is_unmapped
    }

    /// Reserves another range of addresses, large enough for the block, for the tier of the request.
    fn add_range(self, source: &dyn PageSource) -> Result<(), SourceError> {
        let step = source::step(&*self.info().source);
        let bytes = RANGE.max(bytes_of(self.request.units).next_multiple_of(step));
        self.registry().count(|calls| calls.reserve += 1);
        let base = source.reserve(bytes)?;
        let mut arena = self.arena();
        let tier = arena.tier(self.request.units);
        arena.add_range(base, bytes, tier);
        Ok(())
    }

    fn arena(&self) -> RankedSpinGuard<'_, Arena> {
        self.info().arena_mut()
    }

    /// Returns true if this stream may use the memory of an arena list without being ordered after another stream.
    fn is_own_or_shared(self, list: ArenaList) -> bool {
        list == self.cache.list || list == Arena::SHARED_LIST
    }

    /// Returns true if the settings allow the use of memory that other streams have freed.
    fn may_reuse_others(self) -> bool {
        self.registry().settings.reuse >= Reuse::HostSeen
    }

    /// Orders this stream after the streams of these arena lists. If that is impossible for one of them, returns its
    /// list as the error.
    fn order_after(self, lists: impl IntoIterator<Item = ArenaList>) -> Result<(), ArenaList> {
        let wait = self.registry().settings.reuse >= Reuse::DeviceWait;
        let mut done = vec![self.cache.list, Arena::SHARED_LIST];
        for list in lists {
            if done.contains(&list) {
                continue;
            }
            let other = self.pool.caches().into_iter().find(|cache| cache.list == list).ok_or(list)?;
            if !self.registry().is_ordered_after(self.stream(), other.stream, wait) {
                return Err(list);
            }
            done.push(list);
        }
        Ok(())
    }
}

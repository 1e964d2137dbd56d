//! The attempts of a request in a re-mappable pool that finds no block on its stream, in order.
//!
//! 1. Complete pending blocks that the host can see ended, and merge cached blocks, in all streams of the
//!    pool.
//! 2. Take free neighbours that fit, of any streams, after ordering this stream behind those.
//! 3. Collect memory that other pools have had idle for long, if more is reserved than the settings allow.
//!    Map pages where the block fits: new ones while the pool is within its need, otherwise idle ones.
//! 4. Take free memory of the other tier, for blocks of another length.
//! 5. Map pages, new ones too; if there are not enough, in any hole, even beside blocks of another length.
//! 6. Borrow a block from a pool that lends to this one.
//! 7. Repeat this after releasing memory cached by other pools, and after waiting on the host for pending
//!    blocks.
//! 8. Report out of memory.

use super::arena::{Arena, Run, Tier};
use super::plan::{Budget, Plan};
use crate::core::block::Block;
use crate::core::device::Growth;
use crate::core::entry::Action;
use crate::core::error::{AllocError, Fault, chain};
use crate::core::heap::List;
use crate::core::pending::Wait;
use crate::core::pool::PoolCore;
use crate::core::segment::{Segment, SegmentParts, SizeClass};
use crate::core::settings::Reuse;
use crate::core::shard::{Request, Shard};
use crate::core::size::bytes_of;
use crate::core::source::{self, PageSource, SegmentMemory, SourceError};

/// A pool grows beyond its need by this part of its peak (1.5 %) before idle pages are moved, or by its smallest page.
const SLACK_SHARE: u64 = 64;
/// Or by this many bytes (8 MiB), where that is more and moving has cost too many calls.
const SLACK: u64 = 8 << 20;
/// Moving is too expensive if it has needed more than one call in this many operations.
const OPERATIONS_PER_CALL: u64 = 80;

/// Each stream caches blocks up to this part of the peak, for the next requests of the same lengths: cached
/// blocks cannot merge.
const KEPT_SHARE: u64 = 4096;

/// Bytes of addresses that are reserved at a time.
const RANGE: u64 = 256 << 30;

/// A plan that could not be carried out.
struct Unmade {
    error: SourceError,
    /// True if no page is left mapped at the plan's addresses.
    is_undone: bool,
}

/// The limit on a pool's growth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// A little beyond its need.
    Need,
    /// All available memory.
    All,
}

impl Shard {
    /// Returns `None` if the shard is retired.
    #[cold]
    pub(in crate::core) fn remap(&self, request: Request) -> Result<Option<Block>, AllocError> {
        self.refuse_frozen(request, bytes_of(request.units))?;
        if self.try_poll_pending() == Some(true)
            && let Some(block) = self.hit(request)
        {
            return Ok(Some(block));
        }
        let growth = &mut *self.device.growth.lock();
        if self.is_retired() {
            return Ok(None);
        }
        self.refuse_frozen(request, bytes_of(request.units))?;
        self.device.reap(growth);
        let tier = self.pool.arena_mut().tier(request.units);
        if let Some(block) = self.merged(request).or_else(|| self.out_of_others(request, Some(tier))) {
            return Ok(Some(block));
        }
        self.device.collect_garbage(growth);
        if let Some(block) = self.map_pages(growth, request, Extent::Need)? {
            return Ok(Some(block));
        }
        if let Some(block) = self.elsewhere(request) {
            return Ok(Some(block));
        }
        if let Some(block) = self.map_pages(growth, request, Extent::All)? {
            return Ok(Some(block));
        }
        if let Some(block) = self.borrow_from_pools(request) {
            return Ok(Some(block));
        }
        self.device.totals().retries += 1;
        self.until_nothing_moves(|| {
            for wait in [false, true] {
                if wait {
                    self.device.shards().iter().for_each(|shard| _ = shard.synchronize_pending());
                    let found = self.merged(request).or_else(|| self.elsewhere(request));
                    if found.is_some() {
                        return Ok(found);
                    }
                }
                self.device.release_cached(growth, u64::MAX, Some(self.pool.id));
                let found = self.map_pages(growth, request, Extent::All)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
            Ok(None)
        })?
        .map(Some)
        .ok_or_else(|| {
            let granularity = source::step(&*self.pool.source);
            self.out_of_memory(request, bytes_of(request.units).next_multiple_of(granularity))
        })
    }

    /// Allocates a block after all cached blocks are merged, in all streams of the pool.
    fn merged(&self, request: Request) -> Option<Block> {
        for shard in self.pool.shards() {
            shard.poll_pending();
            shard.merge();
        }
        self.hit_now(request)
    }

    /// A hit whose entry is stamped now, so it is not older than the page, or the other stream's free, that
    /// made it possible.
    fn hit_now(&self, request: Request) -> Option<Block> {
        let now = self.device.now();
        self.state.lock().ring.renew(now);
        self.hit(request)
    }

    /// Allocates a block from any free memory.
    fn elsewhere(&self, request: Request) -> Option<Block> {
        self.hit_elsewhere(request).or_else(|| self.out_of_others(request, None))
    }

    /// Allocates a block from memory of the other tier.
    fn hit_elsewhere(&self, request: Request) -> Option<Block> {
        let mut state = self.state.lock();
        let id = state.reserve_elsewhere(request.units)?;
        Some(self.state.hand_out(state, id, request, self.stream))
    }

    /// Allocates a block from free neighbours of several streams.
    fn out_of_others(&self, request: Request, tier: Option<Tier>) -> Option<Block> {
        // The free neighbours of a single stream are merged already.
        if self.pool.shards().len() == 1 && self.pool.arena_mut().is_list_empty(Arena::NOBODYS_LIST) {
            return None;
        }
        let mut refused: Vec<List> = Vec::new();
        loop {
            let allowed = |list| self.has(list) || self.may_use() && !refused.contains(&list);
            let pieces = self.pool.arena_mut().detach_fit(request.units, tier, &allowed)?;
            match self.order_after(pieces.iter().map(|piece| piece.stream)) {
                Ok(()) => {
                    self.pool.arena_mut().give(&pieces, self.list);
                    self.device.totals().borrowed += 1;
                    return self.hit_now(request).or_else(|| self.hit_elsewhere(request));
                }
                Err(list) => {
                    self.pool.arena_mut().restore(pieces);
                    refused.push(list);
                }
            }
        }
    }

    /// Maps pages where the block fits. `None`: there is not enough memory.
    fn map_pages(
        &self,
        growth: &mut Growth,
        request: Request,
        extent: Extent,
    ) -> Result<Option<Block>, AllocError> {
        let failed = |source| AllocError::Source { bytes: bytes_of(request.units), source };
        let Some(source) = self.pool.source.as_pages() else { return Ok(None) };
        self.pool.retire_ghosts(false);
        // Limits the memory that is mapped twice, so that addresses do not run out.
        let excess = {
            let reserved = self.pool.reserved().current;
            self.pool.arena_mut().take_stale(reserved)
        };
        self.pool.unmap_stale(source, &excess);
        let capturing = self.device.events.is_capturing(self.stream).unwrap_or(true);
        let mut refused: Vec<List> = Vec::new();
        let mut available = u64::MAX;
        loop {
            // No page moves while a stream involved is being captured.
            let allowed = |list| !capturing && (self.has(list) || self.may_use() && !refused.contains(&list));
            let reserved = self.pool.reserved().current;
            let mut budget = self.budget(request, reserved, extent);
            budget.at_most = budget.at_most.min(available);
            let planned = self.pool.arena_mut().plan(request.units, &allowed, budget);
            let Some(plan) = planned else {
                if self.pool.arena_mut().has_room(request.units) {
                    return Ok(None);
                }
                self.add_range(source, request).map_err(failed)?;
                continue;
            };
            if !self.pool.unmap_stale(source, &plan.stale) {
                self.pool.arena_mut().abandon(plan, false);
                continue;
            }
            if let Err(list) = self.order_after(plan.lists()) {
                self.pool.arena_mut().abandon(plan, true);
                refused.push(list);
                continue;
            }
            match self.map(source, &plan) {
                Ok(mapped) => {
                    self.publish(growth, plan, mapped);
                    // Fails only if another thread has taken the memory on this stream meanwhile.
                    if let Some(block) = self.hit_now(request).or_else(|| self.hit_elsewhere(request)) {
                        return Ok(Some(block));
                    }
                }
                Err(Unmade { error, is_undone }) => {
                    let wanted = plan.makes.iter().sum::<u64>();
                    self.pool.arena_mut().abandon(plan, is_undone);
                    match error {
                        // From now on plans move idle pages before they request new memory.
                        SourceError::OutOfMemory { .. } if budget.freely > 0 => {
                            self.pool.arena_mut().ceiling = reserved;
                        }
                        // Another place may need less memory.
                        SourceError::OutOfMemory { .. } if budget.anywhere && wanted > 0 => {
                            available = wanted - 1
                        }
                        SourceError::OutOfMemory { .. } => return Ok(None),
                        source => return Err(failed(source)),
                    }
                }
            }
        }
    }

    /// The memory that a request may use.
    fn budget(&self, request: Request, reserved: u64, extent: Extent) -> Budget {
        let operations: u64 =
            self.pool.shards().iter().map(|shard| shard.state.lock().ring.operations()).sum();
        let (peak, slack, ceiling) = {
            let mut arena = self.pool.arena_mut();
            let peak = arena.note_active(request.units);
            let is_costly = arena.move_calls * OPERATIONS_PER_CALL > operations;
            let least = if is_costly { SLACK } else { arena.smallest_page() };
            (peak, least.max(peak / SLACK_SHARE), arena.ceiling)
        };
        self.state.lock().limit_kept(peak / KEPT_SHARE);
        let room = self.device.room();
        let uncollected = self
            .device
            .collect_above()
            .map_or(u64::MAX, |above| above.saturating_sub(self.device.totals().reserved.current));
        let freely = ceiling.min(peak + slack).saturating_sub(reserved).min(room).min(uncollected);
        let at_most = match extent {
            Extent::Need => freely,
            Extent::All => room,
        };
        Budget { peak, freely, at_most, anywhere: extent == Extent::All }
    }

    /// Makes the plan's pages and maps all of them; returns their places, in order. On failure it undoes
    /// everything, unless that fails too.
    fn map(&self, source: &dyn PageSource, plan: &Plan) -> Result<Vec<SegmentMemory>, Unmade> {
        let unmapped = |error| Unmade { error, is_undone: true };
        let made = self.make_pages(source, &plan.makes).map_err(unmapped)?;
        let moved = plan.moves.iter().map(|page| (page.bytes(), page.memory().token));
        let mut address = plan.address;
        let mut mapped = Vec::new();
        let mut outcome = Ok(());
        for (bytes, token) in moved.chain(made.iter().copied()) {
            let memory = SegmentMemory { address, bytes, token };
            self.device.count(|calls| calls.map += 1);
            outcome = source.map(&memory);
            if outcome.is_err() {
                break;
            }
            mapped.push(memory);
            address += bytes;
        }
        let enable = || {
            self.device.count(|calls| calls.enable += 1);
            source.enable(plan.address, plan.bytes)
        };
        match outcome.and_then(|()| enable()) {
            Ok(()) => Ok(mapped),
            Err(error) => Err(Unmade { error, is_undone: self.undo(source, &mapped, &made) }),
        }
    }

    /// Notifies trackers of a plan's new mappings, and only then makes the memory available.
    fn publish(&self, growth: &mut Growth, mut plan: Plan, mapped: Vec<SegmentMemory>) {
        let made = plan.makes.iter().sum();
        self.pool.arena_mut().move_calls += plan.move_calls();
        let old = std::mem::take(&mut plan.moves);
        {
            let mut totals = self.device.totals();
            totals.reserved.add(made);
            totals.segments.add(plan.makes.len() as u64);
            totals.source_allocations += plan.makes.len() as u64;
            totals.remapped += old.iter().map(Segment::bytes).sum::<u64>();
        }
        let reserved = {
            let mut reserved = self.pool.reserved();
            reserved.add(made);
            reserved.current
        };
        self.pool.arena_mut().raise_ceiling(reserved);
        let pages: Vec<_> = mapped.into_iter().map(|memory| self.page(growth, memory)).collect();
        let left = old.into_iter().map(Action::SegmentUnmap);
        for action in left.chain(pages.iter().cloned().map(Action::SegmentMap)) {
            self.device.emit(growth, self.pool.id, self.stream, action);
        }
        // This stream is ordered behind all streams that used the moved pages, so its own event covers their
        // uses.
        let wait =
            (!plan.is_new()).then(|| Wait { stream: self.stream, event: self.device.mark(self.stream) });
        self.pool.arena_mut().settle(plan, pages, self.list, wait);
    }

    /// The segment for a page at its new address.
    fn page(&self, growth: &mut Growth, memory: SegmentMemory) -> Segment {
        Segment::new(SegmentParts {
            id: growth.segment_id(),
            device: self.device.ordinal(),
            pool: self.pool.id,
            stream: self.stream,
            class: SizeClass::Large,
            memory,
            source: self.pool.source.clone(),
        })
    }

    /// Makes pages of these sizes, or none.
    fn make_pages(&self, source: &dyn PageSource, sizes: &[u64]) -> Result<Vec<(u64, u64)>, SourceError> {
        let mut made = Vec::new();
        for bytes in sizes {
            self.device.count(|calls| calls.create += 1);
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

    /// Unmaps and discards pages after a failure. Returns whether none is left mapped.
    fn undo(&self, source: &dyn PageSource, mapped: &[SegmentMemory], made: &[(u64, u64)]) -> bool {
        self.device.count(|calls| {
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
            self.device.fault(Fault::Unmapped { pool: self.pool.id, message: chain(&error) });
        }
        is_unmapped
    }

    /// Reserves a further range of addresses, large enough for the block.
    fn add_range(&self, source: &dyn PageSource, request: Request) -> Result<(), SourceError> {
        let step = source::step(&*self.pool.source);
        let bytes = RANGE.max(bytes_of(request.units).next_multiple_of(step));
        self.device.count(|calls| calls.reserve += 1);
        let base = source.reserve(bytes)?;
        let mut arena = self.pool.arena_mut();
        let tier = arena.tier(request.units);
        arena.add_range(base, bytes, tier);
        Ok(())
    }

    /// Returns true if this stream may use a list's memory without ordering.
    fn has(&self, list: List) -> bool {
        list == self.list || list == Arena::NOBODYS_LIST
    }

    /// Returns true if this stream may use memory that another stream has freed.
    fn may_use(&self) -> bool {
        self.device.settings.reuse >= Reuse::HostSeen
    }

    /// Orders this stream behind those of the lists; an error is the list of a stream that it may not be
    /// ordered behind.
    fn order_after(&self, lists: impl IntoIterator<Item = List>) -> Result<(), List> {
        let wait = self.device.settings.reuse >= Reuse::DeviceWait;
        let mut done = vec![self.list, Arena::NOBODYS_LIST];
        for list in lists {
            if done.contains(&list) {
                continue;
            }
            let other = self.pool.shards().into_iter().find(|shard| shard.list == list).ok_or(list)?;
            if !self.is_ordered_after(&other, wait) {
                return Err(list);
            }
            done.push(list);
        }
        Ok(())
    }
}

impl PoolCore {
    /// Frees the old addresses of moved pages whose last uses there the host has seen end, or, with `wait`,
    /// waits for. Returns whether none are left.
    pub(in crate::core) fn retire_ghosts(&self, wait: bool) -> bool {
        let mut left = Vec::new();
        let ghosts = self.arena_mut().take_ghosts();
        for mut ghost in ghosts {
            let ended =
                if wait { self.device.wait_for(&ghost.wait) } else { self.device.has_ended(&mut ghost.wait) };
            if ended {
                let mut arena = self.arena_mut();
                ghost.places.iter().for_each(|place| arena.retire_block(place.block));
            } else {
                left.push(ghost);
            }
        }
        let all = left.is_empty();
        self.arena_mut().keep_ghosts(left);
        all
    }

    /// Unmaps old addresses that no work uses any more. Addresses that cannot be unmapped are never used
    /// again. Returns whether there are none.
    pub(in crate::core) fn unmap_stale(&self, source: &dyn PageSource, stale: &[Run]) -> bool {
        let mut all = true;
        for run in stale {
            let (address, bytes) = self.arena_mut().span(*run);
            self.device.count(|calls| calls.unmap += 1);
            if let Err(error) = source.unmap(address, bytes) {
                all = false;
                self.arena_mut().lose_run(*run);
                self.device.fault(Fault::Unmapped { pool: self.id, message: chain(&error) });
            }
        }
        all
    }
}

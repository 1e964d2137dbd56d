//! The attempts of a request that finds no block, in order.
//!
//! 1. Complete pending blocks whose other uses the host can see ended.
//! 2. Take over an idle segment of another stream of the pool.
//! 3. Let the stream wait, on the device, for the uses of its own pending blocks.
//! 4. Collect segments that have been idle longer than average, if more is reserved than the settings allow.
//! 5. Allocate a segment: first a generous size, then ever fewer blocks, down to one. Idle segments that are
//!    too short are released for it.
//! 6. Take over a segment, or borrow a block, of another stream, after a wait on the device.
//! 7. Borrow a block from a pool that lends to this one.
//! 8. Release idle segments that are too long to be split, and allocate a segment.
//! 9. Release all cached memory of all pools, and allocate a segment.
//! 10. Wait on the host for pending blocks; release; allocate a segment.
//! 11. Call the observers. If one has freed memory, make all attempts once more.
//! 12. Report out of memory.
//!
//! Attempts 1, 4, 5, 8, 9 and 10 are PyTorch's, in PyTorch's order, and so is 7 for the default pool. PyTorch
//! runs its callbacks that free memory at the beginning of a miss, not at its end. Attempts 2, 3 and 6 use
//! idle blocks of other streams.
//!
//! Attempts 2 to 10 run under the growth lock. A symmetric pool makes only 5, and 9 and 10 for memory cached
//! by other pools: nothing in these can change its placement.

use std::sync::Arc;

use super::block::Block;
use super::device::{Growth, reentrant};
use super::entry::Action;
use super::error::{AllocError, OutOfMemory};
use super::pool::PoolCore;
use super::segment::{Segment, SizeClass};
use super::settings::{PoolKind, Reuse};
use super::shard::{Request, Shard};
use super::size::{MAX_BLOCK, Units, bytes_of, units_for};
use super::source::{self, SourceError};
use super::symmetric::{OperationKind, SEGMENT_STEP};
use super::tracker;

/// Limit on repeating the last attempts while other threads allocate and free. Each repetition means that
/// another thread took the memory that this request did not find.
const LAST_ATTEMPTS: u32 = 100;

/// A segment is made longer than its request only up to this part of the remaining memory.
const SCARCE: u64 = 4;

/// Growth factor of segments for small requests, relative to those for large ones.
const SMALL_FACTOR: u64 = 4;

/// Sizes of a new segment, in bytes.
#[derive(Clone, Copy, Debug)]
struct SegmentSizes {
    /// The requested block, and the step of segments.
    block: u64,
    step: u64,
    /// Serves further requests too. A multiple of the block's length, so that requests of one length fill it.
    generous: u64,
    /// Serves this request.
    least: u64,
}

impl SegmentSizes {
    /// The size for this number of blocks.
    fn of_blocks(&self, count: u64) -> u64 {
        (count * self.block).next_multiple_of(self.step).max(self.least)
    }

    /// The generous size, then ever fewer blocks, down to one.
    fn descending(self) -> impl Iterator<Item = u64> {
        std::iter::successors(Some(self.generous), move |bytes| {
            let fewer = self.of_blocks(bytes / self.block / 2);
            (fewer < *bytes).then_some(fewer)
        })
    }
}

impl Shard {
    /// Returns `None` if the shard is retired: the stream has another one.
    #[cold]
    pub(super) fn miss(self: &Arc<Self>, request: Request) -> Result<Option<Block>, AllocError> {
        let mut outcome = self.attempt(request);
        if let Err(AllocError::OutOfMemory(figures)) = &outcome
            && self.device.ask_observers(figures)
        {
            outcome = self.attempt(request);
        }
        if let Err(AllocError::OutOfMemory(figures)) = &outcome {
            self.report(figures);
        }
        if outcome.is_err()
            && let Some(journal) = &mut self.state.lock().symmetric
        {
            journal.log(OperationKind::Refuse, request.bytes, None, request.site);
        }
        outcome
    }

    fn attempt(self: &Arc<Self>, request: Request) -> Result<Option<Block>, AllocError> {
        if tracker::inside() {
            return Err(reentrant());
        }
        self.pool.refuse_capture(self.stream)?;
        match &self.pool.arena {
            None => self.attempts(request),
            Some(_) => self.remap(request),
        }
    }

    /// Counts a request that failed for lack of memory, and notifies trackers.
    fn report(&self, figures: &OutOfMemory) {
        self.device.totals().out_of_memory += 1;
        let action = Action::OutOfMemory { wanted: figures.wanted, free: figures.info.map(|info| info.free) };
        let growth = &mut *self.device.growth.lock();
        self.device.emit(growth, self.pool.id, self.stream, action);
    }

    fn attempts(self: &Arc<Self>, request: Request) -> Result<Option<Block>, AllocError> {
        let class = self.state.lock().class(request.units);
        let sizes = self.segment_sizes(request, class);
        let SegmentSizes { generous, least, .. } = sizes;
        self.refuse_frozen(request, least)?;
        // A symmetric pool must not reuse memory of other streams.
        let reuse = if self.pool.is_symmetric() { None } else { Some(self.device.settings.reuse) };

        let polled = if reuse.is_some() { self.try_poll_pending() } else { Some(false) };
        if polled == Some(true)
            && let Some(block) = self.hit(request)
        {
            return Ok(Some(block));
        }
        let growth = &mut *self.device.growth.lock();
        if self.is_retired() {
            return Ok(None);
        }
        // Another thread may have grown or frozen the pool meanwhile.
        if let Some(block) = self.hit(request) {
            return Ok(Some(block));
        }
        self.refuse_frozen(request, least)?;
        if polled.is_none()
            && self.poll_pending()
            && let Some(block) = self.hit(request)
        {
            return Ok(Some(block));
        }
        self.device.reap(growth);
        if reuse >= Some(Reuse::HostSeen)
            && self.adopt(class, request, false)
            && let Some(block) = self.hit(request)
        {
            return Ok(Some(block));
        }
        if reuse >= Some(Reuse::DeviceWait)
            && self.order_pending(|shard| {
                shard.merge();
                shard.state.lock().longest(class) >= request.units
            })
            && let Some(block) = self.hit(request)
        {
            return Ok(Some(block));
        }
        self.device.collect_garbage(growth);
        let replace = self.device.settings.replace_idle && matches!(self.pool.kind, PoolKind::Cached);
        if replace && class == SizeClass::Large && !self.device.is_collective(self.stream) {
            let short =
                |segment: &Segment, _| segment.class() == class && segment.bytes() < bytes_of(request.units);
            self.device.release_shard(growth, self, &short, generous);
        }
        for bytes in sizes.descending() {
            if let Some(block) = self.grow(growth, request, class, bytes)? {
                return Ok(Some(block));
            }
        }
        if let Some(block) = reuse.and_then(|reuse| self.take_from_others(class, request, reuse)) {
            return Ok(Some(block));
        }
        if let Some(block) = self.borrow_from_pools(request) {
            return Ok(Some(block));
        }
        self.device.totals().retries += 1;
        let unsplit = self.pool.splitting().longest;
        if unsplit < Units::MAX
            && self.release_unsplit(growth, bytes_of(unsplit), least)
            && let Some(block) = self.grow(growth, request, class, least)?
        {
            return Ok(Some(block));
        }
        self.until_nothing_moves(|| {
            if self.device.release_cached(growth, u64::MAX, None) > 0
                && let Some(block) = self.grow(growth, request, class, least)?
            {
                return Ok(Some(block));
            }
            for shard in self.device.shards() {
                shard.synchronize_pending();
            }
            if let Some(reuse) = reuse
                && let Some(block) =
                    self.hit(request).or_else(|| self.take_from_others(class, request, reuse))
            {
                return Ok(Some(block));
            }
            if self.device.release_cached(growth, u64::MAX, None) == 0 {
                return Ok(None);
            }
            self.grow(growth, request, class, least)
        })?
        .map(Some)
        .ok_or_else(|| self.out_of_memory(request, least))
    }

    /// Repeats the last attempts of a request as long as they fail while blocks change hands. Another thread
    /// may free a block in a place that was searched before, and take one in a place that was not searched
    /// yet; one attempt misses both. An attempt searches everywhere.
    pub(super) fn until_nothing_moves(
        &self,
        mut attempt: impl FnMut() -> Result<Option<Block>, AllocError>,
    ) -> Result<Option<Block>, AllocError> {
        let mut before = self.device.operations();
        for _ in 0..LAST_ATTEMPTS {
            if let Some(block) = attempt()? {
                return Ok(Some(block));
            }
            let now = self.device.operations();
            if now == before {
                break;
            }
            before = now;
        }
        Ok(None)
    }

    /// Returns an error if the pool is frozen and so must not grow.
    pub(super) fn refuse_frozen(&self, request: Request, missing: u64) -> Result<(), AllocError> {
        if !self.pool.is_frozen() {
            return Ok(());
        }
        let (pool, wanted) = (self.pool.id, request.bytes);
        Err(AllocError::PoolWouldGrowDuringCapture { pool, wanted, missing })
    }

    /// Releases idle segments of the pool that exceed the longest block that is split. Returns whether any
    /// was released.
    fn release_unsplit(&self, growth: &mut Growth, longest: u64, wanted: u64) -> bool {
        let before = self.device.totals().reserved.current;
        let gone = || before - self.device.totals().reserved.current;
        for shard in self.pool.shards() {
            if gone() < wanted {
                let left = wanted - gone();
                self.device.release_shard(growth, &shard, &|segment, _| segment.bytes() > longest, left);
            }
        }
        gone() > 0
    }

    /// Allocates a segment and takes the block out of it. `None`: there is not enough memory.
    fn grow(
        self: &Arc<Self>,
        growth: &mut Growth,
        request: Request,
        class: SizeClass,
        bytes: u64,
    ) -> Result<Option<Block>, AllocError> {
        match self.device.add_segment(growth, self, class, bytes, request) {
            Ok(block) => Ok(Some(block)),
            Err(SourceError::OutOfMemory { .. }) => Ok(None),
            Err(source) => Err(AllocError::Source { bytes, source }),
        }
    }

    fn segment_sizes(&self, request: Request, class: SizeClass) -> SegmentSizes {
        let settings = &self.device.settings;
        let step = source::step(&*self.pool.source);
        let block = bytes_of(request.units);
        let only = |bytes| SegmentSizes { block, step, generous: bytes, least: bytes };
        if let Some(journal) = &self.state.lock().symmetric {
            return only(journal.next_segment(request.bytes).1);
        }
        if matches!(self.pool.kind, PoolKind::NoSplit) {
            return only(block.next_multiple_of(step));
        }
        let share = self.state.lock().fixed.reserved(class) / settings.growth_divisor.max(1);
        let (step, floor, share) = match class {
            // Small requests need little memory in all, so waste matters less than the number of segments.
            SizeClass::Small => (step, settings.small_segment, share.saturating_mul(SMALL_FACTOR)),
            SizeClass::Large => (step.max(SEGMENT_STEP), settings.large_segment, share),
        };
        let least = block.next_multiple_of(step);
        let longest = bytes_of(self.pool.splitting().longest);
        if block > longest {
            return only(least);
        }
        let sizes = SegmentSizes { block, step, generous: least, least };
        // When memory is nearly full, the remainder must serve requests of other lengths too.
        let most = floor.max(share).min(self.pool.available() / SCARCE).min(MAX_BLOCK);
        let most = most.next_multiple_of(step).min(longest);
        SegmentSizes { generous: sizes.of_blocks(most / block), ..sizes }
    }

    /// Takes over an idle segment of another stream with room for the request. Under the growth lock, since
    /// segments change streams only there.
    fn adopt(&self, class: SizeClass, request: Request, wait: bool) -> bool {
        for other in self.others() {
            other.merge();
            let withdrawn = other.state.lock().withdraw_idle(class, request.units);
            let Some(segment) = withdrawn else { continue };
            other.settle_entries();
            let to = if self.is_ordered_after(&other, wait) { self } else { &*other };
            segment.set_stream(to.stream);
            to.put_back(segment);
            if to.stream == self.stream {
                return true;
            }
        }
        false
    }

    /// Memory of other streams, after waiting for it where that is allowed.
    fn take_from_others(self: &Arc<Self>, class: SizeClass, request: Request, reuse: Reuse) -> Option<Block> {
        let wait = reuse >= Reuse::DeviceWait;
        if reuse < Reuse::HostSeen {
            return None;
        }
        if wait
            && self.adopt(class, request, true)
            && let Some(block) = self.hit(request)
        {
            return Some(block);
        }
        let ready = self.borrow(request, false, self.others());
        ready.or_else(|| wait.then(|| self.borrow(request, true, self.others())).flatten())
    }

    /// Hands out a block of another stream's memory, or of another pool's. A freed block returns there once
    /// its uses here have ended.
    fn borrow(
        &self,
        request: Request,
        wait: bool,
        others: impl IntoIterator<Item = Arc<Self>>,
    ) -> Option<Block> {
        for other in others {
            other.poll_pending();
            let Some(id) = other.reserve(request) else { continue };
            let ordered = self.is_ordered_after(&other, wait);
            let mut state = other.state.lock();
            // A closed pool lends nothing more: a block on loan would not keep it alive.
            if ordered && !state.is_closed {
                self.device.totals().borrowed += 1;
                return Some(other.state.hand_out(state, id, request, self.stream));
            }
            state.unreserve(id);
        }
        None
    }

    /// A free block of a pool that lends to this one. None for a capturing stream: the block would return to
    /// the lender and be used there while the graph uses it.
    pub(super) fn borrow_from_pools(&self, request: Request) -> Option<Block> {
        if self.device.events.is_capturing(self.stream).unwrap_or(true) {
            return None;
        }
        let lends = |pool: &Arc<PoolCore>| self.pool.may_borrow_from(pool);
        let lenders = || self.device.pools().into_iter().filter(lends).flat_map(|pool| pool.shards());
        let wait = self.device.settings.reuse >= Reuse::DeviceWait;
        let ready = self.borrow(request, false, lenders());
        ready.or_else(|| wait.then(|| self.borrow(request, true, lenders())).flatten())
    }

    /// Returns true if work enqueued on this stream from now on is ordered after all work enqueued on the
    /// other. The host can see that it has ended, or this stream waits for it, if that is allowed.
    pub(super) fn is_ordered_after(&self, other: &Self, wait: bool) -> bool {
        let device = &self.device;
        if other.stream == self.stream {
            return true;
        }
        let Some(event) = device.mark(other.stream) else { return false };
        if device.events.query(event).unwrap_or(false) {
            device.events.recycle(event);
            return true;
        }
        let ordered = wait
            && device.may_wait(self.stream)
            && device.may_wait(other.stream)
            && device.order(self.stream, event);
        if !ordered {
            device.events.recycle(event);
        }
        ordered
    }

    fn others(&self) -> impl Iterator<Item = Arc<Self>> {
        self.pool.shards().into_iter().filter(|other| other.stream != self.stream)
    }

    /// Returns a segment that a shard had before.
    pub(super) fn put_back(&self, segment: Segment) {
        if let Ok(units) = units_for(segment.bytes()) {
            let now = self.device.now();
            self.state.lock().publish(segment, units, now);
        }
    }

    /// The error of a request that found no memory, with its figures.
    pub(super) fn out_of_memory(&self, request: Request, least: u64) -> AllocError {
        let device = &self.device;
        let info = self.pool.source.memory_info().ok();
        let (all, pool) = (device.stats(), self.pool.stats());
        AllocError::OutOfMemory(Box::new(OutOfMemory {
            device: device.ordinal(),
            pool: self.pool.id,
            pool_name: self.pool.name.clone(),
            stream: self.stream,
            wanted: request.bytes,
            segment: least,
            info,
            reserved: all.reserved.current,
            allocated: all.all.allocated.current,
            pending: all.all.active.current - all.all.allocated.current,
            quarantined: all.quarantined,
            pool_reserved: pool.reserved.current,
            pool_allocated: pool.all.allocated.current,
            limit: device.limit(),
        }))
    }
}

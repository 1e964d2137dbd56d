//! The data behind a cache's lock: its memory, the owners of its blocks, and its trace entries.

use std::any::Any;
use std::fmt::Debug;
use std::sync::{Arc, Weak};

use crate::core::block_meta::{BlockMeta, BlockStatus, BlockTable, NO_USES};
use crate::core::fixed::{BlockView, Fits, Fixed};
use crate::core::heap::{BlockId, List};
use crate::core::key::Key;
use crate::core::lock::Ranked;
use crate::core::pending::{Pending, Uses};
use crate::core::quick_list::QuickList;
use crate::core::remap::Arena;
use crate::core::request::{Request, RequestInfo};
use crate::core::ring::{BlockEvent, Origin, Ring};
use crate::core::segment::Segment;
use crate::core::size::{SizeClass, Units, bytes_of, class_of};
use crate::core::snapshot::{BlockState, Usage};
use crate::core::stats::{Counters, PoolUsages};
use crate::core::stream::{StreamEvents, StreamId};
use crate::core::tracker::Slots;

/// Block entries that are gathered before they are delivered to trackers.
pub(in crate::core) const BATCH: usize = 64;

/// Actions of a cache that need its state's lock to be released.
pub(in crate::core) trait CacheOwner: Debug + Send + Sync {
    /// Delivers waiting entries to block trackers, unless another thread does or this is inside a tracker.
    fn deliver(&self, waiting: usize);

    /// Records events for the last uses of a block that was freed.
    fn await_uses(&self, id: BlockId, streams: &[StreamId]);

    /// The streams and events of the allocator.
    fn events(&self) -> Arc<dyn StreamEvents>;
}

#[derive(Debug)]
pub(in crate::core) struct CacheState {
    pub(in crate::core) key: Key,
    pub(in crate::core) origin: Origin,
    pub(in crate::core) cache: Option<Weak<dyn CacheOwner>>,
    /// Its pool is gone.
    pub(in crate::core) is_closed: bool,
    /// Keeps the cache of a closed pool, and its pool, alive until the last block is back.
    pub(in crate::core) keeper: Option<Arc<dyn Any + Send + Sync>>,
    pub(in crate::core) fixed: Fixed,
    /// In a re-mappable pool instead: the arena that all streams share, and this stream's list.
    pub(super) shared: Option<(Arc<Ranked<Arena>>, List)>,
    pub(super) one_class: bool,
    pub(super) quick: QuickList,
    pub(in crate::core) blocks: BlockTable,
    pub(in crate::core) uses: Uses,
    /// Blocks that were freed while other streams use them, since the cache's pending list was last
    /// processed.
    pub(in crate::core) newly_pending: Vec<Pending>,
    pub(in crate::core) ring: Ring,
    pub(in crate::core) slots: Slots,
    pub(in crate::core) counters: Counters,
}

/// Blocks that are merged per acquisition of the lock, at most.
const CHUNK: usize = 256;
/// Blocks that are evicted to make room for a freed one.
const EVICTED: usize = 32;

/// The request of a block's owner.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct Owner {
    requested: u64,
    usage: Usage,
    info: RequestInfo,
}

/// The state of a block of the heap, with its owner's request.
pub(in crate::core) fn block_state(view: &BlockView, owner: Option<Owner>) -> BlockState {
    let BlockView { address, units, is_free, .. } = *view;
    let bytes = bytes_of(units);
    match owner.filter(|_| !is_free) {
        Some(Owner { requested, usage, info }) => {
            BlockState { address, bytes, requested, usage, request: Some(info) }
        }
        None => BlockState::free(address, bytes),
    }
}

impl CacheState {
    /// The class for a block of this length. A pool that places by the sequence of requests, or gives each
    /// request its own segment, has one class only.
    pub(in crate::core) fn class(&self, units: Units) -> SizeClass {
        if self.one_class { SizeClass::Large } else { class_of(units) }
    }

    /// Finds a block without handing it out.
    #[inline]
    pub(in crate::core) fn reserve(&mut self, units: Units) -> Option<BlockId> {
        match self.quick.take(&mut self.blocks, units) {
            Some(id) => Some(id),
            None => self.take_from_heap(units),
        }
    }

    /// Takes a block from the heap.
    #[inline(never)]
    fn take_from_heap(&mut self, units: Units) -> Option<BlockId> {
        self.end_long();
        let found = self.allocate(units).or_else(|| {
            self.merge_some();
            self.allocate(units)
        });
        let (block, address, units) = found?;
        self.blocks.add(block, address, units);
        Some(block)
    }

    /// Gives the cached long block, if there is one, to the heap.
    #[inline]
    fn end_long(&mut self) {
        if let Some(long) = self.quick.give_long() {
            self.return_to_heap(long);
        }
    }

    /// Counts one growth of the allocator: segments without blocks become older.
    pub(in crate::core) fn grow_older(&mut self) {
        self.end_long();
        self.fixed.grow_older();
    }

    /// Limits the cached bytes from now on; one block is always cached.
    pub(in crate::core) fn limit_kept(&mut self, bytes: u64) {
        self.quick.limit_to(bytes);
    }

    /// Reserves the block of `units` at `address`, if all of it is free and not cached. Not in a re-mappable pool.
    pub(in crate::core) fn reserve_at(&mut self, address: u64, units: Units) -> Option<BlockId> {
        let block = self.fixed.allocate_at(address, units)?;
        self.blocks.add(block, address, units);
        Some(block)
    }

    /// Finds a block in memory of the other tier, for blocks of another length.
    pub(in crate::core) fn reserve_elsewhere(&mut self, units: Units) -> Option<BlockId> {
        let (arena, stream) = self.shared.as_ref()?;
        let (block, address, units) = arena.lock().allocate_elsewhere(units, *stream)?;
        self.blocks.add(block, address, units);
        Some(block)
    }

    fn allocate(&mut self, units: Units) -> Option<(BlockId, u64, Units)> {
        match &self.shared {
            Some((arena, list)) => arena.lock().allocate(units, *list),
            None => {
                let class = self.class(units);
                self.fixed.allocate(units, class)
            }
        }
    }

    /// Returns a block to the heap.
    fn return_to_heap(&mut self, id: BlockId) {
        self.blocks.end(id);
        match &self.shared {
            Some((arena, _)) => arena.lock().free(id),
            None => self.fixed.free(id),
        }
    }

    /// Puts a reserved block back.
    #[inline]
    pub(in crate::core) fn unreserve(&mut self, id: BlockId) {
        let units = self.blocks[id].units;
        let is_kept = !self.quick.is_full_for(units) || {
            self.give_up(|quick, blocks, give| quick.evict(blocks, EVICTED, give));
            !self.quick.is_full_for(units)
        };
        let rest = if is_kept { self.quick.keep(&mut self.blocks, id) } else { Some(id) };
        if let Some(id) = rest {
            self.return_to_heap(id);
        }
    }

    /// Returns true if any block is cached that could be merged.
    pub(in crate::core) fn keeps_any(&self) -> bool {
        self.quick.keeps_any()
    }

    /// Merges a bounded part of the cached blocks. Returns whether more are left.
    pub(in crate::core) fn merge_some(&mut self) -> bool {
        self.quick.keeps_any() && self.give_up(|quick, blocks, give| quick.drain(blocks, CHUNK, give))
    }

    /// Merges all free memory. [`StreamCache::merge`] does the same with short lock times.
    pub(in crate::core) fn merge_all(&mut self) {
        while self.merge_some() {}
    }

    /// Moves blocks from the quick list to the heap.
    #[inline(never)]
    fn give_up<R>(
        &mut self,
        give_up: impl FnOnce(&mut QuickList, &mut BlockTable, &mut dyn FnMut(&mut BlockTable, BlockId)) -> R,
    ) -> R {
        let Self { quick, blocks, fixed, shared, .. } = self;
        match shared {
            Some((arena, _)) => {
                let mut arena = arena.lock();
                give_up(quick, blocks, &mut |blocks, id| {
                    blocks.end(id);
                    arena.free(id);
                })
            }
            None => give_up(quick, blocks, &mut |blocks, id| {
                blocks.end(id);
                fixed.free(id);
            }),
        }
    }

    /// Adds a segment, as one free block.
    pub(in crate::core) fn publish(&mut self, segment: Segment, units: Units, now: u64) {
        self.ring.renew(now);
        self.fixed.publish(segment, units);
    }

    /// Removes the shortest segment of the class that is one free block of at least `units`.
    pub(in crate::core) fn withdraw_idle(&mut self, class: SizeClass, units: Units) -> Option<Segment> {
        self.merge_all();
        self.fixed.withdraw_idle(class, units)
    }

    /// Removes free segments selected by `fits`, newest first, until they have `wanted` bytes together.
    pub(in crate::core) fn withdraw_all(&mut self, fits: Fits<'_>, wanted: u64) -> Vec<Segment> {
        self.merge_all();
        self.fixed.withdraw_all(fits, wanted)
    }

    /// The longest free block of the class.
    pub(in crate::core) fn longest(&mut self, class: SizeClass) -> Units {
        self.merge_all();
        match &self.shared {
            Some((arena, list)) => arena.lock().longest(*list),
            None => self.fixed.longest(class),
        }
    }

    /// Returns true if no block is handed out or in use by other streams, no entry is undelivered, and there
    /// is no memory.
    pub(in crate::core) fn has_nothing(&self) -> bool {
        self.counters.active() == 0
            && self.newly_pending.is_empty()
            && self.ring.waiting() == 0
            && self.fixed.is_empty()
    }

    /// Adds `stream` to those that use a block.
    pub(in crate::core) fn add_use(&mut self, id: BlockId, stream: StreamId) {
        let meta = &mut self.blocks[id];
        meta.uses = self.uses.add(meta.uses, stream);
    }

    /// The cache, unless it is gone.
    pub(in crate::core) fn owner_cache(&self) -> Option<Arc<dyn CacheOwner>> {
        self.cache.as_ref()?.upgrade()
    }

    /// The streams and events of the device, as long as the cache's pool or a block keeps it.
    pub(in crate::core) fn events(&self) -> Option<Arc<dyn StreamEvents>> {
        self.owner_cache().map(|cache| cache.events())
    }

    /// The request of a block's owner, if the block is handed out or still in use by other streams.
    pub(in crate::core) fn owner(&self, id: BlockId) -> Option<Owner> {
        let meta = self.blocks.get(id)?;
        let usage = match meta.status {
            BlockStatus::Owned => Usage::Active,
            BlockStatus::Pending => Usage::PendingFree,
            BlockStatus::None | BlockStatus::Kept => return None,
        };
        Some(Owner { requested: meta.requested, usage, info: self.blocks.info(id) })
    }

    /// The segments that contain a block, at least one.
    pub(in crate::core) fn segments_of(&self, id: BlockId) -> Vec<Segment> {
        match &self.shared {
            Some((arena, _)) => arena.lock().pages_of(id),
            None => self.fixed.segment_of(id).into_iter().cloned().collect(),
        }
    }

    /// The record of a block that the cache has taken.
    pub(in crate::core) fn meta_of(&self, id: BlockId) -> &BlockMeta {
        &self.blocks[id]
    }

    /// The information that came with the request for a block.
    pub(in crate::core) fn info(&self, id: BlockId) -> RequestInfo {
        self.blocks.info(id)
    }

    /// Frees a pending block whose other streams are done with it.
    pub(in crate::core) fn complete(&mut self, id: BlockId) {
        self.complete_free(id, BlockEvent::FreeCompleted);
    }

    /// Sums of all blocks, small and large.
    pub(in crate::core) fn usages(&self) -> PoolUsages {
        self.counters.usages()
    }

    #[inline]
    pub(in crate::core) fn hand_out(&mut self, id: BlockId, request: Request) -> (u64, Units) {
        self.blocks.set_request(id, request.bytes, request.info);
        let BlockMeta { address, units, .. } = self.blocks[id];
        self.ring.push(BlockEvent::Alloc, address, units, request.bytes, request.info);
        self.counters.hand_out(class_of(units), bytes_of(units), request.bytes);
        (address, units)
    }

    /// Marks a block as freed by its owner while other streams use it; returns these streams.
    pub(in crate::core) fn request_free(&mut self, id: BlockId) -> Vec<StreamId> {
        self.blocks.set(id, BlockStatus::Pending);
        let meta = &mut self.blocks[id];
        let BlockMeta { address, units, requested, .. } = *meta;
        let streams = self.uses.take(std::mem::replace(&mut meta.uses, NO_USES));
        self.ring.push(BlockEvent::FreeRequested, address, units, requested, self.blocks.info(id));
        self.counters.request_free(class_of(units), bytes_of(units), requested);
        self.counters.set_pending(class_of(units), bytes_of(units), true);
        streams
    }

    /// Frees a block.
    #[inline]
    pub(in crate::core) fn complete_free(&mut self, id: BlockId, event: BlockEvent) {
        let BlockMeta { address, units, requested, .. } = self.blocks[id];
        self.ring.push(event, address, units, requested, self.blocks.info(id));
        match event {
            BlockEvent::Free => self.counters.request_free(class_of(units), bytes_of(units), requested),
            _ => self.counters.set_pending(class_of(units), bytes_of(units), false),
        }
        self.unreserve(id);
    }
}

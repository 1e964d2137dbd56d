//! The state of a stream cache, which its lock guards: its memory, its blocks and its trace entries.

use std::any::Any;
use std::fmt::Debug;
use std::sync::{Arc, Weak};

use crate::core::block_meta::{BlockMeta, BlockStatus, BlockTable, NO_USES};
use crate::core::fixed::{BlockView, Fits, Fixed};
use crate::core::heap::BlockId;
use crate::core::key::Key;
use crate::core::lock::RankedSpin;
use crate::core::pending::{Pending, User, Uses};
use crate::core::quick_list::QuickList;
use crate::core::remap::{Arena, ArenaList};
use crate::core::request::{Request, RequestInfo};
use crate::core::ring::{BlockEvent, Origin, Ring};
use crate::core::segment::Segment;
use crate::core::size::{SizeClass, Units, bytes_of, class_of};
use crate::core::snapshot::{BlockState, Usage};
use crate::core::stats::{Counters, PoolUsages};
use crate::core::stream::StreamEvents;
use crate::core::tracker::Slots;

/// The number of raw entries to collect before they are delivered to trackers. A raw entry is delivered as one or two
/// block entries (see `ring`).
pub(in crate::core) const BATCH: usize = 64;

/// The operations of a stream cache that its state and its blocks use. [`deliver`](Self::deliver) and
/// [`await_uses`](Self::await_uses) must be called without the lock on the state.
pub(in crate::core) trait CacheOwner: Debug + Send + Sync {
    /// Delivers the undelivered entries to block trackers. Does nothing inside a tracker. `waiting` is the number of
    /// undelivered raw entries, or `usize::MAX` if all entries must be delivered. If another thread is delivering,
    /// returns at once, or waits for that thread if `waiting` is very large.
    fn deliver(&self, waiting: usize);

    /// Records an event on each stream among `users`, and adds the freed block `id` to the pending blocks.
    fn await_uses(&self, id: BlockId, users: Vec<User>);

    /// Returns the allocator's [`StreamEvents`].
    fn events(&self) -> Arc<dyn StreamEvents>;
}

#[derive(Debug)]
pub(in crate::core) struct CacheState {
    /// The pool and stream of the cache, or [`Key::RETIRED`].
    pub(in crate::core) key: Key,
    pub(in crate::core) origin: Origin,
    /// The cache that this state belongs to.
    pub(in crate::core) cache: Option<Weak<dyn CacheOwner>>,
    /// True if the pool is closed: it has no handles any more.
    pub(in crate::core) is_closed: bool,
    /// The number of threads that are adding memory to the cache. While it is not 0, the cache is not retired.
    pub(in crate::core) pins: u32,
    /// In a closed pool, keeps the cache and the pool alive until the last block that is handed out is freed.
    pub(in crate::core) keeper: Option<Arc<dyn Any + Send + Sync>>,
    /// The segments and the heap of a pool of fixed segments. Empty in a re-mappable pool.
    pub(in crate::core) fixed: Fixed,
    /// In a re-mappable pool, the arena that all streams share, and this stream's list there.
    pub(super) shared: Option<(Arc<RankedSpin<Arena>>, ArenaList)>,
    /// True if all segments are of [`SizeClass::Large`].
    pub(super) one_class: bool,
    pub(super) quick: QuickList,
    pub(in crate::core) blocks: BlockTable,
    pub(in crate::core) uses: Uses,
    /// Pending blocks that were freed after the cache's list of pending blocks was last processed.
    pub(in crate::core) newly_pending: Vec<Pending>,
    pub(in crate::core) ring: Ring,
    /// The trackers that receive block entries.
    pub(in crate::core) slots: Slots,
    pub(in crate::core) counters: Counters,
}

/// Maximum number of cached blocks that are merged per acquisition of the lock. Cached blocks are those in the quick
/// list.
const CHUNK: usize = 256;
/// Maximum number of cached blocks that are evicted to make room for a freed one.
const EVICTED: usize = 32;

/// The request for a block that is handed out or pending.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct Owner {
    requested: u64,
    usage: Usage,
    info: RequestInfo,
}

/// Returns the state of a block, for snapshots. `owner` has the request for the block, if there is one.
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
    /// Returns the class of segments that serve a block of this length. Only pools of the kind `Cached` have two
    /// classes. In other pools all segments are large.
    pub(in crate::core) fn class(&self, units: Units) -> SizeClass {
        if self.one_class { SizeClass::Large } else { class_of(units) }
    }

    /// Takes a block out of the quick list or the heap, without handing it out. [`unreserve`](Self::unreserve) undoes
    /// this.
    #[inline]
    pub(in crate::core) fn reserve(&mut self, units: Units) -> Option<BlockId> {
        match self.quick.take(&mut self.blocks, units) {
            Some(id) => Some(id),
            None => self.take_from_heap(units),
        }
    }

    /// Takes a block out of the heap. If none fits, merges some cached blocks and tries once more.
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

    /// Moves the long block of the quick list to the heap, if there is one (see `quick_list`).
    #[inline]
    fn end_long(&mut self) {
        if let Some(long) = self.quick.give_long() {
            self.return_to_heap(long);
        }
    }

    /// Adds one to the age of each idle segment, and resets the age of the others. Called before the allocator takes
    /// more memory from a source, if it releases idle segments by age.
    pub(in crate::core) fn grow_older(&mut self) {
        self.end_long();
        self.fixed.grow_older();
    }

    /// Limits the bytes of the short blocks in the quick list. Even at limit 0, one short block can be cached. The long
    /// block does not count.
    pub(in crate::core) fn limit_quick_list(&mut self, bytes: u64) {
        self.quick.limit_to(bytes);
    }

    /// Takes the block of `units` at `address` out of the heap, without handing it out. Returns `None` if a part of it
    /// is used or cached, or lies in no segment of the cache. Not for re-mappable pools.
    pub(in crate::core) fn reserve_at(&mut self, address: u64, units: Units) -> Option<BlockId> {
        let block = self.fixed.allocate_at(address, units)?;
        self.blocks.add(block, address, units);
        Some(block)
    }

    /// Takes a block out of the stream's free memory in the other tier of the arena, without handing it out. The arena
    /// has one tier for short blocks and one for long blocks. For a short block, the other tier is that of long blocks.
    /// For a long block, it is that of short blocks. Returns `None` if no free block fits, or if this is not a
    /// re-mappable pool.
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

    /// Returns a block of `units` to the free memory: to the quick list if possible, otherwise to the heap.
    #[inline]
    pub(in crate::core) fn unreserve(&mut self, id: BlockId, units: Units) {
        let is_kept = !self.quick.is_full_for(units) || {
            self.give_up(|quick, blocks, give| quick.evict(blocks, EVICTED, give));
            !self.quick.is_full_for(units)
        };
        let rest = if is_kept { self.quick.keep(&mut self.blocks, id, units) } else { Some(id) };
        if let Some(id) = rest {
            self.return_to_heap(id);
        }
    }

    /// Returns true if the quick list has any block.
    pub(in crate::core) fn keeps_any(&self) -> bool {
        self.quick.keeps_any()
    }

    /// Merges a limited number of cached blocks: moves them to the heap, where they merge with free neighbours. Returns
    /// true if more are left.
    pub(in crate::core) fn merge_some(&mut self) -> bool {
        self.quick.keeps_any() && self.give_up(|quick, blocks, give| quick.drain(blocks, CHUNK, give))
    }

    /// Merges all cached blocks. `StreamCache::merge` does the same, but releases the lock in between.
    pub(in crate::core) fn merge_all(&mut self) {
        while self.merge_some() {}
    }

    /// Calls `give_up` with the quick list, and with a function that moves a block to the heap. Returns the result of
    /// `give_up`.
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

    /// Adds a segment of `units`, as one free block. Later block entries have a time of at least `now`, in
    /// nanoseconds since the allocator was created.
    pub(in crate::core) fn publish(&mut self, segment: Segment, units: Units, now: u64) {
        self.ring.renew(now);
        self.fixed.publish(segment, units);
    }

    /// Removes and returns the shortest idle segment of the class that may serve a request of `units`. A segment is
    /// idle if it is one free block. If the pool limits splitting, a segment can be too long for the request.
    pub(in crate::core) fn withdraw_idle(&mut self, class: SizeClass, units: Units) -> Option<Segment> {
        self.merge_all();
        self.fixed.withdraw_idle(class, units)
    }

    /// Removes and returns idle segments that `fits` selects, newest first, until they have at least `wanted` bytes
    /// together.
    pub(in crate::core) fn withdraw_all(&mut self, fits: Fits<'_>, wanted: u64) -> Vec<Segment> {
        self.merge_all();
        self.fixed.withdraw_all(fits, wanted)
    }

    /// Merges all cached blocks, and returns the length of the longest free block of the class. In a re-mappable pool,
    /// considers all free blocks of the stream.
    pub(in crate::core) fn longest(&mut self, class: SizeClass) -> Units {
        self.merge_all();
        match &self.shared {
            Some((arena, list)) => arena.lock().longest(*list),
            None => self.fixed.longest(class),
        }
    }

    /// Returns true if the cache is empty. In a re-mappable pool, the stream's free memory in the arena is not
    /// considered. A cache is empty if no block is handed out or pending, all entries are delivered, there is no
    /// segment, and no thread is adding one.
    pub(in crate::core) fn has_nothing(&self) -> bool {
        self.pins == 0
            && self.counters.active() == 0
            && self.newly_pending.is_empty()
            && self.ring.waiting() == 0
            && self.fixed.is_empty()
    }

    /// Adds `user` to the users of a block.
    pub(in crate::core) fn add_use(&mut self, id: BlockId, user: User) {
        let meta = &mut self.blocks[id];
        meta.uses = self.uses.add(meta.uses, user);
    }

    /// Returns the block that contains an address, whether it is free or not.
    pub(super) fn block_at(&self, address: u64) -> Option<BlockId> {
        match &self.shared {
            Some((arena, _)) => arena.lock().find(address).map(|(_, view)| view.id),
            None => self.fixed.find(address).map(|(_, view)| view.id),
        }
    }

    /// Returns the cache that this state belongs to, or `None` if it is being dropped.
    pub(in crate::core) fn owner_cache(&self) -> Option<Arc<dyn CacheOwner>> {
        self.cache.as_ref()?.upgrade()
    }

    /// Returns the allocator's [`StreamEvents`], or `None` if the cache is being dropped.
    pub(in crate::core) fn events(&self) -> Option<Arc<dyn StreamEvents>> {
        self.owner_cache().map(|cache| cache.events())
    }

    /// Returns the request for a block that is handed out or pending, and `None` for other blocks.
    pub(in crate::core) fn owner(&self, id: BlockId) -> Option<Owner> {
        let meta = self.blocks.get(id)?;
        let usage = match meta.status {
            BlockStatus::Owned => Usage::Active,
            BlockStatus::Pending => Usage::PendingFree,
            BlockStatus::None | BlockStatus::Kept => return None,
        };
        Some(Owner { requested: meta.requested, usage, info: meta.info })
    }

    /// Returns the segments that contain a block: one, or in a re-mappable pool one or more pages.
    pub(in crate::core) fn segments_of(&self, id: BlockId) -> Vec<Segment> {
        match &self.shared {
            Some((arena, _)) => arena.lock().pages_of(id),
            None => self.fixed.segment_of(id).into_iter().cloned().collect(),
        }
    }

    /// Calls `ask` with the first segment that contains a block, and returns its result. All segments of a pool are of
    /// one source, so the first one is enough to find the source. Returns `None` if no segment contains the block.
    pub(in crate::core) fn first_segment<R>(
        &self,
        id: BlockId,
        ask: impl FnOnce(&Segment) -> R,
    ) -> Option<R> {
        match &self.shared {
            Some((arena, _)) => arena.lock().pages_of(id).first().map(ask),
            None => self.fixed.segment_of(id).map(ask),
        }
    }

    /// Returns the metadata of a block that is handed out, cached or pending.
    pub(in crate::core) fn meta_of(&self, id: BlockId) -> &BlockMeta {
        &self.blocks[id]
    }

    /// Returns the name and the call site of the request for a block.
    pub(in crate::core) fn info(&self, id: BlockId) -> RequestInfo {
        self.blocks[id].info
    }

    /// Frees a pending block, after the uses by other streams and graphs have ended.
    pub(in crate::core) fn complete(&mut self, id: BlockId) {
        self.complete_free(id, BlockEvent::FreeCompleted);
    }

    /// Returns the usage of all blocks of the cache, of its small blocks and of its large blocks.
    pub(in crate::core) fn usages(&self) -> PoolUsages {
        self.counters.usages()
    }

    /// Hands out a reserved block: stores its request, adds a trace entry and counts the block. Returns its address and
    /// length.
    #[inline]
    pub(in crate::core) fn hand_out(&mut self, id: BlockId, request: Request) -> (u64, Units) {
        let BlockMeta { address, units, .. } = *self.blocks.set_request(id, request.bytes, request.info);
        self.ring.push(BlockEvent::Alloc, address, units, request.bytes, request.info);
        self.counters.hand_out(class_of(units), bytes_of(units), request.bytes);
        (address, units)
    }

    /// Marks a block as freed by its owner, but pending. Returns the other streams and the graphs that use it.
    pub(in crate::core) fn request_free(&mut self, id: BlockId) -> Vec<User> {
        let meta = self.blocks.set(id, BlockStatus::Pending);
        let BlockMeta { address, units, requested, info, .. } = *meta;
        let users = self.uses.take(std::mem::replace(&mut meta.uses, NO_USES));
        self.ring.push(BlockEvent::FreeRequested, address, units, requested, info);
        self.counters.request_free(class_of(units), bytes_of(units), requested);
        self.counters.set_pending(class_of(units), bytes_of(units), true);
        users
    }

    /// Frees a block: adds `event` to the trace, counts the free, and returns the block to the free memory.
    #[inline]
    pub(in crate::core) fn complete_free(&mut self, id: BlockId, event: BlockEvent) {
        let BlockMeta { address, units, requested, info, .. } = self.blocks[id];
        self.ring.push(event, address, units, requested, info);
        match event {
            BlockEvent::Free => self.counters.request_free(class_of(units), bytes_of(units), requested),
            _ => self.counters.set_pending(class_of(units), bytes_of(units), false),
        }
        self.unreserve(id, units);
    }
}

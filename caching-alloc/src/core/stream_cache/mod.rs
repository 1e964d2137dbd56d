//! Stream caches. A stream cache has the memory of one stream in one pool. A *hit* is a request that the cache's free
//! memory serves. A hit takes the lock on the cache's state. In a re-mappable pool, it may also take the lock on the
//! arena, which has the blocks and pages that all streams of the pool share. A hit takes no other lock once its cache
//! is found. The search for the cache takes a lock if the thread has not used the cache recently (see `recent`).
//!
//! - `state`: the state of a cache, and the operations under the lock on it.
//! - `pending`: the freed blocks that other streams may still use.
//! - `copy`: copies of a cache's state, made piece by piece.
//!
//! This file has the operations that lock the state. It delivers block entries to trackers and records events only
//! without that lock.

mod copy;
mod pending;
mod state;

use std::any::Any;
use std::sync::{Arc, Weak};

pub(super) use self::copy::CacheCopy;

pub(super) use self::state::{BATCH, CacheOwner, CacheState, block_state};
use super::block::Block;
use super::block_meta::BlockTable;
use super::entry::Entry;
use super::fixed::Fixed;
use super::graph_use::GraphUse;
use super::heap::BlockId;
use super::key::Key;
use super::lock::{Rank, Ranked};
use super::pending::{Pending, User, Uses};
use super::pool_info::PoolInfo;
use super::quick_list::QuickList;
use super::registry::{DeferredBlock, DeferredRelease, Registry};
use super::remap::ArenaList;
use super::request::Request;
use super::ring::{Batch, Origin, Ring};
use super::segment::Segment;
use super::settings::PoolKind;
use super::size::units_for;
use super::slot::CacheSlot;
use super::snapshot::AddressInfo;
use super::stats::Counters;
use super::stream::StreamEvents;
use super::stream::StreamId;
use super::tracker::{self, Slots};

/// If at least this many raw entries (see `ring`) are undelivered, [`CacheOwner::deliver`] waits for the delivery lock.
/// With fewer entries, it delivers nothing while another thread has the lock.
const BACKLOG: usize = 1 << 14;

#[derive(Debug)]
pub(super) struct StreamCache {
    pub(super) registry: Arc<Registry>,
    pub(super) pool: Arc<PoolInfo>,
    pub(super) stream: StreamId,
    /// The number of caches that the pool had created before this one.
    pub(super) creation_index: u64,
    /// In a re-mappable pool, the arena list of this cache's free memory. No other cache of the pool has this list. In
    /// other pools, it is not used.
    pub(super) list: ArenaList,
    /// Freed blocks that other streams or graphs may still use, oldest first. The newest ones are in
    /// [`CacheState::newly_pending`].
    pub(super) pending: Ranked<Vec<Pending>>,
    /// Held while block entries are delivered, so that trackers get them in order. Guards the buffers for the delivery.
    pub(super) delivery: Ranked<Delivery>,
    pub(super) state: &'static CacheSlot,
}

/// Buffers for the delivery of block entries.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    batch: Batch,
    entries: Vec<Entry>,
}

impl StreamCache {
    pub(super) fn new(
        pool: Arc<PoolInfo>,
        stream: StreamId,
        creation_index: u64,
        list: ArenaList,
        slots: Slots,
    ) -> Arc<Self> {
        let registry = pool.registry.clone();
        let cached = matches!(pool.kind, PoolKind::Cached | PoolKind::Remappable);
        let quick_list_bytes = if cached { registry.settings.quick_list_bytes } else { 0 };
        // In a re-mappable pool, free memory must be visible to all streams, so no long block is cached.
        let keeps_long = pool.kind == PoolKind::Cached && quick_list_bytes > 0;
        let mut ring = Ring::new(registry.settings.ring_entries, registry.born);
        ring.subscribed = !slots.is_empty();
        let origin = Origin { device: registry.ordinal(), pool: pool.id, stream };
        let mut state = CacheState {
            key: Key { pool: pool.key, stream },
            origin,
            cache: None,
            is_closed: false,
            pins: 0,
            keeper: None,
            fixed: Fixed::new(pool.splitting()),
            shared: pool.arena.as_ref().map(|arena| (arena.clone(), list)),
            one_class: !matches!(pool.kind, PoolKind::Cached),
            quick: QuickList::new(quick_list_bytes, keeps_long),
            blocks: BlockTable::default(),
            uses: Uses::default(),
            newly_pending: Vec::new(),
            ring,
            slots,
            counters: Counters::default(),
        };
        Arc::new_cyclic(|cache: &Weak<Self>| {
            state.cache = Some(cache.clone());
            let delivery = Ranked::new(Rank::Delivery, Delivery::default());
            let pending = Ranked::new(Rank::Pending, Vec::new());
            Self {
                registry,
                pool,
                stream,
                creation_index,
                list,
                pending,
                delivery,
                state: CacheSlot::take(state),
            }
        })
    }

    /// Allocates a block from the cache's free memory. If no free block fits, it merges cached blocks, and returns
    /// `None` only after all are merged. Cached blocks are those in the quick list; merging moves them to the heap.
    pub(super) fn hit(&self, request: Request) -> Option<Block> {
        loop {
            let mut state = self.state.lock();
            if let Some(id) = state.reserve(request.units) {
                return Some(Block::hand_out(self.state, &mut state, id, request, self.stream));
            }
            // `reserve` merges only a limited number of cached blocks. The next attempt merges more, so it may succeed.
            if !state.keeps_any() {
                return None;
            }
        }
    }

    /// Merges all cached blocks. Then takes a block out of the free memory, without handing it out.
    pub(super) fn reserve(&self, request: Request) -> Option<BlockId> {
        self.merge();
        self.state.lock().reserve(request.units)
    }

    /// Merges all cached blocks, a limited number at a time. Releases the lock in between, so a hit on another thread
    /// does not wait long.
    pub(super) fn merge(&self) {
        while self.state.lock().merge_some() {}
    }

    /// Returns the number of operations so far, or `None` if the cache has blocks in use or is pinned.
    pub(super) fn idle_since(&self) -> Option<u64> {
        let state = self.state.lock();
        (state.pins == 0 && state.counters.active() == 0).then(|| state.ring.operations())
    }

    /// Retires the cache and returns true, if the cache is empty and its number of operations is `operations`, the
    /// result of an earlier call of [`idle_since`](Self::idle_since). Otherwise returns false. A thread that looked the
    /// cache up before its retirement then sees that it is retired, and looks the stream's cache up again. The caller
    /// holds the structure lock.
    pub(super) fn retire(&self, operations: u64) -> bool {
        // Another thread that has this lock is processing pending blocks, so the cache is treated as not empty.
        let Some(pending) = self.pending.try_lock() else { return false };
        let mut state = self.state.lock();
        let ends = pending.is_empty() && state.has_nothing() && state.ring.operations() == operations;
        if ends {
            state.key = Key::RETIRED;
        }
        ends
    }

    /// Returns true if the cache's segments may be released: the pool is not frozen, no graph uses the pool's memory,
    /// the stream is not being captured, and no capture of the stream is announced.
    pub(super) fn may_release(&self) -> bool {
        !self.pool.is_kept() && !self.registry.is_captured(self.stream)
    }

    /// Adds a segment that was removed from this cache, or from that of another stream. The segment is one free block.
    pub(super) fn put_back(&self, segment: Segment) {
        if let Ok(units) = units_for(segment.bytes()) {
            let now = self.registry.now();
            self.state.lock().publish(segment, units, now);
        }
    }

    /// Returns a guard that prevents the retirement of the cache. Returns `None` if the cache is retired already. The
    /// stream may have a new cache then.
    pub(super) fn pin(&self) -> Option<Pin<'_>> {
        let mut state = self.state.lock();
        if state.key == Key::RETIRED {
            return None;
        }
        state.pins += 1;
        Some(Pin(self))
    }

    /// Returns true if trackers get the block entries of this cache.
    pub(super) fn has_block_trackers(&self) -> bool {
        !self.state.lock().slots.is_empty()
    }

    /// Delivers the block entries that are not delivered yet, if they fill a batch.
    pub(super) fn deliver_batch(&self) {
        let waiting = self.state.lock().ring.waiting();
        if waiting >= BATCH {
            self.deliver(waiting);
        }
    }

    /// Marks the cache as one of a closed pool. `keeper` is a reference to the cache and the pool. If blocks of the
    /// cache are handed out, stores `keeper` until the last of them is freed, so that cache and pool stay alive until
    /// then.
    pub(super) fn close(&self, keeper: Arc<dyn Any + Send + Sync>) {
        let mut state = self.state.lock();
        state.is_closed = true;
        if state.counters.live() > 0 {
            state.keeper = Some(keeper);
        }
    }

    /// Delivers the block entries that are not delivered yet. The caller holds the delivery lock, and passes the data
    /// that the lock guards.
    pub(super) fn flush(&self, delivery: &mut Delivery) {
        let slots = {
            let mut state = self.state.lock();
            state.ring.take_outbox(&mut delivery.batch);
            state.slots.clone()
        };
        delivery.entries.clear();
        delivery.batch.expand(self.origin(), &mut delivery.entries);
        self.registry.tell(&slots, &delivery.entries);
    }

    /// Takes the delivery lock, and delivers the block entries that are not delivered yet. Called before a segment is
    /// removed or moved to another stream, so that trackers get the entries of its blocks first. Also called for
    /// snapshots and before a tracker is detached.
    pub(super) fn settle_entries(&self) {
        self.flush(&mut self.delivery.lock());
    }

    /// Returns the device, pool and stream for the cache's entries.
    pub(super) fn origin(&self) -> Origin {
        Origin { device: self.registry.ordinal(), pool: self.pool.id, stream: self.stream }
    }

    /// Returns the segment and the block that contain an address. Returns `None` if no segment of the cache contains
    /// it. In a re-mappable pool, always returns `None`, because the blocks are in the arena.
    pub(super) fn find(&self, address: u64) -> Option<AddressInfo> {
        let state = self.state.lock();
        let (segment, view) = state.fixed.find(address)?;
        Some(AddressInfo { segment: segment.clone(), block: block_state(&view, state.owner(view.id)) })
    }

    /// If a block of the cache that is handed out contains `address`, makes `graph` a user of it. Returns true then.
    pub(super) fn block_used_by_graph(&self, address: u64, graph: &GraphUse) -> bool {
        let mut state = self.state.lock();
        let block = state.block_at(address).filter(|block| state.blocks.is_owned(*block));
        if let Some(block) = block {
            state.add_use(block, User::Graph(graph.reference()));
        }
        block.is_some()
    }
}

/// A guard that prevents the retirement of a cache.
#[derive(Debug)]
pub(super) struct Pin<'a>(&'a StreamCache);

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.0.state.lock().pins -= 1;
    }
}

impl CacheOwner for StreamCache {
    #[cold]
    fn deliver(&self, waiting: usize) {
        if tracker::inside() {
            return;
        }
        let turn = if waiting < BACKLOG { self.delivery.try_lock() } else { Some(self.delivery.lock()) };
        if let Some(mut turn) = turn {
            self.flush(&mut turn);
        }
    }

    fn await_uses(&self, id: BlockId, users: Vec<User>) {
        let pending = Pending::new(id, users, |stream| self.registry.mark(stream));
        self.state.lock().newly_pending.push(pending);
    }

    fn events(&self) -> Arc<dyn StreamEvents> {
        self.registry.events.clone()
    }
}

impl Drop for StreamCache {
    /// Runs when no block of the cache is handed out any more. Leaves the segments, the pending blocks and the
    /// undelivered entries to the registry, which releases the segments after their last uses. In a re-mappable pool,
    /// the memory stays in the pool. The pool then records the stream and the pending blocks, to release the memory
    /// after their uses. A retired cache leaves nothing.
    fn drop(&mut self) {
        let origin = self.origin();
        let Some(mut state) = self.state.clear() else { return };
        state.merge_all();
        let mut pending = std::mem::take(self.pending.get_mut());
        pending.append(&mut state.newly_pending);
        if state.shared.is_some() && state.key != Key::RETIRED {
            self.pool.leave(self.stream, pending.drain(..));
        }
        let with_segments =
            |pending: Pending| DeferredBlock { segments: state.segments_of(pending.id), pending };
        let pending = pending.into_iter().map(with_segments).collect();
        let (mut batch, mut entries) = (Batch::default(), Vec::new());
        state.ring.take_outbox(&mut batch);
        batch.expand(origin, &mut entries);
        self.registry.defer_release(DeferredRelease {
            streams: vec![self.stream],
            segments: state.fixed.segments.drain(..).flatten().collect(),
            pending,
            entries,
            slots: state.slots.clone(),
            ..DeferredRelease::default()
        });
    }
}

//! A cache: the memory of one stream in one pool, behind the only lock that a hit takes.
//!
//! This file takes the lock and does the work after it is released; `state` has the guarded data.

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
use super::heap::{BlockId, List};
use super::key::Key;
use super::lock::{Rank, Ranked};
use super::pending::{Pending, Uses, Wait};
use super::pool_info::PoolInfo;
use super::quick_list::QuickList;
use super::registry::{DeferredRelease, Registry};
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

/// From this number of entries on, an operation waits for the delivery lock.
const BACKLOG: usize = 1 << 14;

#[derive(Debug)]
pub(super) struct StreamCache {
    pub(super) registry: Arc<Registry>,
    pub(super) pool: Arc<PoolInfo>,
    pub(super) stream: StreamId,
    /// The number of caches of the pool that were made before it.
    pub(super) creation_index: u64,
    /// Its list of the pool's arena, if there is one. No other live cache has this list.
    pub(super) list: List,
    /// Freed blocks that other streams use, oldest first; [`CacheState::newly_pending`] has the newest.
    pub(super) pending: Ranked<Vec<Pending>>,
    /// Held while block entries are delivered, so that they arrive in order; has the buffers for that.
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
        list: List,
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

    /// Allocates a block from existing memory, after merging all free memory if necessary.
    pub(super) fn hit(&self, request: Request) -> Option<Block> {
        loop {
            let mut state = self.state.lock();
            if let Some(id) = state.reserve(request.units) {
                return Some(Block::hand_out(self.state, state, id, request, self.stream));
            }
            // Each attempt has merged a part.
            if !state.keeps_any() {
                return None;
            }
        }
    }

    /// Finds a block like [`hit`](Self::hit), without handing it out.
    pub(super) fn reserve(&self, request: Request) -> Option<BlockId> {
        self.merge();
        self.state.lock().reserve(request.units)
    }

    /// Merges all free memory; a hit on another thread waits for one piece at most.
    pub(super) fn merge(&self) {
        while self.state.lock().merge_some() {}
    }

    /// Retires the cache for its stream, if it is empty. A thread that has already found it looks for another
    /// one. The caller holds the structure lock. Returns whether it is retired.
    pub(super) fn retire(&self) -> bool {
        // The cache is not empty if another thread settles pending blocks.
        let Some(pending) = self.pending.try_lock() else { return false };
        let mut state = self.state.lock();
        let ends = pending.is_empty() && state.has_nothing();
        if ends {
            state.key = Key::RETIRED;
        }
        ends
    }

    /// Returns true if its segments may be released.
    pub(super) fn may_release(&self) -> bool {
        !self.pool.is_kept() && !self.registry.is_captured(self.stream)
    }

    /// Adds a segment that another cache had before, as one free block.
    pub(super) fn put_back(&self, segment: Segment) {
        if let Ok(units) = units_for(segment.bytes()) {
            let now = self.registry.now();
            self.state.lock().publish(segment, units, now);
        }
    }

    pub(super) fn is_retired(&self) -> bool {
        self.state.lock().key == Key::RETIRED
    }

    /// Closes the cache of a dropped pool: it is dropped with its last block, and so is `keeper`.
    pub(super) fn close(&self, keeper: Arc<dyn Any + Send + Sync>) {
        let mut state = self.state.lock();
        state.is_closed = true;
        if state.counters.live() > 0 {
            state.keeper = Some(keeper);
        }
    }

    /// Delivers waiting entries. The caller holds the delivery lock.
    pub(super) fn flush(&self, turn: &mut Delivery) {
        let slots = {
            let mut state = self.state.lock();
            state.ring.take_outbox(&mut turn.batch);
            state.slots.clone()
        };
        turn.entries.clear();
        turn.batch.expand(self.origin(), &mut turn.entries);
        self.registry.tell(&slots, &turn.entries);
    }

    /// Delivers waiting entries before a segment is removed, so that trackers see its entries first.
    pub(super) fn settle_entries(&self) {
        self.flush(&mut self.delivery.lock());
    }

    pub(super) fn origin(&self) -> Origin {
        Origin { device: self.registry.ordinal(), pool: self.pool.id, stream: self.stream }
    }

    /// The segment and block that contain an address.
    pub(super) fn find(&self, address: u64) -> Option<AddressInfo> {
        let state = self.state.lock();
        let (segment, view) = state.fixed.find(address)?;
        Some(AddressInfo { segment: segment.clone(), block: block_state(&view, state.owner(view.id)) })
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

    fn await_uses(&self, id: BlockId, streams: &[StreamId]) {
        let waits = streams.iter().map(|stream| Wait { stream: *stream, event: self.registry.mark(*stream) });
        let pending = Pending { id, waits: waits.collect() };
        self.state.lock().newly_pending.push(pending);
    }

    fn events(&self) -> Arc<dyn StreamEvents> {
        self.registry.events.clone()
    }
}

impl Drop for StreamCache {
    /// No block is left. The segments are released by the next growth or trim; those of a re-mappable pool
    /// when the pool is dropped. A retired cache has neither.
    fn drop(&mut self) {
        let origin = self.origin();
        let Some(mut state) = self.state.clear() else { return };
        state.merge_all();
        let mut pending = std::mem::take(self.pending.get_mut());
        pending.append(&mut state.newly_pending);
        if state.shared.is_some() && state.key != Key::RETIRED {
            self.pool.leave(self.stream, pending.drain(..));
        }
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

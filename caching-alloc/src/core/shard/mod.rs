//! A shard: the memory of one stream in one pool, behind the only lock that a hit takes.
//!
//! This file takes the lock and does the work after it is released; `state` has the guarded data.

mod copy;
mod state;

use std::sync::{Arc, Weak};

pub(super) use self::copy::ShardCopy;

pub(super) use self::state::{Request, ShardState, block_state};
use super::allocator::Found;
use super::block::Block;
use super::device::{Device, Grave};
use super::entry::Entry;
use super::fixed::Fixed;
use super::front::Front;
use super::heap::{BlockId, List};
use super::lease::Leases;
use super::lock::{Rank, Ranked};
use super::pending::{NOBODY, Pending, Uses};
use super::pool::PoolCore;
use super::ring::{Batch, BlockEvent, Origin, Ring};
use super::settings::PoolKind;
use super::slot::{CacheSlot, Key, Open};
use super::stats::Tallies;
use super::stream::StreamId;
use super::symmetric::Journal;
use super::tracker::Slots;

/// Block entries that are gathered before they are delivered to trackers.
const BATCH: usize = 64;
/// From this number of entries on, an operation waits for the delivery lock.
const BACKLOG: usize = 1 << 14;

#[derive(Debug)]
pub(super) struct Shard {
    pub(super) device: Arc<Device>,
    pub(super) pool: Arc<PoolCore>,
    pub(super) stream: StreamId,
    /// The number of shards of the pool that were made before it.
    pub(super) age: u64,
    /// Its list of the pool's arena, if there is one. No other live shard has this list.
    pub(super) list: List,
    /// Freed blocks that other streams use, oldest first; [`ShardState::newly_pending`] has the newest.
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

impl Shard {
    pub(super) fn new(
        pool: Arc<PoolCore>,
        stream: StreamId,
        age: u64,
        list: List,
        slots: Slots,
    ) -> Arc<Self> {
        let device = pool.device.clone();
        let cached = matches!(pool.kind, PoolKind::Cached | PoolKind::Remappable);
        let front_bytes = if cached { device.settings.front_bytes } else { 0 };
        // In a re-mappable pool, free memory must be visible to all streams, so no long block is cached.
        let keeps_long = pool.kind == PoolKind::Cached && front_bytes > 0;
        let symmetric = match pool.kind {
            PoolKind::Symmetric { geometry, .. } => Some(Journal::new(geometry)),
            _ => None,
        };
        let mut ring = Ring::new(device.settings.ring_entries, device.born);
        ring.subscribed = !slots.is_empty();
        let origin = Origin { device: device.ordinal(), pool: pool.id, stream };
        let mut state = ShardState {
            key: Key { pool: pool.key, stream },
            origin,
            shard: Weak::new(),
            is_closed: false,
            keeper: None,
            fixed: Fixed::new(pool.splitting()),
            shared: pool.arena.as_ref().map(|arena| (arena.clone(), list)),
            one_class: !matches!(pool.kind, PoolKind::Cached),
            front: Front::new(front_bytes, keeps_long),
            leases: Leases::default(),
            uses: Uses::default(),
            newly_pending: Vec::new(),
            ring,
            slots,
            tallies: Tallies::default(),
            symmetric,
        };
        Arc::new_cyclic(|shard| {
            state.shard = shard.clone();
            let delivery = Ranked::new(Rank::Delivery, Delivery::default());
            let pending = Ranked::new(Rank::Pending, Vec::new());
            Self { device, pool, stream, age, list, pending, delivery, state: CacheSlot::take(state) }
        })
    }

    /// Allocates a block from existing memory, after merging all free memory if necessary.
    pub(super) fn hit(&self, request: Request) -> Option<Block> {
        loop {
            let mut state = self.state.lock();
            if let Some(id) = state.reserve(request.units) {
                return Some(self.state.hand_out(state, id, request, self.stream));
            }
            // Each attempt has merged a piece.
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

    /// Retires the shard for its stream, if it is empty. A thread that has already found it looks for another
    /// one. The caller holds the growth lock. Returns whether it is retired.
    pub(super) fn retire(&self) -> bool {
        // The shard is not empty if another thread settles pending blocks.
        let Some(pending) = self.pending.try_lock() else { return false };
        let mut state = self.state.lock();
        let ends = pending.is_empty() && state.has_nothing();
        if ends {
            state.key = Key::RETIRED;
        }
        ends
    }

    pub(super) fn is_retired(&self) -> bool {
        self.state.lock().key == Key::RETIRED
    }

    /// Closes the shard of a dropped pool: it is dropped with its last block.
    pub(super) fn close(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.is_closed = true;
        if state.tallies.live() > 0 {
            state.keeper = Some(self.clone());
        }
    }

    /// Delivers waiting entries to block trackers, unless another thread does or this is inside a tracker.
    #[cold]
    fn deliver(&self, waiting: usize) {
        if super::tracker::inside() {
            return;
        }
        let turn = if waiting < BACKLOG { self.delivery.try_lock() } else { Some(self.delivery.lock()) };
        if let Some(mut turn) = turn {
            self.flush(&mut turn);
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
        self.device.tell(&slots, &turn.entries);
    }

    /// Delivers waiting entries before a segment is removed, so that trackers see its entries first.
    pub(super) fn settle_entries(&self) {
        self.flush(&mut self.delivery.lock());
    }

    pub(super) fn origin(&self) -> Origin {
        Origin { device: self.device.ordinal(), pool: self.pool.id, stream: self.stream }
    }

    /// The segment and block that contain an address.
    pub(super) fn find(&self, address: u64) -> Option<Found> {
        let state = self.state.lock();
        let (segment, tile) = state.fixed.find(address)?;
        Some(Found { segment: segment.clone(), block: block_state(&tile, state.tenant(tile.id)) })
    }
}

impl CacheSlot {
    /// Allocates a block of the key's shard, if this is its slot and a block is at hand.
    #[inline]
    pub(super) fn hit(&'static self, key: Key, request: Request) -> Option<Block> {
        let mut state = self.lock_of(key)?;
        let id = state.reserve(request.units)?;
        Some(self.hand_out(state, id, request, key.stream))
    }

    /// Hands out a reserved block.
    #[inline]
    pub(super) fn hand_out(
        &'static self,
        mut state: Open<'_>,
        id: BlockId,
        request: Request,
        stream: StreamId,
    ) -> Block {
        let (address, units) = state.hand_out(id, request);
        if stream != state.origin.stream {
            // The block is lent. Its free counts as a use by `stream`, whose end the shard's stream must see.
            state.add_use(id, stream);
        }
        if state.ring.waiting() >= BATCH {
            after_hand_out(state);
        }
        Block::new(self, id, address, units, stream)
    }

    /// Frees a block.
    #[inline]
    pub(super) fn free(&self, id: BlockId) {
        let mut state = self.lock();
        if state.leases[id].uses != NOBODY && state.symmetric.is_none() {
            free_used(state, id);
            return;
        }
        state.take_back(id, BlockEvent::Free);
        if state.ring.waiting() >= BATCH || state.keeper.is_some() {
            after_free(state);
        }
    }
}

/// Delivers waiting entries to trackers.
#[cold]
fn after_hand_out(state: Open<'_>) {
    let waiting = state.ring.waiting();
    let shard = state.shard.upgrade();
    drop(state);
    if let Some(shard) = shard {
        shard.deliver(waiting);
    }
}

/// The rest of a free with waiting entries, or of the last block of a pool.
#[cold]
fn after_free(mut state: Open<'_>) {
    let waiting = state.ring.waiting();
    let keeper = if state.tallies.live() == 0 { state.keeper.take() } else { None };
    let shard = keeper.or_else(|| state.shard.upgrade());
    drop(state);
    if let Some(shard) = shard.filter(|_| waiting >= BATCH) {
        shard.deliver(waiting);
    }
}

/// Frees a block that other streams use.
#[cold]
fn free_used(mut state: Open<'_>, id: BlockId) {
    let streams = state.let_go(id);
    let keeper = if state.tallies.live() == 0 { state.keeper.take() } else { None };
    let shard = keeper.or_else(|| state.shard.upgrade());
    drop(state);
    if let Some(shard) = shard {
        shard.await_uses(id, &streams);
    }
}

impl Drop for Shard {
    /// No block is left. The segments are released by the next growth or trim; those of a re-mappable pool
    /// when the pool is dropped. A retired shard has neither.
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
        self.device.bury(Grave {
            streams: vec![self.stream],
            segments: state.fixed.segments.drain(..).flatten().collect(),
            pending,
            entries,
            slots: state.slots.clone(),
            ..Grave::default()
        });
    }
}

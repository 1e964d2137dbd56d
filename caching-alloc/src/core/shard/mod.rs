//! A shard: the memory of one stream in one pool, behind one lock, which is all that a hit takes.
//!
//! Here is who takes the lock, and what follows once it is free; `state` is what it guards.

mod state;

use std::sync::{Arc, Weak};

pub(super) use self::state::{Request, ShardState, block_state};
use super::allocator::Found;
use super::block::Block;
use super::desk::{Desk, Open};
use super::device::{Device, Grave};
use super::entry::Entry;
use super::fixed::Fixed;
use super::front::Front;
use super::heap::{BlockId, List};
use super::lease::Leases;
use super::lock::{Rank, Ranked};
use super::pending::{NOBODY, Pending, Uses};
use super::pool::PoolCore;
use super::ring::{BlockEvent, Origin, Ring};
use super::settings::PoolKind;
use super::snapshot::SegmentState;
use super::stats::Tallies;
use super::stream::StreamId;
use super::symmetric::Journal;
use super::tracker::Slots;

/// Block entries that are gathered before trackers get them.
const BATCH: usize = 64;
/// From this many on, an operation waits for its turn to deliver them.
const BACKLOG: usize = 1 << 14;

#[derive(Debug)]
pub(super) struct Shard {
    pub(super) device: Arc<Device>,
    pub(super) pool: Arc<PoolCore>,
    pub(super) stream: StreamId,
    /// Its number among the pool's shards.
    pub(super) list: List,
    /// Freed blocks that other streams use, oldest first; [`ShardState::newly_pending`] has the newest.
    pub(super) pending: Ranked<Vec<Pending>>,
    /// Held while block entries are delivered, so that they arrive in order; and where they are gathered for that.
    pub(super) delivery: Ranked<Vec<Entry>>,
    pub(super) state: &'static Desk,
}

impl Shard {
    pub(super) fn new(pool: Arc<PoolCore>, stream: StreamId, list: List, slots: Slots) -> Arc<Self> {
        let device = pool.device.clone();
        let cached = matches!(pool.kind, PoolKind::Cached | PoolKind::Remappable);
        let front_bytes = if cached { device.settings.front_bytes } else { 0 };
        // Of a re-mappable pool's memory, all streams have to see what is free.
        let keeps_long = pool.kind == PoolKind::Cached && front_bytes > 0;
        let symmetric = match pool.kind {
            PoolKind::Symmetric { geometry, .. } => Some(Journal::new(geometry)),
            _ => None,
        };
        let mut ring = Ring::new(device.settings.ring_entries, device.born);
        ring.subscribed = !slots.is_empty();
        let origin = Origin { device: device.ordinal(), pool: pool.id, stream };
        let mut state = ShardState {
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
            let delivery = Ranked::new(Rank::Delivery, Vec::new());
            let pending = Ranked::new(Rank::Pending, Vec::new());
            Self { device, pool, stream, list, pending, delivery, state: Desk::take(state) }
        })
    }

    /// A block out of what is there.
    #[inline]
    pub(super) fn hit(&self, request: Request) -> Option<Block> {
        let mut state = self.state.lock();
        let id = state.reserve(request.units)?;
        Some(self.hand_out(state, id, request, self.stream))
    }

    /// Hands out a reserved block.
    #[inline]
    pub(super) fn hand_out(
        &self,
        mut state: Open<'_>,
        id: BlockId,
        request: Request,
        stream: StreamId,
    ) -> Block {
        let (address, units) = state.hand_out(id, request);
        if stream != self.stream {
            // Lent: whoever frees it says so, and this stream has to see the end of that.
            state.add_use(id, stream);
        }
        let waiting = state.ring.waiting();
        drop(state);
        if waiting >= BATCH {
            self.deliver(waiting);
        }
        Block::new(self.state, id, address, units, stream)
    }

    /// Its pool is gone: it goes with the last block.
    pub(super) fn close(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.is_closed = true;
        if state.tallies.live() > 0 {
            state.keeper = Some(self.clone());
        }
    }

    /// Gives block trackers what is waiting for them, unless another thread does or this is a tracker.
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

    /// Delivers what is waiting. The caller holds the delivery lock.
    pub(super) fn flush(&self, turn: &mut Vec<Entry>) {
        let slots = {
            let mut state = self.state.lock();
            turn.clear();
            state.ring.empty_outbox(self.origin(), turn);
            state.slots.clone()
        };
        self.device.tell(&slots, turn);
    }

    /// Delivers what is waiting: before a segment leaves, what happened in it is told.
    pub(super) fn settle_entries(&self) {
        self.flush(&mut self.delivery.lock());
    }

    pub(super) fn origin(&self) -> Origin {
        Origin { device: self.device.ordinal(), pool: self.pool.id, stream: self.stream }
    }

    /// The segment and block that an address lies in.
    pub(super) fn find(&self, address: u64) -> Option<Found> {
        let state = self.state.lock();
        let (segment, tile) = state.fixed.find(address)?;
        Some(Found { segment: segment.clone(), block: block_state(&tile, state.tenant(tile.id)) })
    }

    /// The state of every segment.
    pub(super) fn capture(&self, state: &ShardState) -> Vec<SegmentState> {
        let segments = state.fixed.tiles().map(|(segment, tiles)| SegmentState {
            segment: segment.clone(),
            blocks: tiles.iter().map(|tile| block_state(tile, state.tenant(tile.id))).collect(),
        });
        segments.collect()
    }
}

impl Desk {
    /// Takes a block back from its owner.
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

/// The rest of a free that trackers wait for, or the last one of a pool.
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

/// A free of a block that other streams use.
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
    /// Nobody has a block any more: the segments wait for the next growth or trim to go back; those of a re-mappable
    /// pool for the pool's end.
    fn drop(&mut self) {
        let origin = self.origin();
        let Some(mut state) = self.state.clear() else { return };
        state.drain();
        let mut pending = std::mem::take(self.pending.get_mut());
        pending.append(&mut state.newly_pending);
        if state.shared.is_some() {
            self.pool.leave(self.stream, pending.drain(..));
        }
        self.device.bury(Grave {
            streams: vec![self.stream],
            segments: state.fixed.segments.drain(..).flatten().collect(),
            pending,
            entries: state.ring.take_outbox(origin),
            slots: state.slots.clone(),
            ..Grave::default()
        });
    }
}

//! A shard: the memory of one stream in one pool, behind one lock, which is all that a hit takes.

use std::collections::VecDeque;
use std::panic::Location;
use std::sync::{Arc, Weak};

use super::allocator::Found;
use super::block::Block;
use super::desk::{Desk, Open};
use super::device::{Device, Grave};
use super::entry::Entry;
use super::fixed::{Fits, Fixed, Tile};
use super::front::Front;
use super::heap::{BlockId, List};
use super::lease::{Lease, Leases, Tenancy};
use super::lock::{Rank, Ranked};
use super::pending::{NOBODY, Pending, Uses};
use super::pool::PoolCore;
use super::remap::Arena;
use super::ring::{BlockEvent, Origin, Ring};
use super::segment::{Segment, SizeClass};
use super::settings::PoolKind;
use super::size::{Units, bytes_of, class_of};
use super::snapshot::{BlockState, SegmentState, Usage};
use super::stats::{Tallies, Usages};
use super::stream::{StreamEvents, StreamId};
use super::symmetric::{Journal, OperationKind, Placement};
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
    /// Held while block entries are delivered, so that they arrive in order; and where they are gathered for that.
    pub(super) delivery: Ranked<Vec<Entry>>,
    pub(super) state: &'static Desk,
}

#[derive(Debug)]
pub(super) struct ShardState {
    pub(super) origin: Origin,
    shard: Weak<Shard>,
    /// Its pool is gone.
    pub(super) is_closed: bool,
    /// Keeps the shard then until the last block is back.
    keeper: Option<Arc<Shard>>,
    pub(super) fixed: Fixed,
    /// In a re-mappable pool instead: what all streams share, and which list is this one's.
    shared: Option<(Arc<Ranked<Arena>>, List)>,
    one_class: bool,
    front: Front,
    leases: Leases,
    pub(super) uses: Uses,
    pub(super) pending: VecDeque<Pending>,
    pub(super) ring: Ring,
    pub(super) slots: Slots,
    pub(super) tallies: Tallies,
    pub(super) symmetric: Option<Journal>,
}

/// A request, checked and rounded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) units: Units,
    pub(super) bytes: u64,
    pub(super) site: &'static Location<'static>,
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
            pending: VecDeque::new(),
            ring,
            slots,
            tallies: Tallies::default(),
            symmetric,
        };
        Arc::new_cyclic(|shard| {
            state.shard = shard.clone();
            let delivery = Ranked::new(Rank::Delivery, Vec::new());
            Self { device, pool, stream, list, delivery, state: Desk::take(state) }
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

/// Who has a leased block: what was asked for, in bytes, and where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tenant {
    requested: u64,
    usage: Usage,
    site: &'static Location<'static>,
}

/// A tile of the heap, and what it is used for.
pub(super) fn block_state(tile: &Tile, tenant: Option<Tenant>) -> BlockState {
    let Tile { address, units, is_free, .. } = *tile;
    let bytes = bytes_of(units);
    match tenant.filter(|_| !is_free) {
        Some(Tenant { requested, usage, site }) => {
            BlockState { address, bytes, requested, usage, call_site: Some(site) }
        }
        None => BlockState { address, bytes, requested: 0, usage: Usage::Inactive, call_site: None },
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
        let mut pending: Vec<Pending> = std::mem::take(&mut state.pending).into();
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

impl ShardState {
    /// The class that serves a block of that length: a pool that places by the sequence of requests, or gives each
    /// request its segment, has one class only.
    pub(super) fn class(&self, units: Units) -> SizeClass {
        if self.one_class { SizeClass::Large } else { class_of(units) }
    }

    /// Finds a block without handing it out.
    #[inline]
    pub(super) fn reserve(&mut self, units: Units) -> Option<BlockId> {
        match self.front.take(&mut self.leases, units) {
            Some(id) => Some(id),
            None => self.lease(units),
        }
    }

    /// Gets a block from the heap.
    #[inline(never)]
    fn lease(&mut self, units: Units) -> Option<BlockId> {
        self.end_long();
        let mut found = self.allocate(units);
        if found.is_none() && self.drain() {
            found = self.allocate(units);
        }
        let (block, address, units) = found?;
        self.leases.add(block, address, units);
        Some(block)
    }

    /// Gives the long block that is kept, if there is one, to the heap.
    #[inline]
    fn end_long(&mut self) {
        if let Some(long) = self.front.give_long() {
            self.end_lease(long);
        }
    }

    /// The allocator has grown once more: segments that have no block are older.
    pub(super) fn grow_older(&mut self) {
        self.end_long();
        self.fixed.grow_older();
    }

    /// From now on at most so many bytes are kept whole, or one block.
    pub(super) fn limit_kept(&mut self, bytes: u64) {
        self.front.limit_to(bytes);
    }

    /// Finds a block in memory that is for blocks of another length.
    pub(super) fn reserve_elsewhere(&mut self, units: Units) -> Option<BlockId> {
        let (arena, stream) = self.shared.as_ref()?;
        let (block, address, units) = arena.lock().allocate_elsewhere(units, *stream)?;
        self.leases.add(block, address, units);
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

    /// Ends a lease; the block is free.
    fn end_lease(&mut self, id: BlockId) {
        self.leases.end(id);
        match &self.shared {
            Some((arena, _)) => arena.lock().free(id),
            None => self.fixed.free(id),
        }
    }

    /// Puts a reserved block back.
    #[inline]
    pub(super) fn unreserve(&mut self, id: BlockId) {
        if self.front.is_full_for(self.leases[id].units) {
            self.drain();
        }
        if let Some(id) = self.front.keep(&mut self.leases, id) {
            self.end_lease(id);
        }
    }

    /// Merges all free memory. Returns whether there was any to merge.
    #[inline(never)]
    pub(super) fn drain(&mut self) -> bool {
        let Self { front, leases, fixed, shared, .. } = self;
        match shared {
            Some((arena, _)) => {
                let mut arena = arena.lock();
                front.drain(leases, |leases, id| {
                    leases.end(id);
                    arena.free(id);
                })
            }
            None => front.drain(leases, |leases, id| {
                leases.end(id);
                fixed.free(id);
            }),
        }
    }

    /// The journal of a symmetric pool enters the segment that its last request made, if it made one.
    fn enter_segment(&mut self) {
        let Some(journal) = &mut self.symmetric else { return };
        let entered = journal.segments().len();
        if let Some(Some(segment)) = self.fixed.segments.get(entered) {
            journal.enter(segment.memory());
        }
    }

    /// Adds a segment, as one free block.
    pub(super) fn publish(&mut self, segment: Segment, units: Units, now: u64) {
        self.ring.renew(now);
        self.fixed.publish(segment, units);
    }

    /// Takes out the shortest segment of the class that is one free block and has room for `units`.
    pub(super) fn withdraw_idle(&mut self, class: SizeClass, units: Units) -> Option<Segment> {
        self.drain();
        self.fixed.withdraw_idle(class, units)
    }

    /// Takes out segments that are free, newest first, of those that `fits`, until they have `wanted` bytes.
    pub(super) fn withdraw_all(&mut self, fits: Fits<'_>, wanted: u64) -> Vec<Segment> {
        self.drain();
        self.fixed.withdraw_all(fits, wanted)
    }

    /// The longest free block of the class.
    pub(super) fn longest(&mut self, class: SizeClass) -> Units {
        self.drain();
        match &self.shared {
            Some((arena, list)) => arena.lock().longest(*list),
            None => self.fixed.longest(class),
        }
    }

    /// Adds `stream` to those that use a block.
    pub(super) fn add_use(&mut self, id: BlockId, stream: StreamId) {
        let lease = &mut self.leases[id];
        lease.uses = self.uses.add(lease.uses, stream);
    }

    /// The streams of the device, as long as the shard's pool or a block keeps it.
    pub(super) fn events(&self) -> Option<Arc<dyn StreamEvents>> {
        self.shard.upgrade().map(|shard| shard.device.events.clone())
    }

    /// Who has a block, if somebody does or other streams still use it.
    pub(super) fn tenant(&self, id: BlockId) -> Option<Tenant> {
        let lease = self.leases.get(id)?;
        let usage = match lease.tenancy {
            Tenancy::Owned => Usage::Active,
            Tenancy::Pending => Usage::PendingFree,
            Tenancy::None | Tenancy::Kept => return None,
        };
        Some(Tenant { requested: lease.requested, usage, site: self.leases.site(id) })
    }

    /// The segments that a leased block lies in, at least one.
    pub(super) fn segments_of(&self, id: BlockId) -> Vec<Segment> {
        match &self.shared {
            Some((arena, _)) => arena.lock().pages_of(id),
            None => self.fixed.segment_of(id).into_iter().cloned().collect(),
        }
    }

    /// A leased block.
    pub(super) fn lease_of(&self, id: BlockId) -> &Lease {
        &self.leases[id]
    }

    /// Where a leased block was asked for.
    pub(super) fn site(&self, id: BlockId) -> &'static Location<'static> {
        self.leases.site(id)
    }

    /// A pending block's other streams are done with it.
    pub(super) fn complete(&mut self, id: BlockId) {
        self.take_back(id, BlockEvent::FreeCompleted);
    }

    /// Sums of all blocks, small and large.
    pub(super) fn usages(&self) -> (Usages, [Usages; 2]) {
        self.tallies.usages()
    }

    #[inline]
    fn hand_out(&mut self, id: BlockId, request: Request) -> (u64, Units) {
        self.leases.set_request(id, request.bytes, request.site);
        let Lease { address, units, .. } = self.leases[id];
        self.ring.push(BlockEvent::Alloc, address, units, request.bytes);
        self.tallies.hand_out(class_of(units), bytes_of(units), request.bytes);
        if self.symmetric.is_some() {
            self.log(OperationKind::Allocate, id);
            self.enter_segment();
        }
        (address, units)
    }

    /// The owner lets go, others do not yet: they are returned.
    fn let_go(&mut self, id: BlockId) -> Vec<StreamId> {
        let lease = &mut self.leases[id];
        lease.tenancy = Tenancy::Pending;
        let Lease { address, units, requested, .. } = *lease;
        let streams = self.uses.take(std::mem::replace(&mut lease.uses, NOBODY));
        self.ring.push(BlockEvent::FreeRequested, address, units, requested);
        self.tallies.let_go(class_of(units), bytes_of(units), requested);
        self.tallies.set_pending(class_of(units), bytes_of(units), true);
        streams
    }

    /// A block is free again.
    #[inline]
    fn take_back(&mut self, id: BlockId, event: BlockEvent) {
        let Lease { address, units, requested, .. } = self.leases[id];
        self.ring.push(event, address, units, requested);
        match event {
            BlockEvent::Free => self.tallies.let_go(class_of(units), bytes_of(units), requested),
            _ => self.tallies.set_pending(class_of(units), bytes_of(units), false),
        }
        if self.symmetric.is_some() {
            self.log(OperationKind::Free, id);
        }
        self.unreserve(id);
    }

    #[cold]
    fn log(&mut self, kind: OperationKind, id: BlockId) {
        let Some(journal) = &mut self.symmetric else { return };
        let lease = &self.leases[id];
        let placement = self.fixed.placement(id);
        journal.log(kind, lease.requested, Some(placement), None, self.leases.site(id));
    }

    /// Where a leased block is in its pool.
    pub(super) fn placement(&self, id: BlockId) -> Placement {
        self.fixed.placement(id)
    }
}

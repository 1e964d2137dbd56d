//! The data behind a shard's lock: its memory, the owners of its blocks, and its trace entries.

use std::panic::Location;
use std::sync::{Arc, Weak};

use super::Shard;
use crate::core::fixed::{Fits, Fixed, Tile};
use crate::core::front::Front;
use crate::core::heap::{BlockId, List};
use crate::core::lease::{Lease, Leases, Tenancy};
use crate::core::lock::Ranked;
use crate::core::pending::{NOBODY, Pending, Uses};
use crate::core::remap::Arena;
use crate::core::ring::{BlockEvent, Origin, Ring};
use crate::core::segment::{Segment, SizeClass};
use crate::core::size::{Units, bytes_of, class_of};
use crate::core::slot::Key;
use crate::core::snapshot::{BlockState, Usage};
use crate::core::stats::{PoolUsages, Tallies};
use crate::core::stream::{StreamEvents, StreamId};
use crate::core::symmetric::{Journal, OperationKind, Placement};
use crate::core::tracker::Slots;

#[derive(Debug)]
pub(in crate::core) struct ShardState {
    pub(in crate::core) key: Key,
    pub(in crate::core) origin: Origin,
    pub(super) shard: Weak<Shard>,
    /// Its pool is gone.
    pub(in crate::core) is_closed: bool,
    /// Keeps the shard of a closed pool alive until the last block is back.
    pub(super) keeper: Option<Arc<Shard>>,
    pub(in crate::core) fixed: Fixed,
    /// In a re-mappable pool instead: the arena that all streams share, and this stream's list.
    pub(super) shared: Option<(Arc<Ranked<Arena>>, List)>,
    pub(super) one_class: bool,
    pub(super) front: Front,
    pub(super) leases: Leases,
    pub(in crate::core) uses: Uses,
    /// Blocks that were freed while other streams use them, since the shard's pending list was last
    /// processed.
    pub(in crate::core) newly_pending: Vec<Pending>,
    pub(in crate::core) ring: Ring,
    pub(in crate::core) slots: Slots,
    pub(in crate::core) tallies: Tallies,
    pub(in crate::core) symmetric: Option<Journal>,
}

/// Blocks that are merged per acquisition of the lock, at most.
const PIECE: usize = 256;
/// Blocks that are evicted to make room for a freed one.
const EVICTED: usize = 32;

/// A request, checked and rounded.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct Request {
    pub(in crate::core) units: Units,
    pub(in crate::core) bytes: u64,
    pub(in crate::core) site: &'static Location<'static>,
}

/// The request of a leased block's owner: size in bytes and source location.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct Tenant {
    requested: u64,
    usage: Usage,
    site: &'static Location<'static>,
}

/// The state of a block of the heap, with its owner's request.
pub(in crate::core) fn block_state(tile: &Tile, tenant: Option<Tenant>) -> BlockState {
    let Tile { address, units, is_free, .. } = *tile;
    let bytes = bytes_of(units);
    match tenant.filter(|_| !is_free) {
        Some(Tenant { requested, usage, site }) => {
            BlockState { address, bytes, requested, usage, call_site: Some(site) }
        }
        None => BlockState { address, bytes, requested: 0, usage: Usage::Inactive, call_site: None },
    }
}

impl ShardState {
    /// The class for a block of this length. A pool that places by the sequence of requests, or gives each
    /// request its own segment, has one class only.
    pub(in crate::core) fn class(&self, units: Units) -> SizeClass {
        if self.one_class { SizeClass::Large } else { class_of(units) }
    }

    /// Finds a block without handing it out.
    #[inline]
    pub(in crate::core) fn reserve(&mut self, units: Units) -> Option<BlockId> {
        match self.front.take(&mut self.leases, units) {
            Some(id) => Some(id),
            None => self.lease(units),
        }
    }

    /// Takes a block from the heap.
    #[inline(never)]
    fn lease(&mut self, units: Units) -> Option<BlockId> {
        self.end_long();
        let found = self.allocate(units).or_else(|| {
            self.merge_some();
            self.allocate(units)
        });
        let (block, address, units) = found?;
        self.leases.add(block, address, units);
        Some(block)
    }

    /// Gives the cached long block, if there is one, to the heap.
    #[inline]
    fn end_long(&mut self) {
        if let Some(long) = self.front.give_long() {
            self.end_lease(long);
        }
    }

    /// Counts one growth of the allocator: segments without blocks become older.
    pub(in crate::core) fn grow_older(&mut self) {
        self.end_long();
        self.fixed.grow_older();
    }

    /// Limits the cached bytes from now on; one block is always cached.
    pub(in crate::core) fn limit_kept(&mut self, bytes: u64) {
        self.front.limit_to(bytes);
    }

    /// Finds a block in memory of the other tier, for blocks of another length.
    pub(in crate::core) fn reserve_elsewhere(&mut self, units: Units) -> Option<BlockId> {
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
    pub(in crate::core) fn unreserve(&mut self, id: BlockId) {
        let units = self.leases[id].units;
        let is_kept = !self.front.is_full_for(units) || {
            self.give_up(|front, leases, give| front.evict(leases, EVICTED, give));
            !self.front.is_full_for(units)
        };
        let rest = if is_kept { self.front.keep(&mut self.leases, id) } else { Some(id) };
        if let Some(id) = rest {
            self.end_lease(id);
        }
    }

    /// Returns true if any block is cached that could be merged.
    pub(in crate::core) fn keeps_any(&self) -> bool {
        self.front.keeps_any()
    }

    /// Merges a bounded part of the cached blocks. Returns whether more are left.
    pub(in crate::core) fn merge_some(&mut self) -> bool {
        self.front.keeps_any() && self.give_up(|front, leases, give| front.drain(leases, PIECE, give))
    }

    /// Merges all free memory. [`Shard::merge`] does the same with short lock times.
    pub(in crate::core) fn merge_all(&mut self) {
        while self.merge_some() {}
    }

    /// Moves blocks from the front to the heap.
    #[inline(never)]
    fn give_up<R>(
        &mut self,
        give_up: impl FnOnce(&mut Front, &mut Leases, &mut dyn FnMut(&mut Leases, BlockId)) -> R,
    ) -> R {
        let Self { front, leases, fixed, shared, .. } = self;
        match shared {
            Some((arena, _)) => {
                let mut arena = arena.lock();
                give_up(front, leases, &mut |leases, id| {
                    leases.end(id);
                    arena.free(id);
                })
            }
            None => give_up(front, leases, &mut |leases, id| {
                leases.end(id);
                fixed.free(id);
            }),
        }
    }

    /// Adds the segment that the last request made, if it made one, to the journal of a symmetric pool.
    fn enter_segment(&mut self) {
        let Some(journal) = &mut self.symmetric else { return };
        let entered = journal.segments().len();
        if let Some(Some(segment)) = self.fixed.segments.get(entered) {
            journal.enter(segment.memory());
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
        self.tallies.active() == 0
            && self.newly_pending.is_empty()
            && self.ring.waiting() == 0
            && self.symmetric.is_none()
            && self.fixed.is_empty()
    }

    /// Adds `stream` to those that use a block.
    pub(in crate::core) fn add_use(&mut self, id: BlockId, stream: StreamId) {
        let lease = &mut self.leases[id];
        lease.uses = self.uses.add(lease.uses, stream);
    }

    /// The streams and events of the device, as long as the shard's pool or a block keeps it.
    pub(in crate::core) fn events(&self) -> Option<Arc<dyn StreamEvents>> {
        self.shard.upgrade().map(|shard| shard.device.events.clone())
    }

    /// The request of a block's owner, if the block is handed out or still in use by other streams.
    pub(in crate::core) fn tenant(&self, id: BlockId) -> Option<Tenant> {
        let lease = self.leases.get(id)?;
        let usage = match lease.tenancy {
            Tenancy::Owned => Usage::Active,
            Tenancy::Pending => Usage::PendingFree,
            Tenancy::None | Tenancy::Kept => return None,
        };
        Some(Tenant { requested: lease.requested, usage, site: self.leases.site(id) })
    }

    /// The segments that contain a leased block, at least one.
    pub(in crate::core) fn segments_of(&self, id: BlockId) -> Vec<Segment> {
        match &self.shared {
            Some((arena, _)) => arena.lock().pages_of(id),
            None => self.fixed.segment_of(id).into_iter().cloned().collect(),
        }
    }

    /// A leased block.
    pub(in crate::core) fn lease_of(&self, id: BlockId) -> &Lease {
        &self.leases[id]
    }

    /// The source location of the request for a leased block.
    pub(in crate::core) fn site(&self, id: BlockId) -> &'static Location<'static> {
        self.leases.site(id)
    }

    /// Frees a pending block whose other streams are done with it.
    pub(in crate::core) fn complete(&mut self, id: BlockId) {
        self.take_back(id, BlockEvent::FreeCompleted);
    }

    /// Sums of all blocks, small and large.
    pub(in crate::core) fn usages(&self) -> PoolUsages {
        self.tallies.usages()
    }

    #[inline]
    pub(super) fn hand_out(&mut self, id: BlockId, request: Request) -> (u64, Units) {
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

    /// Marks a block as freed by its owner while other streams use it; returns these streams.
    pub(super) fn let_go(&mut self, id: BlockId) -> Vec<StreamId> {
        self.leases.set(id, Tenancy::Pending);
        let lease = &mut self.leases[id];
        let Lease { address, units, requested, .. } = *lease;
        let streams = self.uses.take(std::mem::replace(&mut lease.uses, NOBODY));
        self.ring.push(BlockEvent::FreeRequested, address, units, requested);
        self.tallies.let_go(class_of(units), bytes_of(units), requested);
        self.tallies.set_pending(class_of(units), bytes_of(units), true);
        streams
    }

    /// Frees a block.
    #[inline]
    pub(super) fn take_back(&mut self, id: BlockId, event: BlockEvent) {
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
        journal.log(kind, lease.requested, Some(placement), self.leases.site(id));
    }

    /// The place of a leased block in its pool.
    pub(in crate::core) fn placement(&self, id: BlockId) -> Placement {
        self.fixed.placement(id)
    }
}

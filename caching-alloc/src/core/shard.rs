//! A shard: the memory of one stream in one pool, behind one lock, which is all that a hit takes.

use std::collections::VecDeque;
use std::panic::Location;
use std::sync::Arc;

use super::allocator::Found;
use super::block::Block;
use super::device::{Device, Grave};
use super::front::Front;
use super::heap::{BlockId, Heap, NONE, Record, State};
use super::lock::{Guard, Rank, Ranked};
use super::pending::{Pending, Uses};
use super::pool::PoolCore;
use super::ring::{BlockEvent, Origin, Ring};
use super::segment::{Segment, SizeClass};
use super::settings::PoolKind;
use super::size::{UNIT, Units, bytes_of, class_of};
use super::snapshot::{BlockState, SegmentState, Usage};
use super::stats::Usages;
use super::stream::StreamId;
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
    /// Held while block entries are delivered, so that they arrive in order.
    pub(super) delivery: Ranked<()>,
    pub(super) state: Ranked<ShardState>,
}

#[derive(Debug)]
pub(super) struct ShardState {
    pub(super) heap: Heap,
    front: Front,
    /// By the heap's ordinals.
    pub(super) segments: Vec<Option<Segment>>,
    bases: Vec<u64>,
    pub(super) uses: Uses,
    pub(super) pending: VecDeque<Pending>,
    pub(super) ring: Ring,
    pub(super) slots: Slots,
    all: Usages,
    classes: [Usages; 2],
    split: bool,
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
    pub(super) fn new(pool: Arc<PoolCore>, stream: StreamId, slots: Slots) -> Self {
        let device = pool.device.clone();
        let cached = matches!(pool.kind, PoolKind::Cached);
        let symmetric = match pool.kind {
            PoolKind::Symmetric { geometry, .. } => Some(Journal::new(geometry)),
            _ => None,
        };
        let mut ring = Ring::new(device.settings.ring_entries);
        ring.clock = device.now();
        ring.subscribed = !slots.is_empty();
        let state = ShardState {
            heap: Heap::default(),
            front: Front::new(if cached { device.settings.front_bytes } else { 0 }),
            segments: Vec::new(),
            bases: Vec::new(),
            uses: Uses::default(),
            pending: VecDeque::new(),
            ring,
            slots,
            all: Usages::default(),
            classes: Default::default(),
            split: !matches!(pool.kind, PoolKind::NoSplit),
            symmetric,
        };
        Self {
            device,
            pool,
            stream,
            delivery: Ranked::new(Rank::Delivery, ()),
            state: Ranked::new(Rank::Shard, state),
        }
    }

    /// The class that serves a block of that length: a pool that places by the sequence of requests, or gives each
    /// request its segment, has one class only.
    pub(super) fn class(&self, units: Units) -> SizeClass {
        if matches!(self.pool.kind, PoolKind::Cached) { class_of(units) } else { SizeClass::Large }
    }

    /// A block out of what is there.
    pub(super) fn hit(self: &Arc<Self>, request: Request) -> Option<Block> {
        let mut state = self.state.lock();
        let id = state.reserve(request.units, self.class(request.units))?;
        Some(self.hand_out(state, id, request, self.stream))
    }

    /// Hands out a reserved block.
    pub(super) fn hand_out(
        self: &Arc<Self>,
        mut state: Guard<'_, ShardState>,
        id: BlockId,
        request: Request,
        stream: StreamId,
    ) -> Block {
        let (address, due) = state.hand_out(id, request);
        if stream != self.stream {
            // Lent: whoever frees it says so, and this stream has to see the end of that.
            state.add_use(id, stream);
        }
        let bytes = bytes_of(state.heap.block(id).units);
        if due {
            state.ring.clock = self.device.now();
        }
        let waiting = state.ring.waiting();
        drop(state);
        if waiting >= BATCH {
            self.deliver(waiting);
        }
        Block::new(self.clone(), id, address, bytes, stream, request)
    }

    /// Takes a block back from its owner.
    pub(super) fn free(&self, id: BlockId, site: &'static Location<'static>) {
        let mut state = self.state.lock();
        if state.heap.block(id).uses != NONE && state.symmetric.is_none() {
            let streams = state.let_go(id);
            drop(state);
            self.await_uses(id, &streams);
            return;
        }
        let due = state.take_back(id, BlockEvent::Free, site);
        if due {
            state.ring.clock = self.device.now();
        }
        let waiting = state.ring.waiting();
        drop(state);
        if waiting >= BATCH {
            self.deliver(waiting);
        }
    }

    /// Gives block trackers what is waiting for them, unless another thread does or this is a tracker.
    fn deliver(&self, waiting: usize) {
        if super::tracker::inside() {
            return;
        }
        let turn = if waiting < BACKLOG { self.delivery.try_lock() } else { Some(self.delivery.lock()) };
        if let Some(turn) = turn {
            self.flush(&turn);
        }
    }

    /// Delivers what is waiting. The caller holds the delivery lock.
    pub(super) fn flush(&self, _turn: &Guard<'_, ()>) {
        let (entries, slots) = {
            let mut state = self.state.lock();
            (state.ring.take_outbox(self.origin()), state.slots.clone())
        };
        self.device.tell(&slots, &entries);
    }

    /// Delivers what is waiting: before a segment leaves, what happened in it is told.
    pub(super) fn settle_entries(&self) {
        self.flush(&self.delivery.lock());
    }

    pub(super) fn origin(&self) -> Origin {
        Origin { device: self.device.ordinal(), pool: self.pool.id, stream: self.stream }
    }

    /// The segment and block that an address lies in.
    pub(super) fn find(&self, address: u64) -> Option<Found> {
        let state = self.state.lock();
        let (ordinal, segment) = state.segments.iter().enumerate().find_map(|(ordinal, segment)| {
            let segment = segment.as_ref()?;
            (segment.address()..segment.memory().end()).contains(&address).then_some((ordinal, segment))
        })?;
        let offset = u32::try_from((address - segment.address()) / UNIT).ok()?;
        let id = state.heap.block_over(u32::try_from(ordinal).ok()?, offset)?;
        Some(Found { segment: segment.clone(), block: block_state(segment.address(), state.heap.block(id)) })
    }

    /// The state of every segment.
    pub(super) fn capture(&self, state: &ShardState) -> Vec<SegmentState> {
        let segments = state.segments.iter().enumerate().filter_map(|(ordinal, segment)| {
            let segment = segment.clone()?;
            let base = segment.address();
            let blocks = state.heap.blocks(u32::try_from(ordinal).ok()?);
            let blocks = blocks.map(|(_, block)| block_state(base, block));
            Some(SegmentState { blocks: blocks.collect(), segment })
        });
        segments.collect()
    }
}

fn block_state(base: u64, block: &Record) -> BlockState {
    BlockState {
        address: base + bytes_of(block.offset),
        bytes: bytes_of(block.units),
        requested: block.requested,
        usage: match block.state {
            State::Used => Usage::Active,
            State::Pending => Usage::PendingFree,
            State::Free | State::Kept | State::Spare => Usage::Inactive,
        },
    }
}

impl Drop for Shard {
    /// Nobody has a block any more: the segments wait for the next growth or trim to go back.
    fn drop(&mut self) {
        let origin = self.origin();
        let state = self.state.get_mut();
        self.device.bury(Grave {
            stream: self.stream,
            segments: state.segments.drain(..).flatten().collect(),
            pending: std::mem::take(&mut state.pending).into(),
            entries: state.ring.take_outbox(origin),
            slots: state.slots.clone(),
        });
    }
}

impl ShardState {
    /// Finds a block without handing it out.
    pub(super) fn reserve(&mut self, units: Units, class: SizeClass) -> Option<BlockId> {
        let Self { heap, front, split, .. } = self;
        if let Some(id) = front.take(heap, units) {
            return Some(id);
        }
        if let Some(id) = heap.allocate(units, class, *split) {
            return Some(id);
        }
        if front.drain(heap) { heap.allocate(units, class, *split) } else { None }
    }

    /// Puts a reserved block back.
    pub(super) fn unreserve(&mut self, id: BlockId) {
        self.front.put(&mut self.heap, id);
    }

    /// Merges all free memory.
    pub(super) fn drain(&mut self) {
        self.front.drain(&mut self.heap);
    }

    /// The journal of a symmetric pool enters the segment that its last request made, if it made one.
    fn enter_segment(&mut self) {
        let Some(journal) = &mut self.symmetric else { return };
        let entered = journal.segments().len();
        if let Some(Some(segment)) = self.segments.get(entered) {
            journal.enter(segment.memory());
        }
    }

    /// Adds a segment, as one free block.
    pub(super) fn publish(&mut self, segment: Segment, units: Units, now: u64) {
        self.ring.clock = self.ring.clock.max(now);
        self.heap.add_segment(units, segment.class());
        self.bases.push(segment.address());
        self.segments.push(Some(segment));
    }

    /// Takes out a segment that is one free block.
    pub(super) fn withdraw(&mut self, ordinal: usize) -> Option<Segment> {
        let removed = self.heap.remove_segment(u32::try_from(ordinal).ok()?);
        if removed { self.segments[ordinal].take() } else { None }
    }

    /// Takes out the shortest segment of the class that is one free block and has room for `units`.
    pub(super) fn withdraw_idle(&mut self, class: SizeClass, units: Units) -> Option<Segment> {
        self.drain();
        let idle = self.segments.iter().enumerate().filter(|(ordinal, segment)| {
            segment
                .as_ref()
                .is_some_and(|segment| segment.class() == class && segment.bytes() >= bytes_of(units))
                && u32::try_from(*ordinal).is_ok_and(|ordinal| self.heap.is_free(ordinal))
        });
        let (_, ordinal) =
            idle.filter_map(|(ordinal, segment)| Some((segment.as_ref()?.bytes(), ordinal))).min()?;
        self.withdraw(ordinal)
    }

    /// The longest free block of the class.
    pub(super) fn longest(&mut self, class: SizeClass) -> Units {
        self.drain();
        self.heap.longest_free(class)
    }

    /// Bytes of all segments of the class.
    pub(super) fn reserved(&self, class: SizeClass) -> u64 {
        self.segments.iter().flatten().filter(|segment| segment.class() == class).map(Segment::bytes).sum()
    }

    /// Adds `stream` to those that use a block.
    pub(super) fn add_use(&mut self, id: BlockId, stream: StreamId) {
        let block = self.heap.block_mut(id);
        block.uses = self.uses.add(block.uses, stream);
    }

    /// Where a block is.
    pub(super) fn address(&self, id: BlockId) -> u64 {
        let block = self.heap.block(id);
        self.bases[block.segment as usize] + bytes_of(block.offset)
    }

    /// Where a block is in its pool.
    pub(super) fn placement(&self, id: BlockId) -> Placement {
        let block = self.heap.block(id);
        Placement { ordinal: block.segment, offset: bytes_of(block.offset) }
    }

    /// A pending block's other streams are done with it.
    pub(super) fn complete(&mut self, id: BlockId) {
        self.take_back(id, BlockEvent::FreeCompleted, Location::caller());
    }

    /// Sums of all blocks, small and large.
    pub(super) fn usages(&self) -> (Usages, [Usages; 2]) {
        (self.all, self.classes)
    }

    fn hand_out(&mut self, id: BlockId, request: Request) -> (u64, bool) {
        let address = self.address(id);
        let block = self.heap.block_mut(id);
        block.requested = request.bytes;
        let units = block.units;
        let due = self.ring.push(BlockEvent::Alloc, address, units, request.bytes);
        for usages in [&mut self.all, &mut self.classes[class_of(units) as usize]] {
            usages.blocks.add(1);
            usages.allocated.add(bytes_of(units));
            usages.requested.add(request.bytes);
            usages.active.add(bytes_of(units));
        }
        self.log(OperationKind::Allocate, id, request.site);
        self.enter_segment();
        (address, due)
    }

    /// The owner lets go, others do not yet: they are returned.
    fn let_go(&mut self, id: BlockId) -> Vec<StreamId> {
        let address = self.address(id);
        let block = self.heap.block_mut(id);
        block.state = State::Pending;
        let (units, requested) = (block.units, block.requested);
        let streams = self.uses.take(std::mem::replace(&mut block.uses, NONE));
        self.ring.push(BlockEvent::FreeRequested, address, units, requested);
        for usages in [&mut self.all, &mut self.classes[class_of(units) as usize]] {
            usages.blocks.sub(1);
            usages.allocated.sub(bytes_of(units));
            usages.requested.sub(requested);
        }
        streams
    }

    /// A block is free again.
    fn take_back(&mut self, id: BlockId, event: BlockEvent, site: &'static Location<'static>) -> bool {
        let address = self.address(id);
        let block = self.heap.block(id);
        let (units, requested) = (block.units, block.requested);
        let due = self.ring.push(event, address, units, requested);
        for usages in [&mut self.all, &mut self.classes[class_of(units) as usize]] {
            usages.active.sub(bytes_of(units));
            if event == BlockEvent::Free {
                usages.blocks.sub(1);
                usages.allocated.sub(bytes_of(units));
                usages.requested.sub(requested);
            }
        }
        self.log(OperationKind::Free, id, site);
        self.front.put(&mut self.heap, id);
        due
    }

    fn log(&mut self, kind: OperationKind, id: BlockId, site: &'static Location<'static>) {
        let Some(journal) = &mut self.symmetric else { return };
        let block = self.heap.block(id);
        let placement = Placement { ordinal: block.segment, offset: bytes_of(block.offset) };
        journal.log(kind, block.requested, Some(placement), None, site);
    }
}

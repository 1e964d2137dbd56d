//! A pool's memory, its owners, and the pins that keep blocks and segments allocated for graphs.
//!
//! The owners of the memory are the pool, its blocks, its graph pins, the graphs that use the memory, the communicators
//! that have registered its segments, and the lists of [mapped segments](crate::membership::MappedSegments) that
//! contain its segments. The drop of the last owner frees the segments, so no window outlives its memory. Only
//! [retired](crate::SymmetricPool::retire) segments are freed earlier, once all ranks have reported that nothing can
//! access them.
//!
//! A pin keeps blocks and their segments allocated for a graph. Every call of `process_group` and of this crate that
//! enqueues work into a capture pins the blocks that this work uses ([`MemoryOwner::used_by_graph`]). The graph and its
//! executables own the pin. If another library began the capture, its graph cannot own a pin. Then the memory is added
//! to the pins of all declared captures ([`PoolCapture`](crate::PoolCapture)) in progress. If none is in progress, the
//! memory is pinned forever, and even the drop of the last owner does not free the segments.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use caching_alloc::core::symmetric::{Placed, Placement, SymmetricArena, SymmetricSegment};
use cuda_driver::{
    Context, DevicePtr, Stream,
    graph::captures_of_this_thread,
    graph_memory::{self, MemoryOwner},
};
use process_group::group::places_changed;

use super::{
    attachments::Attachments,
    dropped::{Added, DroppedOn},
};
use crate::{agreement::PoolId, idle::after, lock::lock};

/// The segments and blocks that one pin keeps allocated.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct PinnedUses {
    segments: BTreeSet<u32>,
    blocks: BTreeSet<Placement>,
}

/// The pins of captures and graphs.
#[derive(Debug, Default)]
pub(super) struct Pins {
    /// The number of the last pin.
    last: u64,
    /// The memory that each pin keeps, by the number of the pin.
    used: BTreeMap<u64, PinnedUses>,
    /// The numbers of the pins of declared captures in progress.
    declared: BTreeSet<u64>,
    /// The owners of the pins of graphs, by the driver's id of the graph's capture.
    graphs: BTreeMap<u64, Weak<GraphHold>>,
    /// The blocks that are pinned, or have more than one owner.
    blocks: BTreeMap<Placement, BlockUses>,
}

/// The longest time for which the drop of the memory blocks its thread, to wait for work that may use dropped slices.
const PATIENCE: Duration = Duration::from_secs(10);

/// The number of the pin that is never removed. It pins memory for graphs that cannot own a pin.
const FOR_GOOD: u64 = 0;

impl Pins {
    /// Makes a new pin without segments and blocks, and returns its number.
    fn pin(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Adds segment `ordinal` and these blocks to `pin`.
    fn hold(&mut self, pin: u64, ordinal: u32, blocks: &[Placement]) {
        let used = self.used.entry(pin).or_default();
        used.segments.insert(ordinal);
        for block in blocks {
            if used.blocks.insert(*block) {
                self.blocks.entry(*block).or_default().pins += 1;
            }
        }
    }

    /// The pins that keep the memory of a graph that cannot own a pin: those of the declared captures in progress, or
    /// [`FOR_GOOD`] if there are none.
    fn without_graph(&self) -> Vec<u64> {
        if self.declared.is_empty() { vec![FOR_GOOD] } else { self.declared.iter().copied().collect() }
    }

    /// Removes `pin`. Returns the blocks that the caller must free now, because they have no other pin and no owner.
    fn unpin(&mut self, pin: u64) -> Vec<DroppedBlock> {
        self.declared.remove(&pin);
        self.graphs.retain(|_, hold| hold.strong_count() > 0);
        let PinnedUses { blocks, .. } = self.used.remove(&pin).unwrap_or_default();
        let mut freed = Vec::new();
        for block in blocks {
            let Some(uses) = self.blocks.get_mut(&block) else { continue };
            uses.pins = uses.pins.saturating_sub(1);
            if !uses.is_needed() {
                freed.extend(self.blocks.remove(&block).and_then(|uses| uses.dropped));
            }
        }
        freed
    }
}

/// The owner of a pin: the drop of this value removes the pin. It is held by a graph and its executables, or by a
/// declared capture and afterwards by that capture's [`GraphPin`](crate::GraphPin).
#[derive(Debug)]
pub struct GraphHold {
    pub(super) memory: Arc<PoolMemory>,
    /// The number of the pin.
    pub pin: u64,
}

impl Drop for GraphHold {
    fn drop(&mut self) {
        self.memory.unpin(self.pin);
    }
}

/// A block without owners.
#[derive(Debug)]
struct DroppedBlock {
    placed: Placed,
    /// If the block was a slice's: the stream whose work uses the block until it is freed.
    stream: Option<Stream>,
}

/// The pins and owners of a block that is pinned, or has more than one owner.
#[derive(Debug, Default)]
struct BlockUses {
    /// Number of pins.
    pins: u64,
    /// Number of owners besides the first one.
    further_owners: u64,
    /// The block, once its last owner has dropped it. The removal of its last pin then frees the block.
    dropped: Option<DroppedBlock>,
}

impl BlockUses {
    fn is_needed(&self) -> bool {
        self.pins > 0 || self.further_owners > 0
    }
}

struct LockedState {
    arena: SymmetricArena,
    pins: Pins,
}

/// The memory of a pool: its segments, with their blocks and pins.
pub struct PoolMemory {
    me: Weak<Self>,
    attachments: Attachments,
    id: PoolId,
    context: Option<Context>,
    /// `None` only during drop.
    locked: Mutex<Option<LockedState>>,
    /// The number of declared captures in progress. Outside of `locked`, so that look-ups can read it without the lock.
    capturing: AtomicU32,
    /// True once the program has dropped the pool. Other owners may still keep this memory allocated.
    is_orphaned: AtomicBool,
    /// The streams whose work may still use blocks of dropped slices.
    dropped_on: DroppedOn,
}

impl PoolMemory {
    /// Makes the memory of pool `id` with the segments of `arena`. `context` is the context of the pool's device. It is
    /// `None` if the caller has provided the source of the segments
    /// ([`SymmetricPool::with_source`](crate::SymmetricPool::with_source)).
    pub(crate) fn new(id: PoolId, context: Option<Context>, arena: SymmetricArena) -> Arc<Self> {
        let locked = Mutex::new(Some(LockedState { arena, pins: Pins::default() }));
        let memory = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            attachments: Attachments::default(),
            id,
            context,
            locked,
            capturing: AtomicU32::default(),
            is_orphaned: AtomicBool::default(),
            dropped_on: DroppedOn::default(),
        });
        graph_memory::register(memory.me.clone());
        memory
    }

    pub(crate) fn id(&self) -> PoolId {
        self.id
    }

    /// The context of the pool's device. `None` for a pool that was made with a source instead of a context.
    pub(crate) fn context(&self) -> Option<&Context> {
        self.context.as_ref()
    }

    pub(crate) fn dropped_on(&self) -> &DroppedOn {
        &self.dropped_on
    }

    pub(crate) fn attachments(&self) -> &Attachments {
        &self.attachments
    }

    /// Notes that the program has dropped the pool.
    pub(crate) fn orphan(&self) {
        self.is_orphaned.store(true, Ordering::Release);
    }

    /// Returns whether the program has dropped the pool. Until it has, the drop of a block does not free the segments.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.is_orphaned.load(Ordering::Acquire)
    }

    /// Locks the arena. Returns a guard instead of running a closure: the arena's log records the source line of the
    /// request by `#[track_caller]`, which does not pass through closures.
    pub fn arena(&self) -> Arena<'_> {
        Arena(lock(&self.locked))
    }

    /// Returns whether a declared capture is in progress.
    #[inline]
    pub(crate) fn is_capturing(&self) -> bool {
        self.capturing.load(Ordering::Relaxed) > 0
    }

    /// Begins a declared capture, and returns its pin.
    pub(super) fn begin_capture(&self) -> u64 {
        let mut arena = self.arena();
        arena.freeze();
        self.capturing.fetch_add(1, Ordering::Relaxed);
        let pins = arena.pins();
        let pin = pins.pin();
        pins.declared.insert(pin);
        pin
    }

    /// Ends a declared capture, but does not remove its pin. Returns the segments of the pin.
    pub(super) fn end_capture(&self, pin: u64) -> Vec<u32> {
        let mut arena = self.arena();
        arena.unfreeze();
        self.capturing.fetch_sub(1, Ordering::Relaxed);
        let pins = arena.pins();
        pins.declared.remove(&pin);
        pins.used.get(&pin).map(|used| used.segments.iter().copied().collect()).unwrap_or_default()
    }

    /// Adds the segment and the blocks of the `bytes` bytes at `place` to the pins of all declared captures in
    /// progress: it is unknown which of them uses these blocks.
    #[cold]
    pub(crate) fn note_use(&self, place: Placement, bytes: u64) {
        let mut arena = self.arena();
        let blocks = arena.blocks_over(place, bytes);
        let pins = arena.pins();
        let declared: Vec<u64> = pins.declared.iter().copied().collect();
        declared.into_iter().for_each(|pin| pins.hold(pin, place.ordinal, &blocks));
    }

    /// Removes a pin. Frees the blocks that have no other pin and no owner.
    pub(super) fn unpin(&self, pin: u64) {
        let mut arena = self.arena();
        let unpinned = arena.pins().unpin(pin);
        let streams: Vec<_> = unpinned.into_iter().filter_map(|block| self.free(&mut arena, block)).collect();
        drop(arena);
        streams.into_iter().for_each(Added::record);
    }

    /// Frees `block`, which has no pin. If it was a slice's block, the next user of the memory waits for the slice's
    /// stream. The caller [records](Added::record) the returned event once it has released the lock.
    fn free(&self, arena: &mut Arena<'_>, block: DroppedBlock) -> Option<Added> {
        let added = block.stream.map(|stream| self.dropped_on.add(stream));
        let freed = arena.free(&block.placed);
        // Cannot fail: the arena has placed the block, and the block is freed only once (when its last owner drops it,
        // or when its last pin is removed).
        debug_assert!(freed.is_ok(), "{freed:?}");
        added
    }

    /// Returns the pin of the graph that the capture with the driver's id `capture` makes. Creates the pin if there is
    /// none. Returns `None` while this memory is being dropped.
    pub fn graph_hold(&self, capture: u64) -> Option<Arc<GraphHold>> {
        let memory = self.me.upgrade()?;
        let mut arena = self.arena();
        let pins = arena.pins();
        if let Some(hold) = pins.graphs.get(&capture).and_then(Weak::upgrade) {
            return Some(hold);
        }
        let hold = Arc::new(GraphHold { memory, pin: pins.pin() });
        pins.graphs.insert(capture, Arc::downgrade(&hold));
        Some(hold)
    }

    /// Pins segment `ordinal`, but not this rank's blocks in it, for the graph that `stream` captures. Used for a graph
    /// that accesses a peer's segment with this ordinal. All ranks retire the segment together, so the pin of this
    /// rank's segment also keeps the peer's segment mapped.
    pub(crate) fn segment_used_by_graph(&self, ordinal: u32, stream: &Stream) -> cuda_driver::Result<()> {
        self.pin_for_graph(stream, |arena, pins| {
            pins.iter().for_each(|pin| arena.pins().hold(*pin, ordinal, &[]));
        })
    }

    /// If `stream` is capturing, calls `hold` with the pins for the graph of the capture. `hold` adds memory to these
    /// pins.
    fn pin_for_graph(
        &self,
        stream: &Stream,
        hold: impl Fn(&mut Arena<'_>, &[u64]),
    ) -> cuda_driver::Result<()> {
        // Only an active capture has an id. An invalidated capture gives no graph, so it needs no pin.
        let Some(capture) = stream.capture_info()?.id else { return Ok(()) };
        let Some(graph) = self.graph_hold(capture) else { return Ok(()) };
        hold(&mut self.arena(), &[graph.pin]);
        // If the captured graph cannot own this pin, other pins must keep the memory. Add it to them before the drop of
        // `graph` removes this pin.
        if !stream.keep_in_graph(graph.clone())? {
            self.hold_without_graph(hold);
        }
        Ok(())
    }

    /// Calls `hold` with the pins that keep the memory of a graph that cannot own a pin.
    fn hold_without_graph(&self, hold: impl Fn(&mut Arena<'_>, &[u64])) {
        // One lock for both steps: a pin that is removed in between would be made again, and nothing would remove it.
        let mut arena = self.arena();
        let pins = arena.pins().without_graph();
        hold(&mut arena, &pins);
    }

    /// Pins the `bytes` bytes at `address` for the captures that this thread has begun.
    #[cold]
    pub(super) fn pin_for_captures(&self, address: u64, bytes: u64) {
        for stream in captures_of_this_thread() {
            let may_use_pool = self.context.as_ref().is_none_or(|context| stream.context() == context);
            if may_use_pool && self.used_by_graph(DevicePtr(address), bytes, &stream).is_err() {
                // The driver failed to report the stream's capture. Assume that there is one, which cannot own a pin.
                self.hold_without_graph(|arena, pins| arena.hold_range(pins, address, bytes));
            }
        }
    }

    /// Adds one owner to the block at `place`.
    pub(super) fn share_block(&self, place: Placement) {
        self.arena().pins().blocks.entry(place).or_default().further_owners += 1;
    }

    /// Removes one owner of the block at `placed`. If this was the last owner, the block is freed: now if it is not
    /// pinned, otherwise when its last pin is removed. If it is a slice's block, work on `stream` uses it until then.
    pub(super) fn drop_block(&self, placed: Placed, stream: Option<Stream>) {
        let mut arena = self.arena();
        let blocks = &mut arena.pins().blocks;
        if let Some(uses) = blocks.get_mut(&placed.placement) {
            if uses.further_owners == 0 {
                uses.dropped = Some(DroppedBlock { placed, stream });
                return;
            }
            uses.further_owners -= 1;
            if !uses.is_needed() {
                blocks.remove(&placed.placement);
            }
            return;
        }
        let added = self.free(&mut arena, DroppedBlock { placed, stream });
        drop(arena);
        if let Some(added) = added {
            added.record();
        }
    }
}

impl MemoryOwner for PoolMemory {
    fn used_by_graph(
        &self,
        DevicePtr(address): DevicePtr,
        bytes: u64,
        stream: &Stream,
    ) -> cuda_driver::Result<()> {
        let has_driver_of = |context: &Context| stream.context().driver().is_same(context.driver());
        let may_use_pool = self.context.as_ref().is_none_or(has_driver_of);
        if !may_use_pool || self.arena().places(address, bytes).is_empty() {
            return Ok(());
        }
        self.pin_for_graph(stream, |arena, pins| arena.hold_range(pins, address, bytes))
    }
}

/// The locked arena of a pool.
pub struct Arena<'a>(MutexGuard<'a, Option<LockedState>>);

/// The message of a panic that cannot occur: [`PoolMemory::locked`] is `None` only while the memory is being dropped,
/// and an [`Arena`] borrows the memory.
const THERE: &str = "the arena is there while the memory is";

impl Arena<'_> {
    /// The number of pins of segment `ordinal`: one for each declared capture, [`GraphPin`](crate::GraphPin) or graph
    /// that uses the segment, and one more if the segment is pinned forever ([`FOR_GOOD`]).
    pub(crate) fn graphs_of(&self, ordinal: u32) -> u64 {
        let used = self.0.iter().flat_map(|locked| locked.pins.used.values());
        used.filter(|used| used.segments.contains(&ordinal)).count() as u64
    }

    /// Splits the `bytes` bytes at `address` into one part for each segment. Returns the placement and the length in
    /// bytes of each part. Skips bytes outside of segments and in retired segments.
    fn places(&self, address: u64, bytes: u64) -> Vec<(Placement, u64)> {
        let end = address.saturating_add(bytes);
        let part = |segment: &SymmetricSegment| {
            let begin = segment.memory.address;
            let (from, to) = (begin.max(address), (begin + segment.bytes).min(end));
            let place = Placement { ordinal: segment.ordinal, offset: from.saturating_sub(begin) };
            (!segment.retired && from < to).then(|| (place, to - from))
        };
        self.segments().iter().filter_map(part).collect()
    }

    /// Adds the segments and blocks that contain any of the `bytes` bytes at `address` to `pins`.
    pub fn hold_range(&mut self, pins: &[u64], address: u64, bytes: u64) {
        for (place, bytes) in self.places(address, bytes) {
            let blocks = self.blocks_over(place, bytes);
            pins.iter().for_each(|pin| self.pins().hold(*pin, place.ordinal, &blocks));
        }
    }

    fn pins(&mut self) -> &mut Pins {
        &mut self.0.as_mut().expect(THERE).pins
    }
}

impl Deref for Arena<'_> {
    type Target = SymmetricArena;

    fn deref(&self) -> &SymmetricArena {
        &self.0.as_ref().expect(THERE).arena
    }
}

impl DerefMut for Arena<'_> {
    fn deref_mut(&mut self) -> &mut SymmetricArena {
        &mut self.0.as_mut().expect(THERE).arena
    }
}

impl Drop for PoolMemory {
    fn drop(&mut self) {
        if let Some(LockedState { arena, pins }) =
            self.locked.get_mut().unwrap_or_else(PoisonError::into_inner).take()
        {
            let arena = ManuallyDrop::new(arena);
            if pins.used.contains_key(&FOR_GOOD) {
                // A graph may be launched at any time. So the memory is never released.
                return;
            }
            let attachments = ManuallyDrop::new(std::mem::take(&mut self.attachments));
            let release = || {
                // An error of the segments' source is ignored, because the release cannot be repeated.
                let _ = ManuallyDrop::into_inner(arena).release();
                drop(ManuallyDrop::into_inner(attachments));
                // Blocks may have been used after the pool was dropped, so groups may have cached look-ups of this
                // memory.
                places_changed();
            };
            if self.dropped_on.is_empty() {
                return release();
            }
            let dropped_on = std::mem::take(&mut self.dropped_on);
            // The capture may be one of this thread, so a wait for its end would be in vain.
            let limit = if dropped_on.waits_for_capture() { Duration::ZERO } else { PATIENCE };
            // If the work cannot be waited for, it may still run. So the memory is never released.
            let _ = after(move || dropped_on.wait_beyond_captures(), limit, release);
        }
    }
}

impl std::fmt::Debug for PoolMemory {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("PoolMemory")
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;

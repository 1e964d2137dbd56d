//! A pool's memory, who keeps it, and what graphs have pinned in it.
//!
//! Kept by the pool, its blocks, its graph pins, the graphs that use it, and every communicator that has windows in it.
//! The last of them to go gives the segments back, so memory is never taken from under a window. A retired segment goes
//! earlier, once all ranks have said that nothing reaches it.
//!
//! Work that a stream captures pins the blocks that it uses, whichever call enqueued it: [`GraphMemory::used_by_graph`].
//! The graph and its executables hold the pin. Where another library began the capture they cannot, and the captures that
//! are declared hold it, or the memory itself for good.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Deref, DerefMut},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU32, Ordering},
    },
};

use caching_alloc::core::symmetric::{Placement, SymmetricArena, SymmetricSegment};
use cuda_driver::{DevicePtr, Stream};
use process_group::graph_memory::{self, GraphMemory};

use crate::{agreement::PoolId, rendezvous::Homes};

/// What captured work has used of a pool.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Used {
    segments: BTreeSet<u32>,
    blocks: BTreeSet<Placement>,
}

/// What captures and graphs hold.
#[derive(Debug, Default)]
pub(super) struct Pins {
    next: u64,
    /// By number of the pin.
    used: BTreeMap<u64, Used>,
    /// The pins of declared captures that are in progress.
    declared: BTreeSet<u64>,
    /// The pins that graphs hold, by the driver's number of the capture.
    graphs: BTreeMap<u64, (u64, Weak<GraphHold>)>,
    /// How many pins hold a segment.
    segments: BTreeMap<u32, u64>,
    blocks: BTreeMap<Placement, Hold>,
}

/// The pin that nobody lets go of: of graphs that say to nobody when they go.
const FOR_GOOD: u64 = 0;

impl Pins {
    /// A new pin, which holds nothing yet.
    fn pin(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Has `pin` hold segment `ordinal` and these blocks.
    fn hold(&mut self, pin: u64, ordinal: u32, blocks: &[Placement]) {
        let used = self.used.entry(pin).or_default();
        if used.segments.insert(ordinal) {
            *self.segments.entry(ordinal).or_default() += 1;
        }
        for block in blocks {
            if used.blocks.insert(*block) {
                self.blocks.entry(*block).or_default().pins += 1;
            }
        }
    }

    /// Ends `pin`. The blocks that are to be freed now, since their owners had dropped them.
    fn unpin(&mut self, pin: u64) -> Vec<Placement> {
        self.declared.remove(&pin);
        self.graphs.retain(|_, (own, _)| *own != pin);
        let Used { segments, blocks } = self.used.remove(&pin).unwrap_or_default();
        for ordinal in segments {
            match self.segments.get_mut(&ordinal) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(self.segments.remove(&ordinal)),
            }
        }
        let mut freed = Vec::new();
        for block in blocks {
            let Some(hold) = self.blocks.get_mut(&block) else { continue };
            hold.pins = hold.pins.saturating_sub(1);
            if hold.pins == 0 && self.blocks.remove(&block).is_some_and(|hold| hold.dropped) {
                freed.push(block);
            }
        }
        freed
    }
}

/// A pin that a graph and its executables hold.
#[derive(Debug)]
pub(crate) struct GraphHold {
    memory: Arc<Memory>,
    pin: u64,
}

impl Drop for GraphHold {
    fn drop(&mut self) {
        self.memory.unpin(self.pin);
    }
}

#[derive(Debug, Default)]
struct Hold {
    pins: u64,
    /// Its owner has dropped it: it is freed with the last pin.
    dropped: bool,
}

struct Inside {
    arena: SymmetricArena,
    pins: Pins,
}

pub(crate) struct Memory {
    me: Weak<Self>,
    /// What this rank has mapped of its peers' segments.
    homes: Homes,
    id: PoolId,
    /// `None` only while it is dropped.
    inside: Mutex<Option<Inside>>,
    /// How many declared captures are in progress, for who looks something up.
    capturing: AtomicU32,
}

impl Memory {
    pub(crate) fn new(id: PoolId, arena: SymmetricArena) -> Arc<Self> {
        let inside = Mutex::new(Some(Inside { arena, pins: Pins::default() }));
        let (homes, capturing) = (Homes::default(), AtomicU32::new(0));
        let memory = Arc::new_cyclic(|me| Self { me: me.clone(), homes, id, inside, capturing });
        graph_memory::register(memory.me.clone());
        memory
    }

    /// The pool's name.
    pub(crate) fn id(&self) -> PoolId {
        self.id
    }

    /// Where the segments lie on other ranks.
    pub(crate) fn homes(&self) -> &Homes {
        &self.homes
    }

    /// The arena, for this thread alone. A guard and not a call with a closure, so that the arena's log sees the
    /// line of the program that asked.
    pub(crate) fn arena(&self) -> Arena<'_> {
        Arena(self.inside.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a declared capture is in progress.
    #[inline]
    pub(super) fn is_capturing(&self) -> bool {
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

    /// Ends a declared capture. Its pin stays; the segments that it holds.
    pub(super) fn end_capture(&self, pin: u64) -> Vec<u32> {
        let mut arena = self.arena();
        arena.unfreeze();
        self.capturing.fetch_sub(1, Ordering::Relaxed);
        let pins = arena.pins();
        pins.declared.remove(&pin);
        pins.used.get(&pin).map(|used| used.segments.iter().copied().collect()).unwrap_or_default()
    }

    /// The declared captures use `bytes` at `place`: all of them, since it is not known on whose behalf.
    #[cold]
    pub(super) fn note_use(&self, place: Placement, bytes: u64) {
        let mut arena = self.arena();
        let blocks = arena.blocks_over(place, bytes);
        let pins = arena.pins();
        let declared: Vec<u64> = pins.declared.iter().copied().collect();
        declared.into_iter().for_each(|pin| pins.hold(pin, place.ordinal, &blocks));
    }

    /// Ends a pin.
    pub(super) fn unpin(&self, pin: u64) {
        let mut arena = self.arena();
        for block in arena.pins().unpin(pin) {
            let freed = arena.free(block);
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
    }

    /// The pin of the graph that the driver's capture of this number makes.
    pub(crate) fn graph_hold(&self, capture: u64) -> Option<Arc<GraphHold>> {
        let memory = self.me.upgrade()?;
        let mut arena = self.arena();
        let pins = arena.pins();
        if let Some(hold) = pins.graphs.get(&capture).and_then(|(_, hold)| hold.upgrade()) {
            return Some(hold);
        }
        let hold = Arc::new(GraphHold { memory, pin: pins.pin() });
        pins.graphs.insert(capture, (hold.pin, Arc::downgrade(&hold)));
        Some(hold)
    }

    /// Has the graph's pin hold what lies in the `bytes` at `address`.
    pub(crate) fn hold_for_graph(&self, hold: &GraphHold, address: u64, bytes: u64) {
        self.hold_range(&[hold.pin], address, bytes);
    }

    fn hold_range(&self, pins: &[u64], address: u64, bytes: u64) {
        let mut arena = self.arena();
        for (place, bytes) in arena.places(address, bytes) {
            let blocks = arena.blocks_over(place, bytes);
            pins.iter().for_each(|pin| arena.pins().hold(*pin, place.ordinal, &blocks));
        }
    }

    /// Pins what a graph uses that cannot hold it itself: for the declared captures, or for good.
    pub(super) fn hold_without_graph(&self, address: u64, bytes: u64) {
        let mut declared: Vec<u64> = self.arena().pins().declared.iter().copied().collect();
        if declared.is_empty() {
            declared.push(FOR_GOOD);
        }
        self.hold_range(&declared, address, bytes);
    }

    /// The owner of the block at `place` has dropped it. Freed now, or when the last graph lets go.
    pub(super) fn drop_block(&self, place: Placement) {
        let mut arena = self.arena();
        if let Some(hold) = arena.pins().blocks.get_mut(&place) {
            hold.dropped = true;
            return;
        }
        let freed = arena.free(place);
        // It was placed and this is the only one that frees it.
        debug_assert!(freed.is_ok(), "{freed:?}");
    }
}

impl GraphMemory for Memory {
    fn used_by_graph(
        &self,
        DevicePtr(address): DevicePtr,
        bytes: u64,
        stream: &Stream,
    ) -> cuda_driver::Result<()> {
        if self.arena().places(address, bytes).is_empty() {
            return Ok(());
        }
        // No graph comes of a capture that was ruined.
        let Some(capture) = stream.capture_info()?.id else { return Ok(()) };
        let Some(hold) = self.graph_hold(capture) else { return Ok(()) };
        self.hold_for_graph(&hold, address, bytes);
        if !stream.keep_in_graph(hold.clone())? {
            self.hold_without_graph(address, bytes);
        }
        Ok(())
    }
}

/// The arena of a pool, locked.
pub(crate) struct Arena<'a>(MutexGuard<'a, Option<Inside>>);

/// Who borrows a memory keeps it from being dropped, and only then the arena is gone.
const THERE: &str = "the arena is there while the memory is";

impl Arena<'_> {
    /// How many captures and graphs use a segment.
    pub(crate) fn graphs_of(&self, ordinal: u32) -> u64 {
        self.0.as_ref().and_then(|inside| inside.pins.segments.get(&ordinal).copied()).unwrap_or(0)
    }

    /// The parts of the `bytes` at `address` that lie in segments: where, and how long.
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

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(Inside { arena, .. }) =
            self.inside.get_mut().unwrap_or_else(PoisonError::into_inner).take()
        {
            // What a source cannot take back stays its own to account for; it has reported it.
            let _ = arena.release();
        }
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Memory")
    }
}

//! A pool's memory, who keeps it, and what graphs have pinned in it.
//!
//! Kept by the pool, its blocks, its graph pins, and every communicator that has windows in it. The last of them
//! to go gives the segments back, so memory is never taken from under a window. A retired segment goes earlier, once
//! all ranks have said that nothing reaches it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Deref, DerefMut},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use caching_alloc::core::symmetric::{Placement, SymmetricArena};

use crate::{agreement::PoolId, rendezvous::Homes};

/// What captured work has used of a pool.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) segments: BTreeSet<u32>,
    pub(super) blocks: BTreeSet<Placement>,
}

/// What captures and graphs hold.
#[derive(Debug, Default)]
pub(super) struct Pins {
    next: u64,
    /// Captures in progress.
    captures: BTreeMap<u64, Used>,
    /// How many captures and graphs use a segment.
    graphs: BTreeMap<u32, u64>,
    blocks: BTreeMap<Placement, Hold>,
}

#[derive(Debug, Default)]
struct Hold {
    graphs: u64,
    /// Its owner has dropped it: it is freed when the last graph lets go.
    dropped: bool,
}

struct Inside {
    arena: SymmetricArena,
    pins: Pins,
}

pub(crate) struct Memory {
    /// What this rank has mapped of its peers' segments.
    homes: Homes,
    id: PoolId,
    /// `None` only while it is dropped.
    inside: Mutex<Option<Inside>>,
    /// How many captures are in progress, for who looks something up.
    capturing: AtomicU32,
}

impl Memory {
    pub(crate) fn new(id: PoolId, arena: SymmetricArena) -> Self {
        let inside = Mutex::new(Some(Inside { arena, pins: Pins::default() }));
        Self { homes: Homes::default(), id, inside, capturing: AtomicU32::new(0) }
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

    /// Whether a capture is in progress.
    #[inline]
    pub(super) fn is_capturing(&self) -> bool {
        self.capturing.load(Ordering::Relaxed) > 0
    }

    /// Begins a capture, and returns its name.
    pub(super) fn begin_capture(&self) -> u64 {
        let mut arena = self.arena();
        arena.freeze();
        self.capturing.fetch_add(1, Ordering::Relaxed);
        let pins = arena.pins();
        pins.next += 1;
        let capture = pins.next;
        pins.captures.insert(capture, Used::default());
        capture
    }

    /// Ends a capture, and returns what it has used; that stays pinned.
    pub(super) fn end_capture(&self, capture: u64) -> Used {
        let mut arena = self.arena();
        arena.unfreeze();
        self.capturing.fetch_sub(1, Ordering::Relaxed);
        arena.pins().captures.remove(&capture).unwrap_or_default()
    }

    /// The captures in progress use `bytes` at `place`: all of them, since it is not known on whose behalf.
    #[cold]
    pub(super) fn note_use(&self, place: Placement, bytes: u64) {
        let mut arena = self.arena();
        let blocks = arena.blocks_over(place, bytes);
        let Pins { captures, graphs, blocks: holds, .. } = arena.pins();
        for used in captures.values_mut() {
            if used.segments.insert(place.ordinal) {
                *graphs.entry(place.ordinal).or_default() += 1;
            }
            for block in &blocks {
                if used.blocks.insert(*block) {
                    holds.entry(*block).or_default().graphs += 1;
                }
            }
        }
    }

    /// A graph lets go of what it used.
    pub(super) fn unpin(&self, used: &Used) {
        let mut arena = self.arena();
        for ordinal in &used.segments {
            let graphs = &mut arena.pins().graphs;
            match graphs.get_mut(ordinal) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(graphs.remove(ordinal)),
            }
        }
        for block in &used.blocks {
            let blocks = &mut arena.pins().blocks;
            let Some(hold) = blocks.get_mut(block) else { continue };
            hold.graphs = hold.graphs.saturating_sub(1);
            if hold.graphs == 0 && blocks.remove(block).is_some_and(|hold| hold.dropped) {
                let freed = arena.free(*block);
                debug_assert!(freed.is_ok(), "{freed:?}");
            }
        }
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

/// The arena of a pool, locked.
pub(crate) struct Arena<'a>(MutexGuard<'a, Option<Inside>>);

/// Who borrows a memory keeps it from being dropped, and only then the arena is gone.
const THERE: &str = "the arena is there while the memory is";

impl Arena<'_> {
    /// How many captures and graphs use a segment.
    pub(crate) fn graphs_of(&self, ordinal: u32) -> u64 {
        self.0.as_ref().and_then(|inside| inside.pins.graphs.get(&ordinal).copied()).unwrap_or(0)
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

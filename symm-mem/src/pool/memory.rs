//! A pool's memory, and who keeps it.
//!
//! Kept by the pool, its blocks, its graph pins, and every communicator that has windows in it. The last of them
//! to go gives the segments back, so memory is never taken from under a window.

use std::{
    ops::{Deref, DerefMut},
    sync::{Mutex, MutexGuard, PoisonError},
};

use caching_alloc::core::symmetric::SymmetricArena;

pub(crate) struct Memory {
    /// `None` only while it is dropped.
    arena: Mutex<Option<SymmetricArena>>,
}

impl Memory {
    pub(crate) fn new(arena: SymmetricArena) -> Self {
        Self { arena: Mutex::new(Some(arena)) }
    }

    /// The arena, for this thread alone. A guard and not a call with a closure, so that the arena's log sees the
    /// line of the program that asked.
    pub(crate) fn arena(&self) -> Arena<'_> {
        Arena(self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Option<SymmetricArena>> {
        self.arena.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The arena of a pool, locked.
pub(crate) struct Arena<'a>(MutexGuard<'a, Option<SymmetricArena>>);

/// Who borrows a memory keeps it from being dropped, and only then the arena is gone.
const THERE: &str = "the arena is there while the memory is";

impl Deref for Arena<'_> {
    type Target = SymmetricArena;

    fn deref(&self) -> &SymmetricArena {
        self.0.as_ref().expect(THERE)
    }
}

impl DerefMut for Arena<'_> {
    fn deref_mut(&mut self) -> &mut SymmetricArena {
        self.0.as_mut().expect(THERE)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(arena) = self.lock().take() {
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

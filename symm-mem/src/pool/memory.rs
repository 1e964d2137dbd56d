//! A pool's memory, and who keeps it.
//!
//! Kept by the pool, its blocks, its graph pins, and every communicator that has windows in it. The last of them
//! to go gives the segments back, so memory is never taken from under a window.

use std::sync::{Mutex, MutexGuard, PoisonError};

use caching_alloc::core::symmetric::SymmetricArena;

pub(crate) struct Memory {
    /// `None` only while it is dropped.
    arena: Mutex<Option<SymmetricArena>>,
}

impl Memory {
    pub(crate) fn new(arena: SymmetricArena) -> Self {
        Self { arena: Mutex::new(Some(arena)) }
    }

    /// Does `work` with the arena, alone.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut SymmetricArena) -> T) -> T {
        let mut arena = self.lock();
        // It is there until this value is dropped, which nobody who borrows it can do.
        work(arena.as_mut().expect("the arena is there while the memory is"))
    }

    fn lock(&self) -> MutexGuard<'_, Option<SymmetricArena>> {
        self.arena.lock().unwrap_or_else(PoisonError::into_inner)
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

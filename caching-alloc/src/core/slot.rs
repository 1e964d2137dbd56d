//! Memory for the state of caches. It is never freed, so blocks and threads refer to it without counting references.
//!
//! A hit takes one lock. A reference count would add half of the lock's cost. The slot of a removed cache is used again
//! by the next cache of any pool, so the number of slots is the largest number of caches at one time. A thread that has
//! cached a slot therefore passes the key of the cache that it expects there.

use std::sync::PoisonError;

use super::block_meta::NO_USES;
use super::heap::BlockId;
use super::key::Key;
use super::lock::{Guard, Rank, Ranked};
use super::ring::BlockEvent;
use super::stream_cache::{BATCH, CacheState};
use super::sync::{Mutex, global};

/// A cache's state behind the lock that a hit takes.
#[derive(Debug)]
pub(super) struct CacheSlot(Ranked<Option<CacheState>>);

global! {
    static SPARE: Mutex<Vec<&'static CacheSlot>> = Mutex::new(Vec::new());
}

/// A cache's state, locked.
pub(super) struct Open<'a>(Guard<'a, Option<CacheState>>);

impl CacheSlot {
    /// A slot for a new cache.
    pub(super) fn take(state: CacheState) -> &'static Self {
        let spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let slot = spare.unwrap_or_else(|| Box::leak(Box::new(Self(Ranked::new(Rank::StreamCache, None)))));
        *slot.0.lock() = Some(state);
        slot
    }

    /// The state, for the cache whose slot it is and for its blocks.
    #[inline]
    pub(super) fn lock(&self) -> Open<'_> {
        Open(self.0.lock())
    }

    /// The state, if it is that of the key's cache.
    #[inline]
    pub(super) fn lock_of(&self, key: Key) -> Option<Open<'_>> {
        let state = self.0.lock();
        let is_there = state.as_ref().is_some_and(|state| state.key == key);
        is_there.then_some(Open(state))
    }

    /// Clears the slot of a cache that is gone and has no block out, for the next one.
    pub(super) fn clear(&'static self) -> Option<CacheState> {
        let state = self.0.lock().take();
        SPARE.lock().unwrap_or_else(PoisonError::into_inner).push(self);
        state
    }
}

impl CacheSlot {
    /// Frees a block.
    #[inline]
    pub(super) fn free(&self, id: BlockId) {
        let mut state = self.lock();
        if state.blocks[id].uses != NO_USES {
            free_used(state, id);
            return;
        }
        state.complete_free(id, BlockEvent::Free);
        if state.ring.waiting() >= BATCH || state.keeper.is_some() {
            after_free(state);
        }
    }
}

/// The rest of a free with waiting entries, or of the last block of a pool.
#[cold]
fn after_free(mut state: Open<'_>) {
    let waiting = state.ring.waiting();
    let cache = if waiting >= BATCH { state.owner_cache() } else { None };
    let keeper = if state.counters.live() == 0 { state.keeper.take() } else { None };
    drop(state);
    if let Some(cache) = cache {
        cache.deliver(waiting);
    }
    drop(keeper);
}

/// Frees a block that other streams use.
#[cold]
fn free_used(mut state: Open<'_>, id: BlockId) {
    let streams = state.request_free(id);
    let cache = state.owner_cache();
    let keeper = if state.counters.live() == 0 { state.keeper.take() } else { None };
    drop(state);
    if let Some(cache) = cache {
        cache.await_uses(id, &streams);
    }
    drop(keeper);
}

const IN_USE: &str = "a slot has its cache's state while the cache or a block of it is there";

impl std::ops::Deref for Open<'_> {
    type Target = CacheState;
    #[inline]
    fn deref(&self) -> &CacheState {
        self.0.as_ref().expect(IN_USE)
    }
}

impl std::ops::DerefMut for Open<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut CacheState {
        self.0.as_mut().expect(IN_USE)
    }
}

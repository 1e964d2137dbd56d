//! Slots: memory for the state of caches. Slots are never freed, so blocks and threads refer to them without counting
//! references.
//!
//! A request that a cache's free memory serves takes one lock. Counting references would add half of the lock's cost.
//! When a cache is dropped, the next new cache of any pool uses its slot again. So the number of slots is the largest
//! number of caches that existed at one time. A thread that remembers a cache's slot passes the cache's key to
//! [`lock_of`](CacheSlot::lock_of), because another cache may use the slot now.

use std::any::Any;
use std::sync::{Arc, PoisonError};

use super::block_meta::NO_USES;
use super::heap::BlockId;
use super::key::Key;
use super::lock::{Rank, RankedSpin, RankedSpinGuard};
use super::ring::BlockEvent;
use super::stream_cache::{BATCH, CacheState};
use crate::sync::{Mutex, global};

/// The state of a cache, behind the lock that guards it. `None` while no cache uses the slot.
#[derive(Debug)]
pub(super) struct CacheSlot(RankedSpin<Option<CacheState>>);

global! {
    static SPARE: Mutex<Vec<&'static CacheSlot>> = Mutex::new(Vec::new());
}

/// A cache's state, locked.
pub(super) struct Open<'a>(RankedSpinGuard<'a, Option<CacheState>>);

impl CacheSlot {
    /// Puts the state of a new cache in a slot, and returns the slot: that of a dropped cache, or a new one.
    pub(super) fn take(state: CacheState) -> &'static Self {
        let spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let slot =
            spare.unwrap_or_else(|| Box::leak(Box::new(Self(RankedSpin::new(Rank::StreamCache, None)))));
        *slot.0.lock() = Some(state);
        slot
    }

    /// Locks the state. Called by the cache that uses the slot, and by its blocks.
    #[inline]
    pub(super) fn lock(&self) -> Open<'_> {
        Open(self.0.lock())
    }

    /// Locks the state if the slot is that of the cache with this key. Returns `None` otherwise.
    #[inline]
    pub(super) fn lock_of(&self, key: Key) -> Option<Open<'_>> {
        let state = self.0.lock();
        let is_there = state.as_ref().is_some_and(|state| state.key == key);
        is_there.then_some(Open(state))
    }

    /// Takes the state out, so that another cache can use the slot. Called when the cache is dropped and none of its
    /// blocks is handed out.
    pub(super) fn clear(&'static self) -> Option<CacheState> {
        let state = self.0.lock().take();
        SPARE.lock().unwrap_or_else(PoisonError::into_inner).push(self);
        state
    }
}

impl CacheSlot {
    /// Frees a block that is handed out. If other streams or graphs use it, the block stays pending until their uses
    /// have ended.
    #[inline]
    pub(super) fn free(&self, id: BlockId) {
        let mut open = self.lock();
        let state = &mut *open;
        if state.blocks[id].uses != NO_USES {
            free_used(open, id);
            return;
        }
        state.complete_free(id, BlockEvent::Free);
        if state.ring.waiting() >= BATCH || state.keeper.is_some() {
            after_free(open);
        }
    }
}

/// Unlocks the cache after a free. Then delivers the undelivered entries, if they fill a batch or if the free ends the
/// cache (see [`ending`]).
#[cold]
fn after_free(mut state: Open<'_>) {
    let (_keeper, waiting) = ending(&mut state);
    let cache = if waiting >= BATCH { state.owner_cache() } else { None };
    drop(state);
    if let Some(cache) = cache {
        cache.deliver(waiting);
    }
}

/// Returns the reference that keeps the cache and its pool alive, if the cache ends: the pool is closed, and the last
/// block was freed now. Also returns the number of undelivered entries, or `usize::MAX` if the cache ends, because all
/// entries must be delivered then. The caller drops the reference after the delivery. So a thread that detaches a
/// tracker finds the cache and waits for the delivery.
fn ending(state: &mut CacheState) -> (Option<Arc<dyn Any + Send + Sync>>, usize) {
    let keeper = if state.counters.live() == 0 { state.keeper.take() } else { None };
    let waiting = if keeper.is_some() { usize::MAX } else { state.ring.waiting() };
    (keeper, waiting)
}

/// Frees a block that other streams or graphs use, and records events for the ends of the streams' uses.
#[cold]
fn free_used(mut state: Open<'_>, id: BlockId) {
    let users = state.request_free(id);
    let cache = state.owner_cache();
    let (_keeper, waiting) = ending(&mut state);
    drop(state);
    if let Some(cache) = cache {
        cache.await_uses(id, users);
        if waiting >= BATCH {
            cache.deliver(waiting);
        }
    }
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

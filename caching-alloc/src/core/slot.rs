//! Memory for the state of shards. It is never freed, so blocks and threads refer to it without counting references.
//!
//! A hit takes one lock. A reference count would add half of the lock's cost. The slot of a removed shard is used again
//! by the next shard of any pool, so the number of slots is the largest number of shards at one time. A thread that has
//! cached a slot therefore passes the key of the shard that it expects there.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use super::lock::{Guard, Rank, Ranked};
use super::shard::ShardState;
use super::stream::StreamId;
use super::sync::{Mutex, global};

/// A stream of a pool, of all pools of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) pool: u64,
    pub(super) stream: StreamId,
}

impl Key {
    /// The key of a retired shard. No pool has this number.
    pub(super) const RETIRED: Self = Self { pool: 0, stream: StreamId(0) };

    /// A number that no other pool has or had.
    pub(super) fn new_pool() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
}

/// A shard's state behind the lock that a hit takes.
#[derive(Debug)]
pub(super) struct CacheSlot(Ranked<Option<ShardState>>);

global! {
    static SPARE: Mutex<Vec<&'static CacheSlot>> = Mutex::new(Vec::new());
}

/// A shard's state, locked.
pub(super) struct Open<'a>(Guard<'a, Option<ShardState>>);

impl CacheSlot {
    /// A slot for a new shard.
    pub(super) fn take(state: ShardState) -> &'static Self {
        let spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let slot = spare.unwrap_or_else(|| Box::leak(Box::new(Self(Ranked::new(Rank::Shard, None)))));
        *slot.0.lock() = Some(state);
        slot
    }

    /// The state, for the shard whose slot it is and for its blocks.
    #[inline]
    pub(super) fn lock(&self) -> Open<'_> {
        Open(self.0.lock())
    }

    /// The state, if it is that of the key's shard.
    #[inline]
    pub(super) fn lock_of(&self, key: Key) -> Option<Open<'_>> {
        let state = self.0.lock();
        let is_there = state.as_ref().is_some_and(|state| state.key == key);
        is_there.then_some(Open(state))
    }

    /// Clears the slot of a shard that is gone and has no block out, for the next one.
    pub(super) fn clear(&'static self) -> Option<ShardState> {
        let state = self.0.lock().take();
        SPARE.lock().unwrap_or_else(PoisonError::into_inner).push(self);
        state
    }
}

const IN_USE: &str = "a slot has its shard's state while the shard or a block of it is there";

impl std::ops::Deref for Open<'_> {
    type Target = ShardState;
    #[inline]
    fn deref(&self) -> &ShardState {
        self.0.as_ref().expect(IN_USE)
    }
}

impl std::ops::DerefMut for Open<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut ShardState {
        self.0.as_mut().expect(IN_USE)
    }
}

//! A table per thread of the stream caches that the thread used last. A *hit* is a request that the free memory of
//! its stream's cache serves. With this table, a hit finds its cache without a lock or a shared counter.
//!
//! An entry is a hint. A slot is memory for the state of one cache at a time. The slot of an entry may have the state
//! of another cache by now, which [`CacheSlot::lock_of`] detects.

use std::cell::Cell;

use super::key::Key;
use super::slot::CacheSlot;
use crate::sync::per_thread;

/// Number of entries per thread, a power of two. If a thread alternates between caches that share an entry, each
/// request looks its cache up in the pool's table.
const ENTRIES: usize = 64;

/// The key of a cache, and the slot that has its state. The slot is `None` in an entry that was never used.
type Entry = Cell<(Key, Option<&'static CacheSlot>)>;

per_thread! {
    static RECENT: [Entry; ENTRIES] = const { [const { Cell::new((Key::RETIRED, None)) }; ENTRIES] };
}

/// Returns the slot that this thread last used for the key, if its entry was not overwritten.
#[inline]
pub(super) fn find(key: Key) -> Option<&'static CacheSlot> {
    let (of, slot) = RECENT.with(|recent| recent[place(key)].get());
    if of == key { slot } else { None }
}

pub(super) fn remember(key: Key, slot: &'static CacheSlot) {
    RECENT.with(|recent| recent[place(key)].set((key, Some(slot))));
}

#[inline]
fn place(key: Key) -> usize {
    let mixed = (key.stream.0 ^ key.pool.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (64 - ENTRIES.ilog2())) as usize
}

//! The caches that each thread used last, so that a hit finds its cache without a lock or a shared counter.
//!
//! An entry is a hint. Its slot may serve another cache by now, which [`CacheSlot::lock_of`] detects.

use std::cell::Cell;

use super::key::Key;
use super::slot::CacheSlot;
use super::sync::per_thread;

/// A power of two. Streams of a thread that share an entry are looked up in their pool's table in turn.
const ENTRIES: usize = 64;

type Entry = Cell<Option<(Key, &'static CacheSlot)>>;

per_thread! {
    static RECENT: [Entry; ENTRIES] = const { [const { Cell::new(None) }; ENTRIES] };
}

/// The slot that this thread last used for the key.
#[inline]
pub(super) fn find(key: Key) -> Option<&'static CacheSlot> {
    let (of, slot) = RECENT.with(|recent| recent[place(key)].get())?;
    (of == key).then_some(slot)
}

pub(super) fn remember(key: Key, slot: &'static CacheSlot) {
    RECENT.with(|recent| recent[place(key)].set(Some((key, slot))));
}

#[inline]
fn place(key: Key) -> usize {
    let mixed = (key.stream.0 ^ key.pool.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (64 - ENTRIES.ilog2())) as usize
}

//! The keys of stream caches. The state of a cache is in a slot. After that cache is dropped, another cache may use
//! the slot. A thread that remembers a cache's slot also remembers the cache's key, so it can detect that another
//! cache uses the slot now.

use std::sync::atomic::{AtomicU64, Ordering};

use super::stream::StreamId;

/// Identifies the cache of one stream in one pool, among all pools of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) pool: u64,
    pub(super) stream: StreamId,
}

impl Key {
    /// The key of a retired cache: one that was removed from its pool because it was empty. No pool has the number 0,
    /// because the numbers from [`new_pool`](Self::new_pool) begin at 1.
    pub(super) const RETIRED: Self = Self { pool: 0, stream: StreamId(0) };

    /// Returns a number that no other pool of the process has or had.
    pub(super) fn new_pool() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
}

//! The table of a pool's stream caches.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use crate::core::remap::{Arena, ArenaList};
use crate::core::stream::StreamId;
use crate::core::stream_cache::StreamCache;

/// Number of the most recently created caches that a search for empty caches skips. Their streams are the likeliest to
/// allocate again, and later snapshots lack the trace entries of a retired cache. Model checkers use a smaller number
/// because their programs have few streams.
const RECENT: usize = if cfg!(all(test, any(loom, shuttle))) { 1 } else { 32 };

/// The stream caches of a pool, by stream and in order of creation.
#[derive(Debug)]
pub(super) struct CacheTable {
    by_stream: HashMap<StreamId, Arc<StreamCache>>,
    /// By creation index. After the pool is closed, it still has the caches whose blocks are not all freed.
    by_creation: BTreeMap<u64, Weak<StreamCache>>,
    /// The creation index of the next cache.
    next_index: u64,
    /// The number of caches at which the next search for empty ones starts.
    search_at: usize,
    /// Arena lists of retired caches, for new caches. Used in re-mappable pools only.
    spare_lists: Vec<ArenaList>,
    /// The first arena list that no cache has had yet.
    next_list: ArenaList,
}

impl Default for CacheTable {
    fn default() -> Self {
        Self {
            by_stream: HashMap::new(),
            by_creation: BTreeMap::new(),
            next_index: 0,
            search_at: 2 * RECENT,
            spare_lists: Vec::new(),
            next_list: Arena::SHARED_LIST + 1,
        }
    }
}

impl CacheTable {
    /// Returns the cache of a stream, if there is one.
    pub(super) fn find(&self, stream: StreamId) -> Option<Arc<StreamCache>> {
        self.by_stream.get(&stream).cloned()
    }

    /// Returns all caches, in order of creation.
    pub(super) fn all(&self) -> Vec<Arc<StreamCache>> {
        self.by_creation.values().filter_map(Weak::upgrade).collect()
    }

    /// Reserves an arena list for a new cache. Returns `None` if all lists are taken.
    pub(super) fn take_list(&mut self) -> Option<ArenaList> {
        self.spare_lists.pop().or_else(|| {
            let list = self.next_list;
            (usize::from(list) <= Arena::STREAMS).then(|| self.next_list += 1)?;
            Some(list)
        })
    }

    /// Adds the cache that `make` returns for its creation index.
    pub(super) fn add(&mut self, make: impl FnOnce(u64) -> Arc<StreamCache>) -> Arc<StreamCache> {
        let cache = make(self.next_index);
        self.next_index += 1;
        self.by_creation.insert(cache.creation_index, Arc::downgrade(&cache));
        self.by_stream.insert(cache.stream, cache.clone());
        cache
    }

    /// Returns the caches to retire if they are empty: all except the most recently created ones. Returns none while
    /// the number of caches is below both `limit` and the number that [`plan_search`](Self::plan_search) has set.
    pub(super) fn candidates(&mut self, limit: usize) -> Vec<Arc<StreamCache>> {
        if self.by_stream.len() < self.search_at.min(limit) {
            return Vec::new();
        }
        self.by_creation.retain(|_, cache| cache.strong_count() > 0);
        let old = self.by_creation.len().saturating_sub(RECENT);
        self.by_creation.values().take(old).filter_map(Weak::upgrade).collect()
    }

    /// Sets the number of caches for the next search to about twice the present one. So the time of a search is spread
    /// over the caches that are added before it.
    pub(super) fn plan_search(&mut self) {
        self.search_at = 2 * (self.by_stream.len() + RECENT);
    }

    /// Removes a retired cache. The caller still has a reference, and drops it after it has released the table's lock.
    pub(super) fn remove(&mut self, cache: &Arc<StreamCache>) {
        self.by_creation.remove(&cache.creation_index);
        self.by_stream.remove(&cache.stream);
        if cache.list != Arena::SHARED_LIST {
            self.spare_lists.push(cache.list);
        }
    }

    /// Removes all streams when the pool is closed, and returns their caches. A cache then lives on until its last
    /// block is freed.
    pub(super) fn close(&mut self) -> Vec<Arc<StreamCache>> {
        std::mem::take(&mut self.by_stream).into_values().collect()
    }
}

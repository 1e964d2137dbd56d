//! The stream caches of a pool.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use crate::core::heap::List;
use crate::core::remap::Arena;
use crate::core::stream::StreamId;
use crate::core::stream_cache::StreamCache;

/// Number of empty caches that are kept: the youngest ones. Their streams may allocate again, and their traces stay
/// readable. Model checkers use a smaller number because their programs have few streams.
const IDLE: usize = if cfg!(all(test, any(loom, shuttle))) { 1 } else { 32 };

/// Stream caches by stream, and by age.
#[derive(Debug)]
pub(super) struct CacheTable {
    by_stream: HashMap<StreamId, Arc<StreamCache>>,
    /// Also holds caches that live only until their last block is freed.
    by_age: BTreeMap<u64, Weak<StreamCache>>,
    /// The age of the next cache: how many there were before it.
    next_age: u64,
    /// Number of caches from which on idle ones are searched for.
    crowd: usize,
    /// Lists of the arena that removed caches had.
    spare_lists: Vec<List>,
    next_list: List,
}

impl Default for CacheTable {
    fn default() -> Self {
        Self {
            by_stream: HashMap::new(),
            by_age: BTreeMap::new(),
            next_age: 0,
            crowd: 2 * IDLE,
            spare_lists: Vec::new(),
            next_list: Arena::SHARED_LIST + 1,
        }
    }
}

impl CacheTable {
    pub(super) fn find(&self, stream: StreamId) -> Option<Arc<StreamCache>> {
        self.by_stream.get(&stream).cloned()
    }

    /// All caches, in order of creation.
    pub(super) fn all(&self) -> Vec<Arc<StreamCache>> {
        self.by_age.values().filter_map(Weak::upgrade).collect()
    }

    /// A list of the arena for a new cache. `None`: all are taken.
    pub(super) fn take_list(&mut self) -> Option<List> {
        self.spare_lists.pop().or_else(|| {
            let list = self.next_list;
            (usize::from(list) <= Arena::STREAMS).then(|| self.next_list += 1)?;
            Some(list)
        })
    }

    /// Adds a cache, which is made with its age.
    pub(super) fn add(&mut self, make: impl FnOnce(u64) -> Arc<StreamCache>) -> Arc<StreamCache> {
        let cache = make(self.next_age);
        self.next_age += 1;
        self.by_age.insert(cache.age, Arc::downgrade(&cache));
        self.by_stream.insert(cache.stream, cache.clone());
        cache
    }

    /// The caches that may be retired if they have nothing: all but the youngest, once there are many or `limit`. The
    /// time that this takes is spread over the caches that were added since.
    pub(super) fn candidates(&mut self, limit: usize) -> Vec<Arc<StreamCache>> {
        if self.by_stream.len() < self.crowd.min(limit) {
            return Vec::new();
        }
        self.by_age.retain(|_, cache| cache.strong_count() > 0);
        let old = self.by_age.len().saturating_sub(IDLE);
        self.by_age.values().take(old).filter_map(Weak::upgrade).collect()
    }

    /// Candidates have been looked at.
    pub(super) fn settle(&mut self) {
        self.crowd = 2 * (self.by_stream.len() + IDLE);
    }

    /// Forgets a cache that is retired. The caller has it, and drops it when it holds no lock.
    pub(super) fn remove(&mut self, cache: &Arc<StreamCache>) {
        self.by_age.remove(&cache.age);
        self.by_stream.remove(&cache.stream);
        if cache.list != Arena::SHARED_LIST {
            self.spare_lists.push(cache.list);
        }
    }

    /// Forgets every stream; the caches live on until their last blocks are back.
    pub(super) fn close(&mut self) -> Vec<Arc<StreamCache>> {
        std::mem::take(&mut self.by_stream).into_values().collect()
    }
}

//! A pool's shards.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use super::heap::List;
use super::remap::Arena;
use super::shard::Shard;
use super::stream::StreamId;

/// Number of empty shards that are kept: the youngest ones. Their streams may allocate again, and their traces stay
/// readable. Model checkers use a smaller number because their programs have few streams.
const IDLE: usize = if cfg!(all(test, any(loom, shuttle))) { 1 } else { 32 };

/// Shards by stream, and by age.
#[derive(Debug)]
pub(super) struct ShardTable {
    by_stream: HashMap<StreamId, Arc<Shard>>,
    /// Also holds shards that live only until their last block is freed.
    by_age: BTreeMap<u64, Weak<Shard>>,
    /// The age of the next shard: how many there were before it.
    next_age: u64,
    /// Number of shards from which on idle ones are searched for.
    crowd: usize,
    /// Lists of the arena that removed shards had.
    spare_lists: Vec<List>,
    next_list: List,
}

impl Default for ShardTable {
    fn default() -> Self {
        Self {
            by_stream: HashMap::new(),
            by_age: BTreeMap::new(),
            next_age: 0,
            crowd: 2 * IDLE,
            spare_lists: Vec::new(),
            next_list: Arena::NOBODYS_LIST + 1,
        }
    }
}

impl ShardTable {
    pub(super) fn find(&self, stream: StreamId) -> Option<Arc<Shard>> {
        self.by_stream.get(&stream).cloned()
    }

    /// All shards, in order of creation.
    pub(super) fn all(&self) -> Vec<Arc<Shard>> {
        self.by_age.values().filter_map(Weak::upgrade).collect()
    }

    /// A list of the arena for a new shard. `None`: all are taken.
    pub(super) fn take_list(&mut self) -> Option<List> {
        self.spare_lists.pop().or_else(|| {
            let list = self.next_list;
            (usize::from(list) <= Arena::STREAMS).then(|| self.next_list += 1)?;
            Some(list)
        })
    }

    /// Adds a shard, which is made with its age.
    pub(super) fn add(&mut self, make: impl FnOnce(u64) -> Arc<Shard>) -> Arc<Shard> {
        let shard = make(self.next_age);
        self.next_age += 1;
        self.by_age.insert(shard.age, Arc::downgrade(&shard));
        self.by_stream.insert(shard.stream, shard.clone());
        shard
    }

    /// The shards that may be retired if they have nothing: all but the youngest, once there are many or `limit`. The
    /// time that this takes is spread over the shards that were added since.
    pub(super) fn candidates(&mut self, limit: usize) -> Vec<Arc<Shard>> {
        if self.by_stream.len() < self.crowd.min(limit) {
            return Vec::new();
        }
        self.by_age.retain(|_, shard| shard.strong_count() > 0);
        let old = self.by_age.len().saturating_sub(IDLE);
        self.by_age.values().take(old).filter_map(Weak::upgrade).collect()
    }

    /// Candidates have been looked at.
    pub(super) fn settle(&mut self) {
        self.crowd = 2 * (self.by_stream.len() + IDLE);
    }

    /// Forgets a shard that is retired. The caller has it, and drops it when it holds no lock.
    pub(super) fn remove(&mut self, shard: &Arc<Shard>) {
        self.by_age.remove(&shard.age);
        self.by_stream.remove(&shard.stream);
        if shard.list != Arena::NOBODYS_LIST {
            self.spare_lists.push(shard.list);
        }
    }

    /// Forgets every stream; the shards live on until their last blocks are back.
    pub(super) fn close(&mut self) -> Vec<Arc<Shard>> {
        std::mem::take(&mut self.by_stream).into_values().collect()
    }
}

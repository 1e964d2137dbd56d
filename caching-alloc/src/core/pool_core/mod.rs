//! Pools, their stream caches, and the guards that prevent a pool from releasing memory.

mod pages;
mod saved;
mod table;

use std::sync::Arc;

pub(super) use self::saved::{Conflict, SavedBlock};
use self::table::CacheTable;
use super::error::AllocError;
use super::key::Key;
use super::pending::Wait;
use super::pool_info::{Freeze, Guarded, Keep, PoolInfo};
use super::registry::{Registry, locked};
use super::remap::Arena;
use super::rounding::Rounding;
use super::segment::Segment;
use super::settings::PoolKind;
use super::snapshot::AddressInfo;
use super::stats::{Counters, Gauge, PastUsages, PoolUsages, Stats};
use super::stream::{CaptureCount, StreamId};
use super::stream_cache::{CacheOwner as _, StreamCache, block_state};
use crate::sync::Mutex;

/// A pool with its stream caches. It lives as long as any handle or block of the pool.
#[derive(Debug)]
pub(super) struct PoolCore {
    pub(super) info: Arc<PoolInfo>,
    caches: Mutex<CacheTable>,
    /// The usage statistics of retired caches: those that were removed from the pool because they were empty.
    past: Mutex<PastUsages>,
}

/// The part of a pool that its handles share. When the last handle is dropped, the pool is closed: it serves no more
/// requests, and each of its caches is dropped when its last block is freed.
#[derive(Debug)]
pub(super) struct PoolHandle {
    pub(super) core: Arc<PoolCore>,
    /// Non-zero while any stream may be capturing; see
    /// [`StreamEvents::captures`](super::stream::StreamEvents::captures). Always 0 if that method returned no
    /// counter.
    pub(super) captures: CaptureCount,
    /// The rounding of requests. `None` if they are only rounded up to whole units.
    pub(super) rounding: Option<Rounding>,
}

impl PoolHandle {
    pub(super) fn new(core: Arc<PoolCore>) -> Arc<Self> {
        let PoolInfo { kind, registry, .. } = &*core.info;
        let splits = matches!(kind, PoolKind::Cached | PoolKind::Remappable);
        let rounding = Some(registry.settings.rounding).filter(|set| splits && *set != Rounding::none());
        let captures = registry.events.captures().unwrap_or_default();
        Arc::new(Self { core, captures, rounding })
    }
}

impl Drop for PoolHandle {
    fn drop(&mut self) {
        let caches = locked(&self.core.caches).close();
        for cache in caches {
            let keeper = Arc::new((cache.clone(), self.core.clone()));
            cache.close(keeper);
            // Waits for the delivery of all entries, because a thread that later detaches a tracker may not find the cache.
            // Inside a tracker, the delivery that is under way delivers them.
            cache.deliver(usize::MAX);
        }
    }
}

impl PoolCore {
    pub(super) fn new(info: Arc<PoolInfo>) -> Arc<Self> {
        Arc::new(Self { info, caches: Mutex::default(), past: Mutex::default() })
    }

    pub(super) fn registry(&self) -> &Arc<Registry> {
        &self.info.registry
    }

    /// Returns the pool's caches, in order of creation.
    pub(super) fn caches(&self) -> Vec<Arc<StreamCache>> {
        locked(&self.caches).all()
    }

    /// Returns the cache of a stream, if there is one. Returns `None` after the pool is closed.
    pub(super) fn find(&self, stream: StreamId) -> Option<Arc<StreamCache>> {
        locked(&self.caches).find(stream)
    }

    /// Returns the cache of a stream. Creates it if there is none.
    ///
    /// # Errors
    /// [`AllocError::UnknownStream`], [`AllocError::TooManyStreams`]; [`AllocError::ReentrantTracker`] inside a
    /// tracker.
    pub(super) fn cache(&self, stream: StreamId) -> Result<Arc<StreamCache>, AllocError> {
        if let Some(cache) = self.find(stream) {
            return Ok(cache);
        }
        if !self.registry().events.is_registered(stream) {
            return Err(AllocError::UnknownStream { stream });
        }
        // A tracker's snapshot must cover every cache, so no cache is added while a tracker attaches.
        let structure = self.registry().lock_structure().ok_or_else(AllocError::reentrant)?;
        if let Some(cache) = self.find(stream) {
            return Ok(cache);
        }
        let retired = self.retire_idle();
        let slots = Registry::block_trackers(&structure);
        let mut caches = locked(&self.caches);
        let list = if self.info.arena.is_some() { caches.take_list() } else { Some(Arena::SHARED_LIST) };
        let Some(list) = list else {
            return Err(AllocError::TooManyStreams { pool: self.info.id, streams: Arena::STREAMS, stream });
        };
        let cache = caches.add(|index| StreamCache::new(self.info.clone(), stream, index, list, slots));
        // Dropping a retired cache takes locks, so it happens without the lock on the table.
        drop(caches);
        drop(retired);
        Ok(cache)
    }

    /// If the pool has many caches, retires those that have no memory and no blocks, except recently created ones.
    /// Returns the retired caches; see [`retire`](Self::retire).
    fn retire_idle(&self) -> Vec<Arc<StreamCache>> {
        let limit = if self.info.arena.is_some() { Arena::STREAMS } else { usize::MAX };
        let candidates = locked(&self.caches).candidates(limit);
        if candidates.is_empty() {
            return Vec::new();
        }
        let retired = self.retire(&candidates, false);
        locked(&self.caches).plan_search();
        retired
    }

    /// Retires those of `caches` that are empty, and returns them. The caller holds the structure lock, and must hold
    /// no other lock when it drops the returned caches.
    ///
    /// In a re-mappable pool, a cache without blocks may still have free memory in the arena, which the streams of
    /// the pool share. If the work of its stream has ended, this memory is given to the other streams, and the cache
    /// is empty. With `wait`, the host waits for the end of that work. Without it, the host only queries an event.
    pub(super) fn retire(&self, caches: &[Arc<StreamCache>], wait: bool) -> Vec<Arc<StreamCache>> {
        let empty: Vec<_> =
            caches.iter().filter_map(|cache| Some((cache, self.leave_arena(cache, wait)?))).collect();
        // `usages` takes this lock too, so it counts each retired cache exactly once.
        let mut past = locked(&self.past);
        let retired: Vec<_> = empty
            .into_iter()
            .filter(|(cache, operations)| cache.retire(*operations))
            .map(|(cache, _)| cache.clone())
            .collect();
        if retired.is_empty() {
            return retired;
        }
        let mut gone = PoolUsages::default();
        retired.iter().for_each(|cache| gone.merge(&cache.state.lock().usages()));
        past.add(gone, sum_of(&self.caches()));
        drop(past);
        let mut table = locked(&self.caches);
        retired.iter().for_each(|cache| table.remove(cache));
        retired
    }

    /// Gives a cache's free memory in the arena to the other streams, under the conditions of [`retire`](Self::retire).
    /// Returns `None` if the cache is in use, or still has memory in the arena. Otherwise returns the number of
    /// operations at which the cache had none.
    ///
    /// Hits and frees do not take the structure lock. The number of the cache's operations shows whether one came after
    /// the first look: its work would not be covered by the wait for the stream.
    fn leave_arena(&self, cache: &StreamCache, wait: bool) -> Option<u64> {
        let operations = cache.idle_since()?;
        if self.info.arena.is_none() {
            return Some(operations);
        }
        cache.merge();
        if self.info.arena_mut().is_list_empty(cache.list) {
            return Some(operations);
        }
        let registry = self.registry();
        let ended = if wait {
            registry.drain_stream(cache.stream).is_ok()
        } else {
            let mut mark = Wait { stream: cache.stream, event: registry.mark(cache.stream) };
            let ended = mark.event.is_some() && registry.has_ended(&mut mark);
            if let Some(event) = mark.event.filter(|_| !ended) {
                registry.events.recycle(event);
            }
            ended
        };
        if !ended {
            return None;
        }
        let state = cache.state.lock();
        if state.ring.operations() != operations {
            return None;
        }
        self.info.arena_mut().share_list(cache.list);
        Some(operations)
    }

    /// Returns a guard. Until it is dropped, the pool does not grow, release memory, or lend memory to other pools.
    pub(super) fn freeze(&self) -> Freeze {
        self.guard(Guarded::Frozen);
        Freeze::counted(self.info.clone())
    }

    /// Returns a guard. Until it is dropped, the pool does not release memory, or lend memory to other pools.
    pub(super) fn keep(&self) -> Keep {
        self.guard(Guarded::Kept);
        Keep::counted(self.info.clone())
    }

    /// Adds a guard to the pool's count, and then waits for the end of running growths and releases.
    ///
    /// A release first takes the memory that it will release out of a cache or the arena, so that no request finds that
    /// memory. Inside a tracker, this function does not wait. A release that has not taken its memory yet then sees the
    /// guard and takes none. Another release, and a growth that has begun, may still complete.
    fn guard(&self, kind: Guarded) {
        let structure = self.registry().lock_structure();
        self.info.add_guard(kind);
        if let Some(mut structure) = structure {
            structure.wait_for_changes();
        } else {
            // A release reads the count again under these locks, before it withdraws memory.
            self.caches().iter().for_each(|cache| drop(cache.state.lock()));
            drop(self.info.arena.as_ref().map(|arena| arena.lock()));
        }
    }

    /// Returns the pool's current segments, or none for a re-mappable pool. The caller must hold a guard of
    /// [`keep`](Self::keep).
    pub(super) fn segments(&self) -> Vec<Segment> {
        // The caller's guard prevents removals. A running change may have taken a segment out of a cache to move it to
        // another stream, so this waits for such changes. Inside a tracker, it cannot wait, and may miss a segment that is
        // being moved.
        let mut structure = self.registry().lock_structure();
        if let Some(structure) = &mut structure {
            structure.wait_for_all_changes();
        }
        self.caches().iter().flat_map(|cache| cache.segments()).collect()
    }

    /// Returns the page and the block of a re-mappable pool that contain an address.
    pub(super) fn find_mapped(&self, address: u64) -> Option<AddressInfo> {
        let caches = self.caches();
        let found =
            self.info.arena.as_ref()?.lock().find(address).map(|(page, view)| (page.clone(), view))?;
        let (segment, view) = found;
        let owner = caches.iter().find_map(|cache| cache.state.lock().owner(view.id));
        Some(AddressInfo { segment, block: block_state(&view, owner) })
    }

    /// Returns the streams that may use memory of a re-mappable pool, including those of dropped caches.
    pub(super) fn streams(&self) -> Vec<StreamId> {
        let mut streams = self.info.left_streams();
        streams.extend(self.caches().iter().map(|cache| cache.stream));
        streams
    }

    /// Resets the pool's statistics. Calls `gauge` for the reserved bytes and for the usage of retired caches, and
    /// `counters` for the counters of each existing cache.
    pub(super) fn reset(&self, gauge: fn(&mut Gauge), counters: fn(&mut Counters)) {
        self.registry().change_pool_reserved(self.info.id, gauge);
        locked(&self.past).reset(gauge);
        self.caches().iter().for_each(|cache| counters(&mut cache.state.lock().counters));
    }

    pub(super) fn stats(&self) -> Stats {
        let PoolUsages { all, small, large } = self.usages();
        let reserved = self.registry().pool_reserved(self.info.id);
        Stats { all, small, large, reserved, ..Stats::default() }
    }

    /// Returns the usage of the pool's blocks, including the totals and peaks that retired caches have counted.
    pub(super) fn usages(&self) -> PoolUsages {
        let caches = self.caches();
        // While this lock is held, no cache is retired, so each cache is in one of the two sums.
        let mut past = locked(&self.past);
        past.with(sum_of(&caches))
    }
}

/// Returns the total usage of those of the caches that are not retired.
fn sum_of(caches: &[Arc<StreamCache>]) -> PoolUsages {
    let mut sum = PoolUsages::default();
    for state in caches.iter().map(|cache| cache.state.lock()) {
        if state.key != Key::RETIRED {
            sum.merge(&state.usages());
        }
    }
    sum
}

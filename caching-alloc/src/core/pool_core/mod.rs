//! A pool: its stream caches, and the guards that keep its memory.

mod pages;
mod saved;
mod table;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize as CaptureCount;

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
use super::stream::StreamId;
use super::stream_cache::{StreamCache, block_state};
use super::sync::Mutex;

/// A pool with its stream caches. It lives as long as a handle or a block of it.
#[derive(Debug)]
pub(super) struct PoolCore {
    pub(super) info: Arc<PoolInfo>,
    caches: Mutex<CacheTable>,
    /// Usage counted by retired caches.
    past: Mutex<PastUsages>,
}

/// The part of a pool that its handles share. Dropping the last handle closes the pool.
#[derive(Debug)]
pub(super) struct PoolHandle {
    pub(super) core: Arc<PoolCore>,
    /// Non-zero while a stream may be capturing.
    pub(super) captures: Arc<CaptureCount>,
    /// Set if requests are rounded to more than units.
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

    /// Its caches, in order of creation.
    pub(super) fn caches(&self) -> Vec<Arc<StreamCache>> {
        locked(&self.caches).all()
    }

    /// The cache of a stream, unless the pool's handles are gone.
    pub(super) fn find(&self, stream: StreamId) -> Option<Arc<StreamCache>> {
        locked(&self.caches).find(stream)
    }

    /// The cache of a stream, made if there is none.
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
        // Trackers and their snapshots cover every cache, so none is added while a tracker attaches.
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
        let cache = caches.add(|age| StreamCache::new(self.info.clone(), stream, age, list, slots));
        // Dropping the retired caches takes locks of its own.
        drop(caches);
        drop(retired);
        Ok(cache)
    }

    /// Retires caches without memory and blocks, if there are many caches.
    fn retire_idle(&self) -> Vec<Arc<StreamCache>> {
        let limit = if self.info.arena.is_some() { Arena::STREAMS } else { usize::MAX };
        let candidates = locked(&self.caches).candidates(limit);
        if candidates.is_empty() {
            return Vec::new();
        }
        let retired = self.retire(&candidates, false);
        locked(&self.caches).settle();
        retired
    }

    /// Retires those of the caches that are empty, and returns them, to be dropped without a lock except the
    /// structure lock, which the caller holds. Their free memory in an arena goes to the other streams if the
    /// host sees that their streams' work has ended, or, with `wait`, has waited for that.
    pub(super) fn retire(&self, caches: &[Arc<StreamCache>], wait: bool) -> Vec<Arc<StreamCache>> {
        let mut retired = caches.to_vec();
        retired.retain(|cache| self.leave_arena(cache, wait));
        // A thread that sums the usages waits for this lock until the retired caches are counted as past.
        let mut past = locked(&self.past);
        retired.retain(|cache| cache.retire());
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

    /// Leaves a cache's free memory in the arena, if there is one, to the others. Returns whether it has none
    /// left there.
    fn leave_arena(&self, cache: &StreamCache, wait: bool) -> bool {
        if self.info.arena.is_none() {
            return true;
        }
        if cache.state.lock().counters.active() > 0 {
            return false;
        }
        cache.merge();
        if self.info.arena_mut().is_list_empty(cache.list) {
            return true;
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
        if ended {
            self.info.arena_mut().leave_list(cache.list);
        }
        ended
    }

    /// Until the guard is dropped, the pool neither grows nor releases nor lends memory.
    pub(super) fn freeze(&self) -> Freeze {
        self.guard(Guarded::Frozen);
        Freeze::counted(self.info.clone())
    }

    /// Until the guard is dropped, the pool neither releases nor lends memory.
    pub(super) fn keep(&self) -> Keep {
        self.guard(Guarded::Kept);
        Keep::counted(self.info.clone())
    }

    /// Counts a guard, and returns when no running growth or release can have missed it.
    fn guard(&self, kind: Guarded) {
        let structure = self.registry().lock_structure();
        self.info.add_guard(kind);
        if structure.is_none() {
            // Inside a tracker. Memory is withdrawn under these locks, and the count is read again there.
            self.caches().iter().for_each(|cache| drop(cache.state.lock()));
            drop(self.info.arena.as_ref().map(|arena| arena.lock()));
        }
    }

    /// Its current segments, except those of a re-mappable pool.
    pub(super) fn segments(&self) -> Vec<Segment> {
        // Inside a tracker the lock is already held, or no change of the pool is running.
        let _structure = self.registry().lock_structure();
        self.caches().iter().flat_map(|cache| cache.segments()).collect()
    }

    /// The page of a re-mappable pool, and the block, that contain an address.
    pub(super) fn find_mapped(&self, address: u64) -> Option<AddressInfo> {
        let caches = self.caches();
        let found =
            self.info.arena.as_ref()?.lock().find(address).map(|(page, view)| (page.clone(), view))?;
        let (segment, view) = found;
        let owner = caches.iter().find_map(|cache| cache.state.lock().owner(view.id));
        Some(AddressInfo { segment, block: block_state(&view, owner) })
    }

    /// The streams that may use memory of a re-mappable pool, including those whose caches are gone.
    pub(super) fn streams(&self) -> Vec<StreamId> {
        let mut streams = self.info.left_streams();
        streams.extend(self.caches().iter().map(|cache| cache.stream));
        streams
    }

    /// Resets statistics of its segments and blocks.
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

    /// The current and past usage of its blocks.
    pub(super) fn usages(&self) -> PoolUsages {
        let caches = self.caches();
        // The lock stays held, so no cache is retired between the two sums.
        let mut past = locked(&self.past);
        past.with(sum_of(&caches))
    }
}

/// The usage of caches that are not retired.
fn sum_of(caches: &[Arc<StreamCache>]) -> PoolUsages {
    let mut sum = PoolUsages::default();
    for state in caches.iter().map(|cache| cache.state.lock()) {
        if state.key != Key::RETIRED {
            sum.merge(&state.usages());
        }
    }
    sum
}

//! Release of cached segments and idle pages to their sources.

use super::Engine;
use crate::core::entry::Action;
use crate::core::error::{Fault, chain};
use crate::core::fixed::Fits;
use crate::core::pool_core::PoolCore;
use crate::core::registry::StructureLock;
use crate::core::segment::{PoolId, Segment};
use crate::core::stream::StreamId;
use crate::core::stream_cache::StreamCache;

impl Engine {
    /// Releases idle segments of all pools, then idle pages of all re-mappable pools except `but`, until `wanted`
    /// bytes are released or none are left. Skips memory that must not be released now (see
    /// [`release_cache`](Self::release_cache) and [`release_pages`](Self::release_pages)). In each cache, the newest
    /// segments are released first. Returns the number of bytes released. A segment that is held is quarantined: it is
    /// released later, and does not count as released now.
    pub(in crate::core) fn release_cached(
        &self,
        structure: &mut StructureLock<'_>,
        wanted: u64,
        but: Option<PoolId>,
    ) -> u64 {
        let before = structure.own_released();
        // This releases the memory of dropped caches and pools, and quarantined segments that are no longer held. These
        // bytes count too.
        self.registry.reap(structure);
        for cache in self.caches() {
            let left = wanted.saturating_sub(structure.own_released() - before);
            if left == 0 {
                break;
            }
            self.release_cache(structure, &cache, &|_, _| true, left);
        }
        for pool in self.pools().iter().filter(|pool| pool.info.arena.is_some() && but != Some(pool.info.id))
        {
            let left = wanted.saturating_sub(structure.own_released() - before);
            if left == 0 {
                break;
            }
            self.release_pages(structure, pool, left);
        }
        structure.own_released() - before
    }

    /// Releases the segments that the pools have cached for the stream, after blocking the host until the work that
    /// uses them has ended. Then [retires](PoolCore::retire) those of the stream's caches that are empty. In a
    /// re-mappable pool, retiring a cache gives its memory to the other streams. Skips pools that must keep their
    /// memory, because they are frozen or used by a graph. Skips all pools while the stream is being captured. The
    /// stream no longer counts as one that carries collectives.
    pub(in crate::core) fn forget_stream(&self, structure: &mut StructureLock<'_>, stream: StreamId) {
        self.registry.unmark_collective(stream);
        for pool in self.pools() {
            let Some(cache) = pool.find(stream) else { continue };
            if cache.may_release() {
                cache.synchronize_pending();
                self.release_cache(structure, &cache, &|_, _| true, u64::MAX);
                settle(structure, &cache);
                drop(pool.retire(&[cache], true));
            }
        }
    }

    /// Releases idle pages of a re-mappable pool, until `wanted` bytes are released. A page that is held is not idle.
    /// Before the release, blocks the host until the work of all the pool's streams has ended. Releases none if this
    /// wait fails, while the pool must keep its memory, or while one of its streams is being captured.
    fn release_pages(&self, structure: &mut StructureLock<'_>, pool: &PoolCore, wanted: u64) {
        let (caches, streams) = (pool.caches(), pool.streams());
        let Some(source) = pool.info.source.as_pages() else { return };
        if pool.info.is_kept() || streams.iter().any(|stream| self.registry.is_captured(*stream)) {
            return;
        }
        caches.iter().for_each(|cache| cache.merge());
        // This waits for all work that uses moved pages at their old addresses, because a page must be mapped nowhere
        // else when it is released.
        if !pool.retire_old_mappings(true) {
            return;
        }
        let stale = pool.info.arena_mut().take_stale(0);
        pool.unmap_stale(source, &stale);
        let idle = {
            let mut arena = pool.info.arena_mut();
            // Since the check above, a tracker may have called `keep` or `freeze` of the pool.
            if pool.info.is_kept() { Vec::new() } else { arena.detach_idle(wanted) }
        };
        if idle.is_empty() {
            return;
        }
        let ended = streams.iter().try_for_each(|stream| self.registry.drain_stream(*stream));
        if let Err(error) = ended {
            for (pages, fragments) in idle {
                pages.iter().for_each(|page| self.registry.strand(page, &error));
                pool.info.arena_mut().reinstate(pages, fragments);
            }
            return;
        }
        caches.iter().for_each(|cache| settle(structure, cache));
        for (pages, fragments) in idle {
            for page in &pages {
                let action = Action::SegmentUnmap(page.clone());
                self.registry.emit(structure, pool.info.id, page.stream(), [action]);
            }
            let address = pages.first().map_or(0, Segment::address);
            self.registry.count(|calls| calls.unmap += 1);
            match source.unmap(address, pages.iter().map(Segment::bytes).sum()) {
                Ok(()) => pool.info.arena_mut().vacate(&fragments),
                // Pages may still be mapped there, so the blocks at these addresses stay out of every list of free
                // memory, and their addresses are not used again.
                Err(error) => {
                    self.registry.fault(Fault::Unmapped { pool: pool.info.id, message: chain(&error) });
                }
            }
            for page in pages {
                self.registry.count_out(pool.info.id, page.bytes());
                structure.count_released(page.bytes());
                self.registry.count(|calls| calls.discard += 1);
                if let Err(error) = source.discard(page.memory().token, page.bytes()) {
                    let message = chain(&error);
                    self.registry.fault(Fault::ReleaseFailed { segment: page, message });
                }
            }
        }
    }

    /// Releases those idle segments of a cache that `fits` selects, newest first, until they have at least `wanted`
    /// bytes together. Before that, blocks the host until the stream's work has ended. Releases none if this wait
    /// fails, while the pool must keep its memory, or while the stream is being captured.
    pub(super) fn release_cache(
        &self,
        structure: &mut StructureLock<'_>,
        cache: &StreamCache,
        fits: Fits<'_>,
        wanted: u64,
    ) {
        if !cache.may_release() {
            return;
        }
        cache.merge();
        let segments = {
            let mut state = cache.state.lock();
            // Since the check above, a tracker may have called `keep` or `freeze` of the pool.
            if cache.pool.is_kept() { Vec::new() } else { state.withdraw_all(fits, wanted) }
        };
        if segments.is_empty() {
            return;
        }
        match self.registry.drain_stream(cache.stream) {
            Ok(()) => {
                settle(structure, cache);
                segments.into_iter().for_each(|segment| self.registry.remove_segment(structure, segment))
            }
            Err(error) => {
                for segment in segments {
                    self.registry.strand(&segment, &error);
                    cache.put_back(segment);
                }
            }
        }
    }
}

/// Delivers the block entries of a cache that are not delivered yet, without the structure lock. Called before the
/// entry that removes or moves a segment, so that trackers get the entries of the segment's blocks first.
pub(super) fn settle(structure: &mut StructureLock<'_>, cache: &StreamCache) {
    if cache.has_block_trackers() {
        structure.unlocked(|| cache.settle_entries());
    }
}

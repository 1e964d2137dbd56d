//! Releasing memory: cached segments, and the memory of dropped pools.

use super::device::{Device, Growth};
use super::entry::Action;
use super::error::{Fault, chain};
use super::fixed::Fits;
use super::pool::PoolCore;
use super::segment::{PoolId, Segment};
use super::shard::Shard;
use super::stream::StreamId;

impl Shard {
    /// Returns true if its segments may be released.
    pub(super) fn may_release(&self) -> bool {
        let stays = self.pool.is_symmetric() || self.pool.is_kept();
        !stays && !self.device.is_captured(self.stream)
    }
}

impl Device {
    /// Returns true if a stream captures, or a capture of it was announced: the host must not wait for it.
    pub(super) fn is_captured(&self, stream: StreamId) -> bool {
        self.routes.has_stream(stream) || self.events.is_capturing(stream).unwrap_or(false)
    }

    /// Releases segments without blocks, newest first, until `wanted` bytes are released or none are left;
    /// returns the number of bytes released. Held ones are quarantined and do not count.
    pub(super) fn release_cached(&self, growth: &mut Growth, wanted: u64, but: Option<PoolId>) -> u64 {
        let before = self.totals().reserved.current;
        let gone = |device: &Self| before - device.totals().reserved.current;
        // Includes the memory of pools that were dropped since this began.
        self.reap(growth);
        for shard in self.shards() {
            let left = wanted.saturating_sub(gone(self));
            if left == 0 {
                break;
            }
            self.release_shard(growth, &shard, &|_, _| true, left);
        }
        for pool in self.pools().iter().filter(|pool| pool.arena.is_some() && but != Some(pool.id)) {
            let left = wanted.saturating_sub(gone(self));
            if left == 0 {
                break;
            }
            self.release_pages(growth, pool, left);
        }
        gone(self)
    }

    /// Releases the memory that every pool has cached for a stream, and retires the stream's shards that are
    /// empty then.
    pub(super) fn forget_stream(&self, growth: &mut Growth, stream: StreamId) {
        self.unmark_collective(stream);
        for pool in self.pools() {
            let Some(shard) = pool.find(stream) else { continue };
            if shard.may_release() {
                shard.synchronize_pending();
                self.release_shard(growth, &shard, &|_, _| true, u64::MAX);
                shard.settle_entries();
                drop(pool.retire(&[shard], true));
            }
        }
    }

    /// Releases idle pages of a re-mappable pool that nobody holds, until `wanted` bytes are released.
    fn release_pages(&self, growth: &mut Growth, pool: &PoolCore, wanted: u64) {
        let (shards, streams) = (pool.shards(), pool.streams());
        let captured = |stream: &StreamId| {
            self.routes.has_stream(*stream) || self.events.is_capturing(*stream).unwrap_or(true)
        };
        let Some(source) = pool.source.as_pages() else { return };
        if pool.is_kept() || streams.iter().any(captured) {
            return;
        }
        shards.iter().for_each(|shard| shard.merge());
        // A page is released only when no part of it is mapped elsewhere any more.
        if !pool.retire_ghosts(true) {
            return;
        }
        let stale = pool.arena_mut().take_stale(0);
        pool.unmap_stale(source, &stale);
        let idle = {
            let mut arena = pool.arena_mut();
            // A tracker may have started to keep the pool meanwhile.
            if pool.is_kept() { Vec::new() } else { arena.detach_idle(wanted) }
        };
        if idle.is_empty() {
            return;
        }
        shards.iter().for_each(|shard| shard.settle_entries());
        let ended = streams.iter().try_for_each(|stream| self.drain_stream(*stream));
        if let Err(error) = ended {
            let message = chain(&error);
            for (pages, pieces) in idle {
                for page in &pages {
                    self.fault(Fault::Stranded { segment: page.clone(), message: message.clone() });
                }
                pool.arena_mut().reinstate(pages, pieces);
            }
            return;
        }
        for (pages, pieces) in idle {
            for page in &pages {
                self.emit(growth, pool.id, page.stream(), Action::SegmentUnmap(page.clone()));
            }
            let address = pages.first().map_or(0, Segment::address);
            self.count(|calls| calls.unmap += 1);
            match source.unmap(address, pages.iter().map(Segment::bytes).sum()) {
                Ok(()) => pool.arena_mut().vacate(&pieces),
                // Pages may still be mapped there, so the fragments stay out of every list.
                Err(error) => {
                    self.fault(Fault::Unmapped { pool: pool.id, message: chain(&error) });
                }
            }
            for page in pages {
                self.count_out(pool, page.bytes());
                self.count(|calls| calls.discard += 1);
                if let Err(error) = source.discard(page.memory().token, page.bytes()) {
                    let message = chain(&error);
                    self.fault(Fault::ReleaseFailed { segment: page, message });
                }
            }
        }
    }

    /// Counts a segment of the pool as released.
    fn count_out(&self, pool: &PoolCore, bytes: u64) {
        let mut totals = self.totals();
        totals.source_releases += 1;
        totals.reserved.sub(bytes);
        totals.segments.sub(1);
        drop(totals);
        pool.reserved().sub(bytes);
    }

    /// Releases a shard's segments without blocks, among those selected by `fits`, until `wanted` bytes are
    /// released.
    pub(super) fn release_shard(&self, growth: &mut Growth, shard: &Shard, fits: Fits<'_>, wanted: u64) {
        if !shard.may_release() {
            return;
        }
        shard.merge();
        let segments = {
            let mut state = shard.state.lock();
            // A tracker may have started to keep the pool meanwhile.
            if shard.pool.is_kept() { Vec::new() } else { state.withdraw_all(fits, wanted) }
        };
        if segments.is_empty() {
            return;
        }
        shard.settle_entries();
        match self.drain_stream(shard.stream) {
            Ok(()) => segments.into_iter().for_each(|segment| self.remove_segment(growth, segment)),
            Err(error) => {
                let message = chain(&error);
                for segment in segments {
                    self.fault(Fault::Stranded { segment: segment.clone(), message: message.clone() });
                    shard.put_back(segment);
                }
            }
        }
    }
}

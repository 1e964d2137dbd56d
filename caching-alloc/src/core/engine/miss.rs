//! Misses: requests for which the stream's cache has no free block that fits. This file carries out the effects that
//! `attempts` selects.

use std::sync::Arc;

use super::Engine;
use super::attempts::{Attempts, Conditions, Effect, Outcome};
use super::sizes::{Need, SegmentSizes};
use crate::core::block::Block;
use crate::core::entry::Action;
use crate::core::error::{AllocError, OutOfMemory};
use crate::core::key::Key;
use crate::core::pool_core::PoolCore;
use crate::core::pool_info::PoolInfo;
use crate::core::recent;
use crate::core::registry::{Registry, StructureLock};
use crate::core::request::Request;
use crate::core::settings::{PoolKind, Reuse};
use crate::core::size::{SizeClass, Units, bytes_of};
use crate::core::source::{self, Cause};
use crate::core::stream::StreamId;
use crate::core::stream_cache::StreamCache;
use crate::core::tracker;

/// A request that misses, with the pool and the stream's cache to which it was made.
#[derive(Clone, Copy)]
pub(super) struct Miss<'a> {
    pub(super) engine: &'a Engine,
    pub(super) pool: &'a Arc<PoolCore>,
    pub(super) cache: &'a Arc<StreamCache>,
    pub(super) request: Request,
    /// The class of segments that serves the request. In a re-mappable pool, and in a pool that does not split, it is
    /// always [`SizeClass::Large`].
    pub(super) class: SizeClass,
}

/// The result of an effect: `Ok(Ok(block))` if it found a block, `Ok(Err(outcome))` if it found none, and
/// `Err(error)` if the request fails.
pub(super) type Performed = Result<Result<Block, Outcome>, AllocError>;

impl Engine {
    /// Allocates a block. Called if the thread-local list of recent caches does not have the stream's cache, or if
    /// that cache has found no free block that fits.
    #[cold]
    pub(in crate::core) fn allocate(
        &self,
        pool: &Arc<PoolCore>,
        key: Key,
        request: Request,
    ) -> Result<Block, AllocError> {
        loop {
            let cache = &pool.cache(key.stream)?;
            recent::remember(key, cache.state);
            let mut found = cache.hit(request);
            if found.is_none() {
                let class = cache.state.lock().class(request.units);
                found = Miss { engine: self, pool, cache, request, class }.run()?;
            }
            if let Some(block) = found {
                cache.deliver_batch();
                return Ok(block);
            }
            // The cache was retired meanwhile: removed because it was empty. The next iteration gets the stream's
            // current cache.
        }
    }
}

impl Miss<'_> {
    /// Makes all attempts. If they find no memory and an observer asks for a retry, makes them once more. Returns
    /// `None` if the cache was retired meanwhile, so that the stream has another cache or none.
    fn run(self) -> Result<Option<Block>, AllocError> {
        let mut outcome = self.attempt();
        if let Err(AllocError::OutOfMemory(figures)) = &outcome
            && self.engine.observers.ask(figures, self.registry())
        {
            outcome = self.attempt();
        }
        if let Err(AllocError::OutOfMemory(figures)) = &outcome {
            self.report(figures);
        }
        outcome
    }

    /// Counts a request that failed for lack of memory, and notifies trackers.
    fn report(self, figures: &OutOfMemory) {
        let registry = self.registry();
        registry.totals().out_of_memory += 1;
        let action = Action::OutOfMemory { wanted: figures.wanted, free: figures.info.map(|info| info.free) };
        let notice = registry.note(&mut registry.structure(), self.info().id, self.stream(), [action]);
        registry.deliver(notice);
    }

    fn attempt(self) -> Result<Option<Block>, AllocError> {
        if tracker::inside() {
            return Err(AllocError::reentrant());
        }
        self.info().refuse_capture(self.stream())?;
        let sizes = self.info().arena.is_none().then(|| self.segment_sizes());
        let least = self.least_segment(sizes);
        self.refuse_frozen(least)?;
        let polled = self.cache.try_poll_pending();
        if polled == Some(true)
            && let Some(block) = self.hit()
        {
            return Ok(Some(block));
        }
        let structure = &mut self.registry().structure();
        let Some(_pinned) = self.cache.pin() else { return Ok(None) };
        // While this thread waited for the lock, another one may have added a segment, or frozen the pool.
        if let Some(block) = self.hit() {
            return Ok(Some(block));
        }
        self.refuse_frozen(least)?;
        if polled.is_none()
            && self.cache.poll_pending()
            && let Some(block) = self.hit()
        {
            return Ok(Some(block));
        }
        self.registry().reap(structure);
        let mut attempts = Attempts::new(self.conditions(sizes));
        let mut outcome = Outcome::Nothing;
        let mut cause = None;
        // `structure.released` counts the bytes that all threads have released. This variable has its value after the
        // latest attempt to allocate a segment or, before the first attempt, at the start of the loop.
        let mut released = structure.released;
        loop {
            let effect = attempts.step(outcome);
            if effect == Effect::GiveUp {
                return Err(self.out_of_memory(least, cause));
            }
            match self.perform(structure, effect, &mut cause)? {
                Ok(block) => return Ok(Some(block)),
                Err(Outcome::Freed(_)) => outcome = Outcome::Freed(structure.released - released),
                Err(none) => outcome = none,
            }
            if let Effect::Allocate { .. } = effect {
                released = structure.released;
            }
            structure.end_change();
        }
    }

    /// Carries out one effect. If the source is out of memory, sets `cause` to the cause of its error.
    fn perform(
        self,
        structure: &mut StructureLock<'_>,
        effect: Effect,
        cause: &mut Option<Cause>,
    ) -> Performed {
        let (engine, registry) = (self.engine, self.registry());
        let found = match effect {
            Effect::Adopt { wait } => self.adopt(structure, wait),
            Effect::OrderPending => self.order_pending(),
            Effect::Allocate { bytes } => self.add_segment(structure, bytes, cause)?,
            Effect::Borrow { wait } => self.borrow(wait, self.others()),
            Effect::BorrowFromPools => self.borrow_from_pools(),
            Effect::Merge => self.merge_all(),
            Effect::TakeFragments => self.take_fragments(true),
            Effect::OtherTier => self.other_tier(),
            Effect::MapPages { extent } => self.map_pages(structure, extent, cause)?,
            Effect::SynchronizePending => {
                engine.caches().iter().for_each(|cache| _ = cache.synchronize_pending());
                self.hit()
            }
            Effect::CollectIdle => {
                engine.collect_idle(structure);
                None
            }
            Effect::CountRetry => {
                registry.totals().retries += 1;
                None
            }
            Effect::CountOperations => {
                // While another thread's change of segments is under way, memory that would serve the request may be
                // in no cache.
                structure.wait_for_changes();
                let operations = engine.operations() + structure.changes_of_others();
                return Ok(Err(Outcome::Operations(operations)));
            }
            Effect::ReplaceShort { bytes } => {
                return Ok(Err(Outcome::Freed(self.replace_short(structure, bytes))));
            }
            Effect::ReleaseUnsplit { bytes } => {
                return Ok(Err(Outcome::Freed(self.release_unsplit(structure, bytes))));
            }
            Effect::ReleaseCached => {
                let but = self.info().arena.is_some().then_some(self.info().id);
                return Ok(Err(Outcome::Freed(engine.release_cached(structure, u64::MAX, but))));
            }
            Effect::GiveUp => None,
        };
        Ok(found.ok_or(Outcome::Nothing))
    }

    pub(super) fn registry(&self) -> &Registry {
        &self.engine.registry
    }

    pub(super) fn info(&self) -> &PoolInfo {
        &self.pool.info
    }

    pub(super) fn stream(&self) -> StreamId {
        self.cache.stream
    }

    /// Allocates a block from the free memory of the stream's cache, after merging its cached blocks if necessary.
    pub(super) fn hit(self) -> Option<Block> {
        self.cache.hit(self.request)
    }

    /// Returns the pool's caches of other streams.
    pub(super) fn others(self) -> impl Iterator<Item = Arc<StreamCache>> {
        self.pool.caches().into_iter().filter(move |other| other.stream != self.stream())
    }

    fn conditions(self, sizes: Option<SegmentSizes>) -> Conditions {
        let settings = &self.registry().settings;
        let replaces = settings.replace_idle
            && self.info().kind == PoolKind::Cached
            && self.class == SizeClass::Large
            && !self.registry().is_collective(self.stream());
        let limits_splits = self.info().splitting().longest < Units::MAX;
        Conditions { reuse: settings.reuse, sizes, replaces, limits_splits }
    }

    fn segment_sizes(self) -> SegmentSizes {
        let splits = self.info().kind != PoolKind::NoSplit;
        let need = Need {
            block: bytes_of(self.request.units),
            class: self.class,
            step: source::step(&*self.info().source),
            longest: splits.then(|| bytes_of(self.info().splitting().longest)),
            reserved: self.cache.state.lock().fixed.reserved(self.class),
        };
        SegmentSizes::new(&self.registry().settings, need, || {
            self.info().available(self.reserved_elsewhere())
        })
    }

    /// Returns the total length in bytes of the segments of those pools that have another source than this one.
    fn reserved_elsewhere(self) -> u64 {
        let pools = self.engine.pools();
        let others = pools.iter().filter(|pool| !pool.info.has_source_of(self.info()));
        others.map(|pool| pool.info.reserved()).sum()
    }

    /// Returns the size in bytes of the smallest segment that would serve the request. In a re-mappable pool, returns
    /// the length of the block, rounded up to whole pages of the smallest size.
    fn least_segment(self, sizes: Option<SegmentSizes>) -> u64 {
        let step = source::step(&*self.info().source);
        sizes.map_or_else(|| bytes_of(self.request.units).next_multiple_of(step), |sizes| sizes.least)
    }

    /// Returns an error if the pool is frozen, and therefore must not grow. `missing` is the size in bytes of the
    /// segment that the request needs, for the error.
    fn refuse_frozen(self, missing: u64) -> Result<(), AllocError> {
        if !self.info().is_frozen() {
            return Ok(());
        }
        let (pool, wanted) = (self.info().id, self.request.bytes);
        Err(AllocError::PoolWouldGrowDuringCapture { pool, wanted, missing })
    }

    /// Allocates a block from one of the caches `others`, which belong to other streams or pools. A cache of the same
    /// stream can always lend. Without `wait`, a cache of another stream lends only if the host has seen the end of
    /// that stream's work. With `wait`, this stream may have to wait for the other one on the device. When the block is
    /// freed, it returns to the lending cache after its uses on this stream have ended.
    fn borrow(self, wait: bool, others: impl IntoIterator<Item = Arc<StreamCache>>) -> Option<Block> {
        for other in others {
            other.poll_pending();
            let Some(id) = other.reserve(self.request) else { continue };
            let ordered = self.registry().is_ordered_after(self.stream(), other.stream, wait);
            let mut state = other.state.lock();
            // A closed pool lends nothing: a block that is handed out after the closing does not keep the pool alive.
            if ordered && !state.is_closed {
                self.registry().totals().borrowed += 1;
                return Some(Block::hand_out(other.state, &mut state, id, self.request, self.stream()));
            }
            let units = state.meta_of(id).units;
            state.unreserve(id, units);
        }
        None
    }

    /// Allocates a block from a pool that lends to this one. Returns `None` while the stream is being captured: after
    /// the free, the block would return to the lender and could be used there while a launch of the graph uses it.
    fn borrow_from_pools(self) -> Option<Block> {
        if self.registry().events.is_capturing(self.stream()).unwrap_or(true) {
            return None;
        }
        let lends = |pool: &Arc<PoolCore>| self.info().may_borrow_from(&pool.info);
        let lenders = || self.engine.pools().into_iter().filter(lends).flat_map(|pool| pool.caches());
        let wait = self.registry().settings.reuse >= Reuse::DeviceWait;
        let ready = self.borrow(false, lenders());
        ready.or_else(|| wait.then(|| self.borrow(true, lenders())).flatten())
    }

    /// Returns the error for a request that found no memory, with the current memory use.
    fn out_of_memory(self, least: u64, source: Option<Cause>) -> AllocError {
        let registry = self.registry();
        let info = self.info().source.memory_info().ok();
        let (all, pool) = (self.engine.stats(), self.pool.stats());
        AllocError::OutOfMemory(Box::new(OutOfMemory {
            device: registry.ordinal(),
            pool: self.info().id,
            pool_name: self.info().name.clone(),
            stream: self.stream(),
            wanted: self.request.bytes,
            segment: least,
            info,
            reserved: all.reserved.current,
            allocated: all.all.allocated.current,
            pending: all.all.active.current - all.all.allocated.current,
            quarantined: all.quarantined,
            pool_reserved: pool.reserved.current,
            pool_allocated: pool.all.allocated.current,
            limit: registry.limit(),
            source_limit: self.info().source.source_limit().filter(|limit| limit.left() < least),
            source,
        }))
    }
}

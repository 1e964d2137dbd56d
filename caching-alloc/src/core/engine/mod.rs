//! The engine: finds memory for requests that miss, releases memory, and answers queries about all pools.
//!
//! A request hits if its stream's cache has a free block that fits, and misses otherwise. If a request misses, the
//! engine makes one attempt after another to find memory. An attempt consists of effects, for example the allocation of
//! a segment.
//!
//! - `attempts`: selects the next effect, as a state machine without I/O.
//! - `miss`: carries out the selected effects.
//! - `fixed`, `remap`: the effects for pools of fixed segments, and for re-mappable pools.
//! - `sizes`: the sizes of new segments.
//! - `release`: releases memory to its source.
//! - `collect`: releases the segments that have been idle for long.
//! - `watch`: snapshots, attaching and detaching of trackers, and the result of
//!   [`Allocator::since`](super::Allocator::since).
//!
//! The structure lock guards the set of segments. It is held during every effect, except while trackers are called,
//! and while the effect waits for other threads that change segments. While an effect calls the driver or a tracker, it
//! holds no lock that a hit takes.

mod attempts;
mod collect;
mod fixed;
mod miss;
mod release;
mod remap;
mod sizes;
mod watch;

use std::sync::{Arc, Weak};

pub use self::watch::Since;
use super::error::AllocError;
use super::graph_use::{GRAPH, GraphUse};
use super::lock::{Rank, Ranked};
use super::observer::Observers;
use super::pool_core::{PoolCore, PoolHandle};
use super::pool_info::{Keep, PoolInfo};
use super::raw_blocks::RawBlocks;
use super::registry::{Registry, Structure, locked};
use super::route::Routes;
use super::segment::Segment;
use super::settings::{PoolKind, PoolSettings};
use super::snapshot::{AddressInfo, Usage};
use super::stats::{PoolUsages, Stats};
use super::stream::CapturedUses;
use super::stream_cache::StreamCache;
use crate::sync::Mutex;

/// The state that is shared by the handles of an allocator and of its pools.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) registry: Arc<Registry>,
    pools: Mutex<Vec<Weak<PoolCore>>>,
    /// Held while a tracker is attached or detached.
    attachments: Ranked<()>,
    pub(super) routes: Routes,
    pub(super) observers: Observers,
    pub(super) raw: Mutex<RawBlocks>,
}

impl Engine {
    pub(super) fn new(registry: Arc<Registry>) -> Arc<Self> {
        let engine = Arc::new(Self {
            registry,
            pools: Mutex::default(),
            attachments: Ranked::new(Rank::Attachments, ()),
            routes: Routes::default(),
            observers: Observers::default(),
            raw: Mutex::default(),
        });
        engine.registry.report_captured_uses(Arc::downgrade(&engine) as Weak<dyn CapturedUses>);
        engine
    }

    /// Creates a pool.
    ///
    /// # Errors
    /// [`AllocError::PoolSettings`], [`AllocError::OtherDevice`], [`AllocError::NoPages`];
    /// [`AllocError::ReentrantTracker`] inside a tracker.
    pub(super) fn add_pool(&self, settings: PoolSettings) -> Result<Arc<PoolHandle>, AllocError> {
        let source = settings.source.as_ref().unwrap_or(&self.registry.source);
        if let Some(what) = settings.contradiction() {
            return Err(AllocError::PoolSettings { pool: settings.name, what });
        }
        let (wanted, found) = (self.registry.ordinal(), source.device());
        if wanted != found {
            return Err(AllocError::OtherDevice { pool: settings.name, wanted, found });
        }
        if settings.kind == PoolKind::Remappable && source.as_pages().is_none() {
            return Err(AllocError::NoPages);
        }
        let mut structure = self
            .registry
            .lock_structure()
            .ok_or(AllocError::ReentrantTracker { operation: "creating a pool" })?;
        Ok(self.insert_pool(&mut structure, settings))
    }

    /// Creates the default pool of a new allocator.
    pub(super) fn add_default_pool(&self, kind: PoolKind) -> Arc<PoolHandle> {
        let settings = PoolSettings { name: "default".into(), kind, ..PoolSettings::default() };
        self.insert_pool(&mut self.registry.structure(), settings)
    }

    fn insert_pool(&self, structure: &mut Structure, settings: PoolSettings) -> Arc<PoolHandle> {
        let core = PoolCore::new(PoolInfo::new(&self.registry, structure, settings));
        let mut pools = locked(&self.pools);
        if pools.len() == pools.capacity() {
            // This removes the entries of dropped pools before the list grows, so its length stays in proportion to
            // the number of pools in use.
            pools.retain(|pool| pool.strong_count() > 0);
        }
        pools.push(Arc::downgrade(&core));
        drop(pools);
        PoolHandle::new(core)
    }

    /// Returns the pools that are in use, in order of creation.
    pub(super) fn pools(&self) -> Vec<Arc<PoolCore>> {
        let mut pools = locked(&self.pools);
        pools.retain(|pool| pool.strong_count() > 0);
        pools.iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns all stream caches, by pool and in order of creation.
    pub(super) fn caches(&self) -> Vec<Arc<StreamCache>> {
        self.pools().iter().flat_map(|pool| pool.caches()).collect()
    }

    /// Returns the number of operations in all caches so far. An operation hands out a block, frees one, or completes
    /// the free of a pending block after its uses on other streams have ended.
    fn operations(&self) -> u64 {
        self.caches().iter().map(|cache| cache.state.lock().ring.operations()).sum()
    }

    /// Returns the allocator's statistics.
    pub(super) fn stats(&self) -> Stats {
        let stats = *self.registry.totals();
        let mut usages = PoolUsages::default();
        self.pools().iter().for_each(|pool| usages.merge(&pool.usages()));
        let PoolUsages { all, small, large } = usages;
        Stats { all, small, large, ..stats }
    }

    /// Returns the segment and the block that contain an address. Returns `None` if no live segment contains it. Also
    /// returns `None` if that segment is in no cache, because its cache was dropped, or because another thread is
    /// adding, moving or removing the segment.
    pub(super) fn find(&self, address: u64) -> Option<AddressInfo> {
        let segment = self.registry.segment_at(address)?;
        let pools = self.pools();
        let pool = pools.iter().find(|pool| pool.info.id == segment.pool())?;
        if pool.info.arena.is_some() {
            return pool.find_mapped(address);
        }
        let found = pool.find(segment.stream()).and_then(|cache| cache.find(address));
        // `PoolCore::find` returns `None` after the pool is closed, and the segment may be moving to another stream. So
        // all caches are searched.
        found.or_else(|| pool.caches().iter().find_map(|cache| cache.find(address)))
    }

    /// If the block of `segment` that contains `address` is handed out, makes `graph` a user of it, and returns true.
    fn block_used_by_graph(&self, segment: &Segment, address: u64, graph: &GraphUse) -> bool {
        let Some(pool) = self.pools().into_iter().find(|pool| pool.info.id == segment.pool()) else {
            return false;
        };
        // A graph pool reuses freed memory within a capture and in later captures. So the graph keeps the pool's memory
        // in place, but not its blocks.
        let guards = || Some((Keep::further(&pool.info)?, segment.hold(GRAPH).ok()?));
        graph.keep(self.registry.kept_key(Some(segment.id())), guards)
            || pool.caches().iter().any(|cache| cache.block_used_by_graph(address, graph))
    }
}

impl CapturedUses for Engine {
    fn used_by_graph(&self, address: u64, bytes: u64, graph: &GraphUse) -> bool {
        let mut is_used = false;
        self.registry.walk(address, bytes, |at| {
            let AddressInfo { segment, block } = self.find(at)?;
            is_used |= block.usage == Usage::Active && self.block_used_by_graph(&segment, at, graph);
            Some(block.address + block.bytes)
        });
        is_used
    }
}

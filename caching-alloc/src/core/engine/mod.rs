//! The engine: finds memory for requests that miss, releases memory, and answers questions about all pools.
//!
//! - `attempts`: the order of attempts of a miss, as a state machine without I/O
//! - `miss`: carries its effects out; `fixed` and `remap` have those of the two kinds of placement
//! - `sizes`: the sizes of new segments
//! - `release`, `collect`: give memory back to its source
//! - `watch`: snapshots, trackers and late readers
//!
//! All effects run under the structure lock, and none under the lock of a stream cache.

mod attempts;
mod collect;
mod fixed;
mod miss;
mod release;
mod remap;
mod sizes;
mod watch;

use std::collections::HashMap;
use std::sync::{Arc, Weak};

pub use self::watch::Since;
use super::block::Block;
use super::error::AllocError;
use super::observer::Observers;
use super::pool_core::{PoolCore, PoolHandle};
use super::pool_info::PoolInfo;
use super::registry::{Registry, Structure, locked};
use super::route::Routes;
use super::settings::{PoolKind, PoolSettings};
use super::snapshot::AddressInfo;
use super::stats::{PoolUsages, Stats};
use super::stream_cache::StreamCache;
use super::sync::Mutex;

/// The state that the handles of an allocator and of its pools share.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) registry: Arc<Registry>,
    pools: Mutex<Vec<Weak<PoolCore>>>,
    pub(super) routes: Routes,
    pub(super) observers: Observers,
    /// Blocks that were allocated raw.
    pub(super) raw: Mutex<HashMap<u64, Arc<Block>>>,
}

impl Engine {
    pub(super) fn new(registry: Arc<Registry>) -> Arc<Self> {
        Arc::new(Self {
            registry,
            pools: Mutex::default(),
            routes: Routes::default(),
            observers: Observers::default(),
            raw: Mutex::default(),
        })
    }

    /// Makes a pool.
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
        let mut structure = self.registry.lock_structure().ok_or_else(AllocError::reentrant)?;
        Ok(self.insert_pool(&mut structure, settings))
    }

    /// Makes the default pool of a new allocator.
    pub(super) fn add_default_pool(&self, kind: PoolKind) -> Arc<PoolHandle> {
        let settings = PoolSettings { name: "default".into(), kind, ..PoolSettings::default() };
        self.insert_pool(&mut self.registry.structure.lock(), settings)
    }

    fn insert_pool(&self, structure: &mut Structure, settings: PoolSettings) -> Arc<PoolHandle> {
        let core = PoolCore::new(PoolInfo::new(&self.registry, structure, settings));
        let mut pools = locked(&self.pools);
        if pools.len() == pools.capacity() {
            // Before the list is moved to a longer one: so it is as long as the number of pools in use.
            pools.retain(|pool| pool.strong_count() > 0);
        }
        pools.push(Arc::downgrade(&core));
        drop(pools);
        PoolHandle::new(core)
    }

    /// The pools that are in use, in order of creation.
    pub(super) fn pools(&self) -> Vec<Arc<PoolCore>> {
        let mut pools = locked(&self.pools);
        pools.retain(|pool| pool.strong_count() > 0);
        pools.iter().filter_map(Weak::upgrade).collect()
    }

    /// All stream caches, by pool and in order of creation.
    pub(super) fn caches(&self) -> Vec<Arc<StreamCache>> {
        self.pools().iter().flat_map(|pool| pool.caches()).collect()
    }

    /// The number of blocks handed out, freed and completed so far.
    fn operations(&self) -> u64 {
        self.caches().iter().map(|cache| cache.state.lock().ring.operations()).sum()
    }

    /// The allocator's statistics.
    pub(super) fn stats(&self) -> Stats {
        let stats = *self.registry.totals();
        let mut usages = PoolUsages::default();
        self.pools().iter().for_each(|pool| usages.merge(&pool.usages()));
        let PoolUsages { all, small, large } = usages;
        Stats { all, small, large, ..stats }
    }

    /// The segment and block that contain an address.
    pub(super) fn find(&self, address: u64) -> Option<AddressInfo> {
        let segment = self.registry.segment_at(address)?;
        let pools = self.pools();
        let pool = pools.iter().find(|pool| pool.info.id == segment.pool())?;
        if pool.info.arena.is_some() {
            return pool.find_mapped(address);
        }
        let found = pool.find(segment.stream()).and_then(|cache| cache.find(address));
        // The cache of a dropped pool, or a segment that changes streams just now.
        found.or_else(|| pool.caches().iter().find_map(|cache| cache.find(address)))
    }
}

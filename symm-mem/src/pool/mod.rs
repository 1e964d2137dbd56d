//! Symmetric pools: placement that is the same on every rank, memory that stays, look-up.
//!
//! | file | subject |
//! |---|---|
//! | `memory` | the segments, kept until nobody can reach them |
//! | `block`, `capture` | who holds what |
//! | `lookup` | from an address to its segment and its standing in a group |
//!
//! Allocation only places and journals; windows are made by a commit alone.

mod block;
mod capture;
mod lookup;
mod memory;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use arc_swap::ArcSwap;
use caching_alloc::{
    core::{
        SegmentSource,
        symmetric::{Geometry, Placed, SymmetricArena, SymmetricError, SymmetricSegment},
    },
    driver::{Sharing, VirtualMemorySource},
};
use cuda_driver::{Context, DevicePtr};

pub use self::{
    block::SymmetricBlock,
    capture::{GraphPin, PoolCapture},
    lookup::{LookupError, Residence, Standing},
};
pub(crate) use self::{lookup::Table, memory::Memory};
use crate::{
    agreement::{GroupId, LogPoint, PoolId},
    commit::Seated,
    domain::Domain,
};

/// A pool whose blocks lie at the same place on every rank of its domain, and whose segments become windows of the
/// groups that it is committed for.
///
/// The ranks of the domain ask it for the same things in the same order; [`commit`](Self::commit) finds out if
/// they did not. Used by one thread at a time (it is `Sync`, but the order of two threads would be an accident).
pub struct SymmetricPool {
    id: PoolId,
    domain: Domain,
    memory: Arc<Memory>,
    table: ArcSwap<Table>,
    seats: Mutex<BTreeMap<GroupId, Arc<Mutex<Seated>>>>,
}

impl SymmetricPool {
    /// A pool of `domain` on the device of `context`. Its segments are virtual memory that can be exported to
    /// other processes by file descriptor; they grow as `geometry` says, equal on all ranks. Not collective, but all
    /// ranks make a domain's pools in the same order.
    ///
    /// # Errors
    /// [`SymmetricError`] if the device has no such memory.
    pub fn new(domain: &Domain, context: &Context, geometry: Geometry) -> Result<Self, SymmetricError> {
        let source = VirtualMemorySource::new(context, Sharing::by_descriptor())
            .map_err(|source| SymmetricError::Source { ordinal: 0, bytes: 0, source })?;
        Self::with_source(domain, Arc::new(source), geometry)
    }

    /// A pool over the memory of `source`, which must be what the group's library can register.
    ///
    /// # Errors
    /// [`SymmetricError::Granularity`].
    pub fn with_source(
        domain: &Domain,
        source: Arc<dyn SegmentSource>,
        geometry: Geometry,
    ) -> Result<Self, SymmetricError> {
        let arena = SymmetricArena::new(source, geometry)?;
        Ok(Self {
            id: domain.next_pool(),
            domain: domain.clone(),
            memory: Arc::new(Memory::new(arena)),
            table: ArcSwap::default(),
            seats: Mutex::default(),
        })
    }

    /// The pool's name, the same on every rank.
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// The ranks that promise the same sequence of allocations.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// A block of `bytes`. Not collective.
    ///
    /// # Errors
    /// [`SymmetricError`]: no memory, or [`SymmetricError::PoolWouldGrowDuringCapture`].
    #[track_caller]
    pub fn allocate(&self, bytes: u64) -> Result<SymmetricBlock, SymmetricError> {
        let mut arena = self.memory.arena();
        let placed = arena.allocate(bytes)?;
        Ok(self.hand_out(&arena, placed, bytes))
    }

    /// A block of `bytes` that errors about differences between ranks call `tag`. Not collective.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    #[track_caller]
    pub fn allocate_tagged(
        &self,
        bytes: u64,
        tag: impl Into<Cow<'static, str>>,
    ) -> Result<SymmetricBlock, SymmetricError> {
        let mut arena = self.memory.arena();
        let placed = arena.allocate_tagged(bytes, tag)?;
        Ok(self.hand_out(&arena, placed, bytes))
    }

    /// Publishes the segment that was made for a block, if one was, before the block is handed out.
    fn hand_out(&self, arena: &SymmetricArena, placed: Placed, bytes: u64) -> SymmetricBlock {
        let table = self.table.load();
        if let Some(segment) = arena.segments().get(table.segments()) {
            let SymmetricSegment { ordinal, bytes, memory, .. } = *segment;
            self.table.store(Arc::new(table.with_segment(ordinal, memory.address, bytes)));
        }
        SymmetricBlock::new(self.memory.clone(), placed, bytes)
    }

    /// Where the `bytes` at `ptr` lie, and what their segment is to `group`; `None` if not in this pool. A search
    /// in a sorted array: no lock, no allocation.
    ///
    /// # Errors
    /// [`LookupError::SpansSegments`].
    pub fn lookup(
        &self,
        ptr: DevicePtr,
        bytes: u64,
        group: GroupId,
    ) -> Result<Option<Residence>, LookupError> {
        self.table.load().lookup(ptr.0, bytes, group)
    }

    /// Freezes the pool for a graph capture.
    pub fn begin_capture(&self) -> PoolCapture {
        PoolCapture::begin(self.memory.clone())
    }

    /// How many segments there are.
    pub fn segments(&self) -> usize {
        self.memory.arena().segments().len()
    }

    /// The allocation log: how many operations, and their hash. Equal on all ranks that kept the promise.
    pub fn log(&self) -> LogPoint {
        let state = self.memory.arena().log().state();
        LogPoint { length: state.length, hash: state.hash }
    }

    /// Forgets a group whose communicator is gone.
    pub fn forget(&self, group: GroupId) {
        let seated = self.seats().get(&group).cloned();
        if let Some(seated) = seated {
            seated.lock().unwrap_or_else(PoisonError::into_inner).forget();
        }
        self.update_table(|table| table.without_group(group));
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub(crate) fn table(&self) -> Arc<Table> {
        self.table.load_full()
    }

    /// Replaces the table, not while another does so.
    pub(crate) fn update_table(&self, change: impl FnOnce(&Table) -> Table) {
        // The arena's lock orders this with the publication of new segments.
        let _alone = self.memory.arena();
        self.table.store(Arc::new(change(&self.table.load())));
    }

    pub(crate) fn seats(&self) -> MutexGuard<'_, BTreeMap<GroupId, Arc<Mutex<Seated>>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for SymmetricPool {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "SymmetricPool({}, {} segments)", self.id, self.segments())
    }
}

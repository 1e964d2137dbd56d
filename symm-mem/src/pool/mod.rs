//! Symmetric pools: placement that is the same on every rank, memory that stays, look-up.
//!
//! | file | subject |
//! |---|---|
//! | `memory` | the segments, kept until nobody can reach them |
//! | `block`, `capture` | who holds what |
//! | `lookup` | from an address to its segment and its standing in a group |
//! | `explain` | which way a group's collectives take to a buffer, and why |
//! | `peers` | where the other members of a group have a block, by its window |
//! | `places` | where buffers lie, for groups that compare it before each operation |
//! | `agreed` | allocations of a length that the ranks agree on |
//! | `retire` | segments that go, on all ranks or on none |
//!
//! Allocation only places and journals; windows are made by a commit alone.

mod agreed;
mod block;
mod capture;
mod explain;
mod lookup;
mod memory;
mod peers;
mod places;
mod retire;

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
use cuda_driver::{Context, DevicePtr, graph::captures_of_this_thread};
use process_group::{comm::Window, graph_memory::GraphMemory, group::places_changed};

use self::memory::Arena;
#[cfg(any(test, feature = "simulation"))]
pub(crate) use self::memory::GraphHold;
#[cfg(any(test, feature = "simulation"))]
pub(crate) use self::retire::Found as RetirementFound;
pub use self::{
    agreed::AgreedError,
    block::SymmetricBlock,
    capture::{GraphPin, PoolCapture},
    explain::{Explanation, Path, Why},
    lookup::{LookupError, Residence, Standing},
    retire::{RetireError, RetireReport},
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
    context: Option<Context>,
    memory: Arc<Memory>,
    table: Arc<ArcSwap<Table>>,
    seats: Mutex<BTreeMap<GroupId, Arc<Mutex<Seated>>>>,
    /// The segments that were retired, in that order.
    retired: Mutex<Vec<u32>>,
    meetings: Mutex<Meetings>,
    /// After the table.
    _farewell: places::Farewell,
}

/// What is counted of the meetings of the whole domain.
#[derive(Debug, Default)]
struct Meetings {
    lengths: u64,
    retirements: u64,
    /// Keys of earlier meetings that this rank removes once all have come to a later one.
    used_keys: Vec<String>,
}

impl SymmetricPool {
    /// A pool of `domain` on the device of `context`. Its segments are virtual memory that other processes can have by
    /// file descriptor, and by fabric handle too where the driver [grants](Sharing::granted) it; they lie one behind the
    /// other and grow as `geometry` says, equal on all ranks. Not collective, but all ranks make a domain's pools in the
    /// same order. For memory that can be had otherwise: [`with_source`](Self::with_source).
    ///
    /// # Errors
    /// [`SymmetricError::Source`] if the device has no such memory, or none left to find out how it can be had.
    pub fn new(domain: &Domain, context: &Context, geometry: Geometry) -> Result<Self, SymmetricError> {
        let source = Sharing::granted(context)
            .and_then(|sharing| VirtualMemorySource::new(context, sharing))
            .and_then(VirtualMemorySource::in_a_row)
            .map_err(|source| SymmetricError::Source { ordinal: 0, bytes: 0, source })?;
        let pool = Self::with_source(domain, Arc::new(source), geometry)?;
        Ok(Self { context: Some(context.clone()), ..pool })
    }

    /// A pool over the memory of `source`, which must be what the group's library can register: with windows to be had,
    /// a commit is refused on all members if it is not [exportable](SegmentSource::is_exportable).
    ///
    /// # Errors
    /// [`SymmetricError::Granularity`].
    pub fn with_source(
        domain: &Domain,
        source: Arc<dyn SegmentSource>,
        geometry: Geometry,
    ) -> Result<Self, SymmetricError> {
        let arena = SymmetricArena::new(source, geometry)?;
        let id = domain.next_pool();
        Ok(Self {
            id,
            domain: domain.clone(),
            context: None,
            memory: Memory::new(id, arena),
            table: Arc::default(),
            seats: Mutex::default(),
            retired: Mutex::default(),
            meetings: Mutex::default(),
            _farewell: places::Farewell,
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
        Ok(self.hand_out(arena, placed, bytes))
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
        Ok(self.hand_out(arena, placed, bytes))
    }

    /// A segment that was made for a block is published before the block is handed out. What is allocated during a capture
    /// may be used by what is captured, whoever enqueues it.
    #[inline]
    fn hand_out(&self, arena: Arena<'_>, placed: Placed, bytes: u64) -> SymmetricBlock {
        if placed.grown {
            self.publish_last(&arena);
        }
        drop(arena);
        if self.memory.is_capturing() {
            self.memory.note_use(placed.placement, bytes);
        }
        for stream in captures_of_this_thread() {
            let is_own = self.context.as_ref().is_none_or(|context| stream.context() == context);
            if is_own && self.memory.used_by_graph(DevicePtr(placed.address), bytes, &stream).is_err() {
                // The driver does not say whether it captures: it may.
                self.memory.hold_without_graph(placed.address, bytes);
            }
        }
        SymmetricBlock::new(self.memory.clone(), placed, bytes)
    }

    #[cold]
    fn publish_last(&self, arena: &SymmetricArena) {
        if let Some(SymmetricSegment { ordinal, bytes, memory, .. }) = arena.segments().last() {
            self.table.store(Arc::new(self.table.load().with_segment(*ordinal, memory.address, *bytes)));
        }
    }

    /// Where the `bytes` at `ptr` lie, and what their segment is to `group`; `None` if not in this pool. A search
    /// in a sorted array: no lock, no allocation. During a [capture](Self::begin_capture) what is found is also noted
    /// as used by it.
    ///
    /// # Errors
    /// [`LookupError::SpansSegments`].
    #[inline]
    pub fn lookup(
        &self,
        ptr: DevicePtr,
        bytes: u64,
        group: GroupId,
    ) -> Result<Option<Residence>, LookupError> {
        let found = self.table.load().lookup(ptr.0, bytes, group)?;
        if let Some(found) = found.filter(|_| self.memory.is_capturing()) {
            self.memory.note_use(found.placement, bytes);
        }
        Ok(found)
    }

    /// The window of `group` that the `bytes` at `ptr` lie in, and where in it they begin: for device code and
    /// one-sided operations, which name windows and offsets. `None` where [`lookup`](Self::lookup) finds no
    /// [`Standing::Window`].
    ///
    /// # Errors
    /// [`LookupError::SpansSegments`].
    pub fn window(
        &self,
        ptr: DevicePtr,
        bytes: u64,
        group: GroupId,
    ) -> Result<Option<(Window, u64)>, LookupError> {
        let Some(Residence { placement, .. }) = self.lookup(ptr, bytes, group)? else { return Ok(None) };
        let table = self.table.load();
        let window = table.window(placement.ordinal, group);
        Ok(window.map(|(window, begin)| (window.clone(), begin + placement.offset)))
    }

    /// Freezes the pool for a graph capture.
    pub fn begin_capture(&self) -> PoolCapture {
        PoolCapture::begin(self.memory.clone())
    }

    /// How many segments there are, without those that were retired.
    pub fn segments(&self) -> usize {
        self.memory.arena().segments().iter().filter(|segment| !segment.retired).count()
    }

    /// Bytes of all segments that are not retired.
    pub fn reserved(&self) -> u64 {
        let arena = self.memory.arena();
        arena.segments().iter().filter(|segment| !segment.retired).map(|segment| segment.bytes).sum()
    }

    /// The allocation log: how many operations, and their hash. Equal on all ranks that kept the promise.
    pub fn log(&self) -> LogPoint {
        self.memory.arena().log().state().into()
    }

    /// Forgets a group whose communicator is gone.
    pub fn forget(&self, group: GroupId) {
        let seated = self.seats().get(&group).cloned();
        if let Some(seated) = seated {
            seated.lock().unwrap_or_else(PoisonError::into_inner).forget(&self.retired());
        }
        self.update_table(|table| table.without_group(group));
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The segments that were retired, in that order.
    pub(crate) fn retired(&self) -> Vec<u32> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn meetings(&self) -> MutexGuard<'_, Meetings> {
        self.meetings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn table(&self) -> Arc<Table> {
        self.table.load_full()
    }

    /// Replaces the table, not while another does so.
    pub(crate) fn update_table(&self, change: impl FnOnce(&Table) -> Table) {
        // The arena's lock orders this with the publication of new segments.
        let _alone = self.memory.arena();
        self.table.store(Arc::new(change(&self.table.load())));
        places_changed();
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

//! Symmetric pools: equal placement on every rank, the lifetime of memory, and look-up.
//!
//! | file | subject |
//! |---|---|
//! | `memory` | the segments, which stay allocated until nothing can access them |
//! | `block`, `capture` | the owners of memory |
//! | `attachments` | values that other modules keep with the segments |
//! | `index` | the published table, and the search for an address |
//! | `lookup` | from an address to its segment and the segment's state in a group |
//! | `dropped` | the streams of dropped slices |
//! | `explain` | how a group's collectives access a buffer, and why |
//! | `peers` | addresses of a block on the other members of a group, by its window |
//! | `places` | placements of buffers, which the members of a group compare |
//! | `agreed` | allocations of a length that the ranks agree on |
//! | `retire` | removal of segments, on all ranks or on none |
//! | `scope` | regions of a program whose allocations are committed at the end |
//! | `slice` | device slices over blocks |
//!
//! Allocation only places blocks and logs requests; only a commit makes windows.

mod agreed;
mod attachments;
mod block;
mod capture;
mod dropped;
mod explain;
mod index;
mod lookup;
mod memory;
mod peers;
mod places;
mod retire;
mod scope;
mod slice;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use caching_alloc::{
    core::{
        SegmentSource,
        symmetric::{Geometry, Placed, SymmetricArena, SymmetricError, SymmetricSegment},
    },
    driver::{Sharing, VirtualMemorySource},
};
use cuda_driver::{Context, DevicePtr, DeviceSlice, Element, Stream};
use process_group::{comm::Window, group::places_changed};

use self::memory::Arena;
#[cfg(any(test, feature = "simulation"))]
pub(crate) use self::memory::GraphHold;
#[cfg(any(test, feature = "simulation"))]
pub(crate) use self::retire::Found as RetirementFound;
pub(crate) use self::{
    attachments::{Attachments, Owner},
    index::Published,
    lookup::Table,
    memory::Memory,
};
pub use self::{
    block::SymmetricBlock,
    capture::{GraphPin, PoolCapture},
    explain::{Explanation, Path, Why},
    lookup::{BufferLocation, LookupError, Standing},
    retire::RetireReport,
    scope::{PoolScope, PoolSource},
    slice::SliceError,
};
use crate::{
    agreement::{GroupId, LogPoint, PoolId, Rounds},
    commit::{GroupState, lock},
    domain::Domain,
};

/// A pool whose blocks have the same placement (segment and offset) on every rank of its domain. Its segments become
/// windows of the groups for which it is committed.
///
/// The ranks of the domain must make the same requests in the same order. If they did not, [`commit`](Self::commit)
/// reports the difference. Use a pool from one thread at a time: the type is `Sync`, but the order of the requests of
/// two threads is not deterministic.
pub struct SymmetricPool {
    id: PoolId,
    domain: Domain,
    memory: Arc<Memory>,
    table: Arc<Published>,
    group_states: Mutex<BTreeMap<GroupId, Arc<Mutex<GroupState>>>>,
    /// The retired segments, in the order of retirement.
    retired: Mutex<Vec<u32>>,
    meetings: Mutex<Meetings>,
    /// Declared last, to be dropped after the table.
    _invalidation: places::PlacesInvalidation,
}

/// Counters of the agreements in which the whole domain takes part: on lengths, and on retirements.
#[derive(Debug, Default)]
struct Meetings {
    lengths: Rounds,
    retirements: Rounds,
}

impl SymmetricPool {
    /// Makes a pool of `domain` on the device of `context`. Its segments are allocated with CUDA virtual memory
    /// management. Other processes can map this memory by file descriptor, and by fabric handle if the driver
    /// [grants](Sharing::granted) that. The segments have adjacent addresses. Their sizes follow from `geometry`, which
    /// must be equal on all ranks. Not collective, but all ranks must make a domain's pools in the same order. For
    /// other kinds of memory use [`with_source`](Self::with_source).
    ///
    /// # Errors
    /// [`SymmetricError::Source`] if the device does not support virtual memory management, or has not enough free
    /// memory for a test of the handle types. [`SymmetricError::Granularity`].
    pub fn new(domain: &Domain, context: &Context, geometry: Geometry) -> Result<Self, SymmetricError> {
        let source = Sharing::granted(context)
            .and_then(|sharing| VirtualMemorySource::new(context, sharing))
            .and_then(VirtualMemorySource::in_a_row)
            .map_err(|source| SymmetricError::Source { ordinal: 0, bytes: 0, source })?;
        Self::over(domain, Some(context.clone()), Arc::new(source), geometry)
    }

    /// Makes a pool over the memory of `source`, which NCCL must be able to register. If the memory is not
    /// [exportable](SegmentSource::is_exportable), a commit for a group that supports windows is refused on all
    /// members.
    ///
    /// # Errors
    /// [`SymmetricError::Granularity`] if the granularity of `source` does not divide 2 MiB.
    pub fn with_source(
        domain: &Domain,
        source: Arc<dyn SegmentSource>,
        geometry: Geometry,
    ) -> Result<Self, SymmetricError> {
        Self::over(domain, None, source, geometry)
    }

    fn over(
        domain: &Domain,
        context: Option<Context>,
        source: Arc<dyn SegmentSource>,
        geometry: Geometry,
    ) -> Result<Self, SymmetricError> {
        let arena = SymmetricArena::new(source, geometry)?;
        let id = domain.next_pool();
        Ok(Self {
            id,
            domain: domain.clone(),
            memory: Memory::new(id, context, arena),
            table: Arc::default(),
            group_states: Mutex::default(),
            retired: Mutex::default(),
            meetings: Mutex::default(),
            _invalidation: places::PlacesInvalidation,
        })
    }

    /// The pool's id, the same on every rank.
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// The ranks that make the same sequence of requests.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Allocates a block of `bytes` bytes. Not collective.
    ///
    /// # Errors
    /// [`SymmetricError::Size`], [`SymmetricError::OutOfMemory`], [`SymmetricError::Source`], or
    /// [`SymmetricError::PoolWouldGrowDuringCapture`]. If a request fails on some ranks and succeeds on others, the
    /// ranks differ, and commits are refused on all of them. To make the ranks equal again, repeat the request on each
    /// rank that failed, before any other request of the pool there. Commits succeed again once it has succeeded.
    #[track_caller]
    pub fn allocate(&self, bytes: u64) -> Result<SymmetricBlock, SymmetricError> {
        let mut arena = self.memory.arena();
        let placed = arena.allocate(bytes)?;
        Ok(self.hand_out(arena, placed, bytes))
    }

    /// Makes room for a block of `bytes` bytes: adds a segment, unless a segment already has a free range of that size.
    /// Later blocks that fit into the range need no new segment, for example in a graph capture. The next commit makes
    /// the new segment a window.
    ///
    /// Does not wait for other ranks. A reservation is part of the sequence of requests that must be equal on all
    /// ranks.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    #[track_caller]
    pub fn reserve(&self, bytes: u64) -> Result<(), SymmetricError> {
        let mut arena = self.memory.arena();
        if arena.reserve(bytes)?.grown {
            self.publish_last(&arena);
        }
        Ok(())
    }

    /// Allocates a block of `bytes` bytes. Errors about differences between ranks name this request by `tag`. Not
    /// collective.
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

    /// Allocates `len` elements with unspecified values as a slice of `stream`, for the typed operations of
    /// [`ProcessGroup`](process_group::ProcessGroup). Counts as an [`allocate`](Self::allocate) of the slice's size in
    /// bytes: every rank must allocate and drop its slices in the same order, and a commit makes their segments
    /// windows.
    ///
    /// Dropping the slice frees its block without a wait for the device. A later call may give the memory to a slice of
    /// another stream. So each call makes its `stream` wait for the work on the streams of all slices dropped so far.
    /// The slice may be used on any stream of the context. An untyped block may also get the memory. Its user must then
    /// order its uses after the work on the dropped slice's stream.
    ///
    /// ```no_run
    /// # use cuda_driver::Stream;
    /// # use process_group::{ProcessGroup, comm::ReduceOp};
    /// # use symm_mem::{CommitOptions, SymmetricPool};
    /// # fn rank(pool: &SymmetricPool, world: &ProcessGroup, stream: &Stream) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut gradients = pool.alloc::<f32>(1 << 20, stream)?;
    /// pool.commit(world, CommitOptions::default())?;
    /// stream.memset_zeros(&mut gradients)?;
    /// world.all_reduce(&mut gradients, ReduceOp::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`SliceError`]. The pool's log of requests must be equal on all ranks, and records some of the failed calls:
    /// - [`SliceError::Pool`]: recorded as an allocation, except for an invalid size ([`SymmetricError::Size`]), which
    ///   is not recorded.
    /// - [`SliceError::Driver`]: recorded as an allocation and a free if the block was already placed. Otherwise not
    ///   recorded.
    /// - Other errors: not recorded.
    #[track_caller]
    pub fn alloc<T: Element>(&self, len: usize, stream: &Stream) -> Result<DeviceSlice<T>, SliceError> {
        slice::check_stream(&self.memory, stream)?;
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64).max(1);
        let block = self.allocate(bytes)?;
        // SAFETY: the block is new, and has the bytes of `len` elements.
        unsafe { slice::into_slice(block, len, stream) }
    }

    /// Makes the block of `placed`. If `placed` added a segment, publishes the segment first.
    #[inline(always)]
    fn hand_out(&self, arena: Arena<'_>, placed: Placed, bytes: u64) -> SymmetricBlock {
        if placed.grown {
            self.publish_last(&arena);
        }
        drop(arena);
        SymmetricBlock::new(self.memory.clone(), placed, bytes)
    }

    #[cold]
    fn publish_last(&self, arena: &SymmetricArena) {
        if let Some(SymmetricSegment { ordinal, bytes, memory, .. }) = arena.segments().last() {
            self.table.store(self.table.load().with_segment(*ordinal, memory.address, *bytes));
        }
    }

    /// Looks up the `bytes` bytes at `ptr`: their segment and offset, and the state of the segment in `group`. `None`
    /// if they do not begin in a segment of this pool.
    ///
    /// Takes no lock and allocates nothing, except during a [declared capture](Self::begin_capture): then it also marks
    /// the bytes as used by the capture.
    ///
    /// # Errors
    /// [`LookupError::SpansSegments`].
    #[inline]
    pub fn lookup(
        &self,
        ptr: DevicePtr,
        bytes: u64,
        group: GroupId,
    ) -> Result<Option<BufferLocation>, LookupError> {
        let found = self.table.read(|index| index.lookup(ptr.0, bytes, group))?;
        if let Some(found) = found.filter(|_| self.memory.is_capturing()) {
            self.memory.note_use(found.placement, bytes);
        }
        Ok(found)
    }

    /// Returns the window of `group` that contains the `bytes` bytes at `ptr`, and their offset in the window in bytes.
    /// Device code and one-sided operations take a window and an offset as arguments. `None` if
    /// [`lookup`](Self::lookup) does not find [`Standing::Window`].
    ///
    /// # Errors
    /// [`LookupError::SpansSegments`].
    pub fn window(
        &self,
        ptr: DevicePtr,
        bytes: u64,
        group: GroupId,
    ) -> Result<Option<(Window, u64)>, LookupError> {
        let Some(BufferLocation { placement, .. }) = self.lookup(ptr, bytes, group)? else { return Ok(None) };
        let table = self.table.load();
        let window = table.window(placement.ordinal, group);
        Ok(window.map(|(window, begin)| (window.clone(), begin + placement.offset)))
    }

    /// Freezes the pool for a graph capture, until the returned value is finished or dropped.
    pub fn begin_capture(&self) -> PoolCapture {
        PoolCapture::begin(self.memory.clone())
    }

    /// Number of segments, without retired ones.
    pub fn segments(&self) -> usize {
        self.memory.arena().segments().iter().filter(|segment| !segment.retired).count()
    }

    /// Total length in bytes of all segments that are not retired.
    pub fn reserved(&self) -> u64 {
        let arena = self.memory.arena();
        arena.segments().iter().filter(|segment| !segment.retired).map(|segment| segment.bytes).sum()
    }

    /// State of the allocation log: number of operations, and the hash over them. Equal on all ranks that made the same
    /// requests.
    pub fn log(&self) -> LogPoint {
        self.memory.arena().log().state().into()
    }

    /// Removes the state of a group whose communicator has ended, including its poison.
    pub fn forget(&self, group: GroupId) {
        let group_state = self.group_states().get(&group).cloned();
        if let Some(group_state) = group_state {
            lock(&group_state).forget(&self.retired());
        }
        self.update_table(|table| table.without_group(group));
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The table of the segments, as all threads see it.
    pub(crate) fn published(&self) -> &Arc<Published> {
        &self.table
    }

    /// The retired segments, in the order of retirement.
    pub(crate) fn retired(&self) -> Vec<u32> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn meetings(&self) -> MutexGuard<'_, Meetings> {
        self.meetings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn table(&self) -> Arc<Table> {
        self.table.load_full()
    }

    /// Replaces the table with the result of `change`, which runs under the arena's lock.
    pub(crate) fn update_table(&self, change: impl FnOnce(&Table) -> Table) {
        // The lock also orders this with the publication of new segments.
        let _alone = self.memory.arena();
        self.table.store(change(&self.table.load()));
        places_changed();
    }

    pub(crate) fn group_states(&self) -> MutexGuard<'_, BTreeMap<GroupId, Arc<Mutex<GroupState>>>> {
        self.group_states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for SymmetricPool {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "SymmetricPool({}, {} segments)", self.id, self.segments())
    }
}

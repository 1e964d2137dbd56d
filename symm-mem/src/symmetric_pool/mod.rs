//! Symmetric pools: the public type [`SymmetricPool`]. Its methods use a pool's memory ([`pool`](crate::pool)) and the
//! pool's state in groups ([`membership`](crate::membership)).
//!
//! | file | subject |
//! |---|---|
//! | `explain` | how a group's collectives access a buffer, and why |
//! | `scope` | regions of a program whose allocations are committed at the end |
//! | `several` | several commits in one call |
//! | here | the pool |

mod explain;
mod scope;
pub(crate) mod several;

use std::{borrow::Cow, sync::Arc, time::Duration};

use caching_alloc::{
    core::{
        SegmentSource,
        symmetric::{Geometry, Placed, SymmetricArena, SymmetricError},
    },
    driver::{Sharing, VirtualMemorySource},
};
use cuda_driver::{Context, DevicePtr, DeviceSlice, Element, Stream};
use process_group::comm::{Group, Window};

pub use self::{
    explain::{AccessPath, Explanation, PathReason},
    scope::{PoolScope, PoolSource},
    several::commit_all,
};
use crate::{
    agreement::{GroupId, LogPoint, Poison, PoolId},
    domain::Domain,
    error::{CallContext, Error},
    error_kind::ErrorKind,
    membership::{
        BufferLocation, CommitOptions, CommitReport, LookupError, Memberships, RetireReport, SymmetricGroup,
    },
    pool::{Arena, PoolCapture, PoolMemory, SliceError, SymmetricBlock, check_stream, into_slice},
    rendezvous::{Buffer, SymmetricMemory},
};

/// A pool whose blocks have the same placement (segment and offset) on every rank of its [domain](Domain). A segment is
/// one allocation of device memory, in which the pool places blocks. A [`commit`](Self::commit) for a group registers
/// the pool's segments as NCCL windows of the group.
///
/// The ranks of the domain must make the same requests (allocations, reservations and frees) in the same order. If they
/// did not, `commit` reports the difference. Use a pool from one thread at a time: the type is `Sync`, but the requests
/// of two threads have no fixed order.
///
/// The memory is freed when the pool and all other owners are dropped: blocks, graphs that use the memory, and groups
/// for which it was committed. The drop of the last owner, for example in
/// [`destroy`](process_group::ProcessGroup::destroy) of a group, waits for work that may use dropped slices
/// ([`alloc`](Self::alloc)), at most 10 s. If the work has not ended by then, or a slice was dropped while its stream
/// was capturing and the capture is still open, the memory is freed in the background, once both have ended.
pub struct SymmetricPool {
    memory: Arc<PoolMemory>,
    memberships: Memberships,
}

impl SymmetricPool {
    /// Makes a pool of `domain` on the device of `context`. Its segments are allocated with CUDA virtual memory
    /// management, at adjacent addresses. Other processes can map this memory by file descriptor, and by fabric handle
    /// if the driver [grants](Sharing::granted) such handles. For other kinds of memory, use
    /// [`with_source`](Self::with_source).
    ///
    /// `geometry` determines the sizes of the segments, and must be equal on all ranks. Not collective, but all ranks
    /// must make a domain's pools in the same order.
    ///
    /// # Errors
    /// [`SymmetricError::Source`] if the device does not support virtual memory management, or has too little free
    /// memory for the allocation that tests which handle types the driver grants. [`SymmetricError::Granularity`] if
    /// the device's allocation granularity does not divide 2 MiB.
    pub fn new(domain: &Domain, context: &Context, geometry: Geometry) -> Result<Self, SymmetricError> {
        let source = Sharing::granted(context)
            .and_then(|sharing| VirtualMemorySource::new(context, sharing))
            .and_then(VirtualMemorySource::in_a_row)
            .map_err(|source| SymmetricError::Source { ordinal: 0, bytes: 0, source })?;
        Self::over(domain, Some(context.clone()), Arc::new(source), geometry)
    }

    /// Makes a pool whose segments are allocated by `source`. NCCL must be able to register this memory. If the memory
    /// is not [exportable](SegmentSource::is_exportable), commit with [`CommitOptions::windows`] set to false. If it is
    /// true, a commit of new segments for a group of several members that supports windows is refused on all members.
    /// As for [`new`](Self::new), `geometry` must be equal on all ranks, and all ranks must make a domain's pools in
    /// the same order.
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
        let memory = PoolMemory::new(domain.next_pool(), context, arena);
        Ok(Self { memberships: Memberships::new(domain.clone(), memory.clone()), memory })
    }

    /// The pool's id, the same on every rank.
    pub fn id(&self) -> PoolId {
        self.memory.id()
    }

    /// The pool's domain: the ranks that must make the same requests of this pool.
    pub fn domain(&self) -> &Domain {
        self.memberships.domain()
    }

    /// Allocates a block of `bytes` bytes. Not collective.
    ///
    /// # Errors
    /// [`SymmetricError::Size`], [`SymmetricError::OutOfMemory`], [`SymmetricError::Source`], or
    /// [`SymmetricError::PoolWouldGrowDuringCapture`]. If a request fails on some ranks and succeeds on others, the
    /// ranks' requests differ, and commits are refused on all ranks. To make the requests equal again, each rank whose
    /// request failed must repeat it before any other request of the pool. Commits succeed again once the repeated
    /// request has succeeded.
    #[track_caller]
    pub fn allocate(&self, bytes: u64) -> Result<SymmetricBlock, SymmetricError> {
        let mut arena = self.memory.arena();
        let placed = arena.allocate(bytes)?;
        Ok(self.hand_out(arena, placed, bytes))
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

    /// Allocates a block of the largest size that any rank of the domain needs. `bytes` is the size that this rank
    /// needs. Use this method if the needed sizes differ between ranks, for example because the ranks got different
    /// numbers of tokens. The block has the same placement and length on every rank.
    ///
    /// Collective over the whole domain: every rank calls it at the same point of the program, including a rank that
    /// needs 0 bytes. This rank waits for the others for at most `deadline`. [`SymmetricBlock::bytes`] returns the
    /// agreed length. If all ranks need 0 bytes, all of them get [`ErrorKind::AgreedAllocation`].
    ///
    /// # Errors
    /// [`ErrorKind::Refused`]: with [`SyncTimeout`](crate::Refusal::SyncTimeout) if a rank does not make this call in
    /// time, or with another reason, for example if the ranks have different lists of the domain's ranks.
    /// [`ErrorKind::AgreedAllocation`] if this rank cannot allocate the agreed length. [`ErrorKind::Store`],
    /// [`ErrorKind::Unreadable`] or [`ErrorKind::OutOfStep`] if this rank could not learn the agreed length.
    #[track_caller]
    pub fn allocate_agreed(&self, bytes: u64, deadline: Duration) -> Result<SymmetricBlock, Error> {
        let call = CallContext::of_pool("agreed allocation", self.id());
        let bytes = self.memberships.agree_on_length(bytes, deadline).map_err(|kind| call.error(kind))?;
        self.allocate(bytes).map_err(|source| call.error(ErrorKind::AgreedAllocation { bytes, source }))
    }

    /// Allocates `len` elements with unspecified values as a slice that is bound to `stream`, for the typed operations
    /// of [`ProcessGroup`](process_group::ProcessGroup). As a request of the pool, this is an
    /// [`allocate`](Self::allocate) of the slice's size in bytes. So every rank must allocate and drop its slices in
    /// the same order, and a commit registers their segments.
    ///
    /// Safe calls may use the slice on any stream of the context. A call that uses it on another stream makes `stream`
    /// wait for that use. So work that is ordered after the work on `stream` runs after these uses too.
    ///
    /// Dropping the slice frees its block at once, without a wait for the device. So a new block can get the memory
    /// while work on `stream` still uses it. Uses of the new block must come after that work:
    /// - If this method allocates the new block, it ensures this order: it makes the stream of the new slice wait for
    ///   the work that was enqueued on the streams of dropped slices before their blocks were freed.
    /// - If [`allocate`](Self::allocate) allocates the new block, the program must ensure this order.
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
    /// [`SliceError`]. The pool's [log](Self::log) of requests, which must be equal on all ranks, also contains some
    /// failed calls:
    /// - [`SliceError::Pool`]: logged as a refused allocation, except for an invalid size ([`SymmetricError::Size`]),
    ///   which is not logged.
    /// - [`SliceError::Driver`]: logged as an allocation and a free if the call had already placed the block. Otherwise
    ///   not logged.
    /// - Other errors: not logged.
    #[track_caller]
    pub fn alloc<T: Element>(&self, len: usize, stream: &Stream) -> Result<DeviceSlice<T>, SliceError> {
        check_stream(&self.memory, stream)?;
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64).max(1);
        let block = self.allocate(bytes)?;
        // SAFETY: the block is new, and has the bytes of `len` elements. The stream was checked above.
        unsafe { into_slice(block, len, stream) }
    }

    /// Allocates `len` elements on every member of `group`, and maps each member's elements on all others:
    /// [`alloc`](Self::alloc), [`commit`](Self::commit) with [`map_peers`](CommitOptions::map_peers) and
    /// [`verify`](CommitOptions::verify), and [`symmetric_memory`](Self::symmetric_memory) in one call. Collective over
    /// the group: every member calls it with the same length and options. The members always compare their requests. If
    /// a member cannot allocate, it takes part in the commit all the same, so the others get an error without a wait
    /// for the deadline.
    ///
    /// Accesses through the returned [`SymmetricMemory`] must be ordered with the work of `stream`: see
    /// [`Buffer::of_slice`]. Peers see this rank's writes only after the members have synchronized, for example by
    /// [`SymmetricMemory::barrier`].
    ///
    /// # Errors
    /// [`ErrorKind::Slice`] if this rank cannot allocate, and the errors of [`commit`](Self::commit) and
    /// [`symmetric_memory`](Self::symmetric_memory). After an error, this rank has no slice.
    ///
    /// ```no_run
    /// # use cuda_driver::Stream;
    /// # use process_group::{ProcessGroup, comm::DataType};
    /// # use symm_mem::{CommitOptions, SymmetricPool, rendezvous::Layout};
    /// # fn rank(pool: &SymmetricPool, world: &ProcessGroup, stream: &Stream) -> Result<(), Box<dyn std::error::Error>> {
    /// let (mut values, peers) = pool.alloc_mapped::<f32>(1024, stream, world, CommitOptions::default())?;
    /// stream.memset_zeros(&mut values)?;
    /// let view = peers.buffer(1, &Layout::contiguous([1024], DataType::F32), 0)?;
    /// println!("rank 1 has it at {:#x} from here", view.ptr.0);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    #[doc(alias = "empty_strided_p2p")]
    pub fn alloc_mapped<T: Element>(
        &self,
        len: usize,
        stream: &Stream,
        group: &dyn SymmetricGroup,
        options: CommitOptions,
    ) -> Result<(DeviceSlice<T>, SymmetricMemory), Error> {
        let allocated = self.alloc::<T>(len, stream);
        let committed = self.commit(group, options.map_peers(true).verify(true));
        let call = CallContext::of_group("symmetric memory", group.id(), None);
        let slice = allocated.map_err(|error| call.error(error))?;
        committed?;
        let buffer = Buffer::of_slice(&slice).map_err(|_| call.error(ErrorKind::OutOfStep))?;
        let memory = self.symmetric_memory(buffer, group.id())?;
        Ok((slice, memory))
    }

    /// Makes room for a block of `bytes` bytes: adds a segment, unless a segment already has a free range of that size.
    /// Later blocks that fit into this range need no new segment, for example in a [declared graph
    /// capture](Self::begin_capture), during which the pool cannot grow. The next commit registers the new segment.
    ///
    /// Not collective. But a reservation is one of the requests that all ranks must make in the same order.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    #[track_caller]
    pub fn reserve(&self, bytes: u64) -> Result<(), SymmetricError> {
        let mut arena = self.memory.arena();
        if arena.reserve(bytes)?.grown {
            self.memberships.publish_last(&arena);
        }
        Ok(())
    }

    /// Declares a graph capture: the pool does not grow until the returned value is finished or dropped.
    /// [`PoolCapture`] describes which captures need this.
    pub fn begin_capture(&self) -> PoolCapture {
        PoolCapture::begin(self.memory.clone())
    }

    /// Number of segments, without [retired](Self::retire) ones.
    pub fn segments(&self) -> usize {
        self.memory.arena().segments().iter().filter(|segment| !segment.retired).count()
    }

    /// Total length in bytes of all segments that are not retired.
    pub fn reserved(&self) -> u64 {
        let arena = self.memory.arena();
        arena.segments().iter().filter(|segment| !segment.retired).map(|segment| segment.bytes).sum()
    }

    /// State of the log of this pool's requests: their number, and the hash over them. Equal on all ranks that made the
    /// same requests.
    pub fn log(&self) -> LogPoint {
        self.memory.arena().log().state().into()
    }

    /// Registers the pool's new segments as NCCL windows of `group`, on all members or on none. A segment is new for a
    /// group until it has been committed for that group.
    ///
    /// Collective over the group: every member calls it at the same point of the program, with the same options. No
    /// stream of the device may be capturing, and the calling thread must not have an NCCL group open
    /// (`ncclGroupStart`). If one of these conditions is violated, the commit is refused on all members, and the
    /// capture is not affected. Exception: a capture of another library that
    /// [`is_capturing`](cuda_driver::graph::is_capturing) does not find. Then the commit is not refused. Unless that
    /// capture is in relaxed mode, the capture may be invalidated, and the commit may fail. Before the call, all
    /// members must have enqueued the same collectives, and the sender and the receiver of each message must have
    /// enqueued it.
    ///
    /// Until the call returns, no other thread may enqueue collectives of the group on the pool's new segments: NCCL
    /// would use their windows on some members only, and the group would end with
    /// [`CollectiveDiverged`](process_group::group::GroupErrorKind::CollectiveDiverged) on all of them. Work on other
    /// communicators, also of other libraries, may go on.
    ///
    /// The commits of all pools for one group must run one after the other, because NCCL pairs the members' windows by
    /// the order of their registration. A rank of several groups must commit for them in ascending order of the group
    /// ids ([`commit_all`] does that).
    ///
    /// # Commits of nothing new
    /// All members take part in a group's first commit, including those without new segments. If they have different
    /// numbers of segments, then under the default [policy](CommitOptions::policy) all of them get
    /// [`Refusal::SegmentCountMismatch`](crate::Refusal::SegmentCountMismatch). The text of the refusal advises how to
    /// make the pools equal again, or states that this is impossible.
    ///
    /// After a group's first successful commit, a rank takes part in a commit only in the cases below. In all other
    /// cases it *skips* the commit: it neither uses the store nor waits.
    /// - It has new segments for the group. If the members have made the same requests, as a pool demands, all of them
    ///   have the same new segments, or none has any.
    /// - One of its requests has failed. The rank then takes part until it has repeated the request with success, or
    ///   until a commit has found the requests of all members equal. For example, only one rank may lack the memory for
    ///   a new segment. The other ranks take part because they have the new segment, and this rank because its request
    ///   has failed. So the commit reports the lack of memory to all of them.
    /// - [`CommitOptions::verify`] is true.
    /// - The group is poisoned: its members may have different windows ([`Poison`]).
    ///
    /// A member whose requests differ from those of the others may skip a commit in which the others take part. The
    /// others then wait for this member, which never joins the skipped commit: each member counts its commits for the
    /// group, including skipped ones, so its next commit is another one. One of these happens:
    /// - This member begins its next commit while the others still wait in the skipped one. In the next commit, it
    ///   waits for the others, so the ranks wait for each other in a circle. Both commits fail with a
    ///   [`Refusal::SyncTimeout`](crate::Refusal::SyncTimeout) that lists the ranks in the circle.
    /// - This member begins no commit in time. The others wait for 3/8 of their [`deadline`](CommitOptions::deadline),
    ///   register nothing, and get a `SyncTimeout` that names this member. To find the cause, look at the first error
    ///   that this member got.
    ///
    /// In both cases, the next commit in which all members take part, for example with [`CommitOptions::verify`],
    /// reports the first difference of the requests. Even before that report, the members detect collectives whose
    /// buffers lie in different windows or at different offsets: they compare a hash of each collective, which includes
    /// these positions.
    ///
    /// # Errors
    /// All members get the same [`Refused`](ErrorKind::Refused) or [`Poisoned`](ErrorKind::Poisoned), with the
    /// exceptions that [`Error`] lists. They get it before their deadlines, unless a deadline is shorter than the
    /// minimum time limits that [`CommitOptions::deadline`] describes. A member can get errors of other kinds alone,
    /// for example if it loses the store ([`ErrorKind::Store`]). If this rank skips the commit, but the group has ended
    /// or was aborted, it gets [`ErrorKind::GroupOver`] at once.
    pub fn commit(&self, group: &dyn SymmetricGroup, options: CommitOptions) -> Result<CommitReport, Error> {
        self.memberships.commit(group, options, Group::is_open())
    }

    /// Does the same as [`commit`](Self::commit). The name is for a group's first commit, which registers all segments
    /// that are not [retired](Self::retire), including those that were committed for other groups before.
    ///
    /// Collective over the group. A program that calls `attach` when it creates a group learns early whether the pool
    /// can be used with this group.
    ///
    /// If the members have retired different segments, the call fails before any window is created
    /// ([`Poison::CommittedLogDiverged`]).
    ///
    /// # Errors
    /// [`ErrorKind::GroupOutsideDomain`] and all other errors of a commit.
    pub fn attach(&self, group: &dyn SymmetricGroup, options: CommitOptions) -> Result<CommitReport, Error> {
        self.commit(group, options)
    }

    /// Retires the segments with these ordinals (numbers in the pool): frees their memory, on all ranks of the domain
    /// or on none. The ordinals are not used again.
    ///
    /// Collective over the whole domain. Every rank must name the same segments at the same point of the program.
    /// `deadline` is the time limit. A rank waits for at most 3/8 of it until all others have begun the retirement too.
    /// Each of the steps 1 and 2 below has the time limits of stage 2 in [`CommitOptions::deadline`]. Before the call,
    /// the members of each group must have enqueued the same collectives, and the sender and the receiver of each
    /// message must have enqueued it. `groups` must contain all groups of this rank for which any of the segments was
    /// committed. No rank may have a block in the segments, or a graph that uses them ([`GraphPin`](crate::GraphPin)).
    /// Segments that share a window ([`CommitOptions::joined`]) can only be retired together.
    ///
    /// The call has these steps. Each begins once all ranks have reported the end of the step before:
    /// 1. Every rank waits until the devices of the pool and of `groups` are idle.
    /// 2. Every rank unmaps the peers' memory of the segments and deregisters its windows of the segments, group by
    ///    group in ascending order of the group ids.
    /// 3. Every rank frees the memory of the segments.
    ///
    /// Addresses of blocks in other segments stay valid.
    ///
    /// # Errors
    /// Refusals ([`ErrorKind::Refused`]) are [`SegmentPinned`](crate::Refusal::SegmentPinned),
    /// [`SegmentInUse`](crate::Refusal::SegmentInUse), [`SegmentCommitted`](crate::Refusal::SegmentCommitted),
    /// [`RetirementMismatch`](crate::Refusal::RetirementMismatch), [`QuiesceFailed`](crate::Refusal::QuiesceFailed),
    /// [`SyncTimeout`](crate::Refusal::SyncTimeout), and others that a commit can return too. If a rank dies or fails
    /// while it deregisters its windows, the others get [`ErrorKind::Poisoned`]. The field `poison` of this error is
    /// the same on every rank. The field `groups` lists the poisoned groups of the rank that gets the error. A rank
    /// that gets this error has retired the segments, but if it has a poisoned group, it frees their memory later
    /// ([`RetireReport::bytes`](crate::RetireReport::bytes)).
    #[track_caller]
    pub fn retire(
        &self,
        ordinals: &[u32],
        groups: &[&dyn SymmetricGroup],
        deadline: Duration,
    ) -> Result<RetireReport, Error> {
        self.memberships.retire(ordinals, groups, deadline)
    }

    /// Looks up the `bytes` bytes at `ptr`: their segment and offset, and the registration state of the segment in
    /// `group`. `None` if the bytes do not begin in a segment of this pool.
    ///
    /// Takes no lock and allocates nothing. Exception: during a [declared capture](Self::begin_capture), the call takes
    /// a lock and pins the blocks that contain the bytes, so that they stay allocated for the captured graph.
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
        let found = self.memberships.published().read(|index| index.lookup(ptr.0, bytes, group))?;
        if let Some(found) = found.filter(|_| self.memory.is_capturing()) {
            self.memory.note_use(found.placement, bytes);
        }
        Ok(found)
    }

    /// Returns the window of `group` that contains the `bytes` bytes at `ptr`, and their offset in the window in bytes.
    /// Device code and one-sided operations take a window and an offset as arguments. `None` if
    /// [`lookup`](Self::lookup) does not find [`RegistrationState::Window`](crate::RegistrationState::Window).
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
        let table = self.memberships.published().load();
        let window = table.window(placement.ordinal, group);
        Ok(window.map(|(window, begin)| (window.clone(), begin + placement.offset)))
    }

    /// Returns the memory of `buffer` on all members of `group`, with the group's [signal
    /// pads](SymmetricMemory::signal_pads). Kernels and copies on this rank's device can access this memory. An earlier
    /// [`commit`](Self::commit) for the group must have mapped it, as commits do by default
    /// ([`CommitOptions::map_peers`](crate::CommitOptions::map_peers)). This call neither contacts another rank nor
    /// maps anything. `buffer` is a block of this pool, or a [slice](Buffer::of_slice) or [part](Buffer::part) of one.
    /// The returned value owns a clone of the block, so the block's segment is not retired while the value exists. The
    /// value stays valid after the end of the group.
    ///
    /// The pads belong to this pool and group, and no [`Rendezvous`](crate::rendezvous::Rendezvous) uses them. Use a
    /// rendezvous for memory outside of pools, and for blocks whose segment was committed without mappings.
    ///
    /// # Errors
    /// - [`ErrorKind::OtherPool`] if `buffer` is not in this pool.
    /// - [`ErrorKind::Poisoned`] if the group is poisoned for this pool.
    /// - [`ErrorKind::NotMapped`] if the members of `group` have not mapped the buffer's segment.
    /// - [`ErrorKind::NotCompared`] if the buffer is of a block that was allocated after the last commit that compared
    ///   the members' requests. The block may then have another placement on a peer. [Skipped](Self::commit) commits
    ///   compare nothing, so commit the block with [`CommitOptions::verify`].
    ///
    /// ```no_run
    /// # use process_group::{ProcessGroup, comm::DataType};
    /// # use symm_mem::{CommitOptions, SymmetricPool, rendezvous::Layout};
    /// # fn rank(pool: &SymmetricPool, world: &ProcessGroup) -> Result<(), Box<dyn std::error::Error>> {
    /// let block = pool.allocate(4096)?;
    /// pool.commit(world, CommitOptions::default().verify(true))?;
    /// let memory = pool.symmetric_memory(&block, world.id())?;
    /// let view = memory.buffer(1, &Layout::contiguous([1024], DataType::F32), 0)?;
    /// println!("rank 1 has it at {:#x} from here", view.ptr.0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn symmetric_memory(
        &self,
        buffer: impl Into<Buffer>,
        group: GroupId,
    ) -> Result<SymmetricMemory, Error> {
        let buffer: Buffer = buffer.into();
        let memory = self.mapped_memory(buffer, group);
        memory.map_err(|kind| CallContext::of_group("symmetric memory", group, None).error(kind))
    }

    fn mapped_memory(&self, buffer: Buffer, group: GroupId) -> Result<SymmetricMemory, ErrorKind> {
        if buffer.pool() != Some(self.id()) {
            return Err(ErrorKind::OtherPool { address: buffer.ptr().0 });
        }
        let (ordinal, table) = (buffer.ordinal(), self.memberships.table());
        if let Some(poison) = table.poison(group) {
            return Err(ErrorKind::Poisoned { poison: poison.clone(), groups: [group].into() });
        }
        let states = table.states(group).ok_or(ErrorKind::NotMapped { ordinal, reason: None })?;
        let mapping = states.peers.as_ref().and_then(|it| Some((it, buffer.mapping(&it.mappings)?)));
        let Some((peers, mapping)) = mapping else {
            return Err(ErrorKind::NotMapped { ordinal, reason: states.why_unmapped(ordinal).cloned() });
        };
        let compared = states.compared;
        match buffer.request().filter(|request| *request >= compared) {
            Some(request) => Err(ErrorKind::NotCompared { request, compared }),
            None => Ok(SymmetricMemory::new(peers.clone(), buffer, mapping.buffers)),
        }
    }

    /// Returns why `group` is poisoned ([`Poison`]) for this pool, or `None` if it is not. Does not wait for a commit
    /// in progress.
    pub fn poison(&self, group: GroupId) -> Option<Poison> {
        self.memberships.table().poison(group).cloned()
    }

    /// Removes the pool's state of a group whose communicator has ended, including the group's [poison](Self::poison).
    pub fn forget(&self, group: GroupId) {
        self.memberships.forget(group);
    }

    /// Makes the block at `placed`. If its allocation has added a segment to the arena, first adds the segment to the
    /// table that look-ups read.
    #[inline(always)]
    fn hand_out(&self, arena: Arena<'_>, placed: Placed, bytes: u64) -> SymmetricBlock {
        if placed.grown {
            self.memberships.publish_last(&arena);
        }
        // The block's request is the last entry of the log, which counts entries from 0.
        let request = arena.log().state().length - 1;
        drop(arena);
        SymmetricBlock::new(self.memory.clone(), placed, bytes, request)
    }

    pub(crate) fn memory(&self) -> &Arc<PoolMemory> {
        &self.memory
    }

    pub(crate) fn memberships(&self) -> &Memberships {
        &self.memberships
    }
}

impl std::fmt::Debug for SymmetricPool {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "SymmetricPool({}, {} segments)", self.id(), self.segments())
    }
}

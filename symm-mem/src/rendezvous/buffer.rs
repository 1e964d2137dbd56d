//! The memory that a rank brings to a [rendezvous](super::Rendezvous::rendezvous): a block of a
//! [pool](crate::SymmetricPool), an allocation outside of pools, or a part of one of these. A pool allocates its blocks
//! in segments, which are large ranges of device memory. Inside this crate, a [`Buffer`] can also be a whole segment.

use std::sync::Arc;

use caching_alloc::core::symmetric::Placement;
use cuda_driver::{Context, DevicePtr, DeviceView, Element, Stream, vmm::PhysicalMemory};

use super::{DeviceKind, PeerMemory, buffers::PeerMapping, protocol::Subject};
use crate::{
    agreement::PoolId,
    pool::{Attachments, Owner, PoolMemory, SymmetricBlock, block_of},
    sharing::Shareable,
};

/// Memory for a [rendezvous](super::Rendezvous::rendezvous): all or a [part](Self::part) of a [`SymmetricBlock`], of a
/// [slice](Self::of_slice) that a pool has allocated, or of a [`PeerMemory`]. The buffer keeps the block or the
/// `PeerMemory` allocated.
#[derive(Debug, Clone)]
pub struct Buffer {
    memory: BufferMemory,
    /// The offset in the block, segment or allocation, in bytes.
    offset: usize,
    bytes: usize,
}

/// The error for a slice whose elements are not memory of a symmetric pool. Peers cannot map such a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the slice at {:#x} is not memory of a symmetric pool; allocate it with SymmetricPool::alloc",
    address.0
)]
pub struct ForeignSlice {
    /// The address of the slice.
    pub address: DevicePtr,
}

#[derive(Debug, Clone)]
enum BufferMemory {
    Pool(SymmetricBlock),
    /// A whole segment of a pool: the pool's memory and the segment's number. The pool can
    /// [retire](crate::SymmetricPool::retire) the segment while this buffer exists.
    Segment(Arc<PoolMemory>, u32),
    Own(PeerMemory),
}

impl BufferMemory {
    /// For a block or segment of a pool, returns the pool's memory, the segment's number, and the offset in the
    /// segment. For an allocation outside of pools, returns the allocation as the `Err` value.
    fn in_pool(&self) -> Result<(&PoolMemory, Placement), &PeerMemory> {
        match self {
            Self::Pool(block) => Ok((block.memory(), block.placement())),
            Self::Segment(memory, ordinal) => Ok((memory, Placement { ordinal: *ordinal, offset: 0 })),
            Self::Own(memory) => Err(memory),
        }
    }
}

/// The whole allocation that contains a buffer: a segment of a pool, or a [`PeerMemory`]. Peers map all of it.
pub(crate) struct WholeAllocation {
    pub(crate) subject: Subject,
    /// The [number](super::fresh_number) by which an [exchange](crate::exchange) identifies an allocation that belongs
    /// to no pool. `None` for a segment, which `subject` identifies.
    pub(crate) number: Option<u64>,
    pub(crate) base: DevicePtr,
    pub(crate) bytes: usize,
    /// True if the memory belongs to a pool that cannot grow now, because the program has declared a graph capture
    /// ([`PoolCapture`](crate::PoolCapture)).
    pub(super) frozen: bool,
}

impl From<&SymmetricBlock> for Buffer {
    fn from(block: &SymmetricBlock) -> Self {
        Self { memory: BufferMemory::Pool(block.clone()), offset: 0, bytes: block.bytes() as usize }
    }
}

impl From<&PeerMemory> for Buffer {
    fn from(memory: &PeerMemory) -> Self {
        Self { memory: BufferMemory::Own(memory.clone()), offset: 0, bytes: memory.bytes() }
    }
}

impl From<&Buffer> for Buffer {
    fn from(buffer: &Buffer) -> Self {
        buffer.clone()
    }
}

impl Buffer {
    /// Creates a buffer of the elements of a slice that [`SymmetricPool::alloc`](crate::SymmetricPool::alloc)
    /// allocated, or of a view of such a slice. The buffer keeps the slice's block allocated, also after the slice is
    /// dropped.
    ///
    /// Accesses to the buffer by kernels, copies and peers are not ordered with the work on the slice's
    /// [stream](DeviceView::stream). Until both the slice and the buffer are dropped, the program must order each
    /// access itself: it enqueues the access on that stream, or orders the streams by events. For conflicting accesses,
    /// this order is part of the safety conditions of the `unsafe` calls that access the buffer.
    ///
    /// # Errors
    /// [`ForeignSlice`] if no pool allocated the slice.
    ///
    /// ```no_run
    /// # use cuda_driver::Stream;
    /// # use symm_mem::{SymmetricPool, rendezvous::{Buffer, Rendezvous}};
    /// # fn rank(pool: &SymmetricPool, rendezvous: &Rendezvous, stream: &Stream) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut values = pool.alloc::<f32>(1024, stream)?;
    /// stream.memset_zeros(&mut values)?;
    /// let all = rendezvous.rendezvous(Buffer::of_slice(&values)?)?;
    /// let second_half = rendezvous.get(Buffer::of_slice(values.slice(512..)?)?)?;
    /// # drop((all, second_half));
    /// # Ok(())
    /// # }
    /// ```
    pub fn of_slice<'a, T: Element>(slice: impl Into<DeviceView<'a, T>>) -> Result<Self, ForeignSlice> {
        let view = slice.into();
        let address = view.device_ptr();
        let block = block_of(view.memory()).ok_or(ForeignSlice { address })?;
        // The address of a slice without elements has no meaning.
        let offset = address.offset_from(block.ptr()).unwrap_or(0) as usize;
        Self::from(block).part(offset, view.bytes()).ok_or(ForeignSlice { address })
    }

    /// Creates a buffer of all `bytes` bytes of segment `ordinal`. The pool can
    /// [retire](crate::SymmetricPool::retire) (free) the segment while the buffer exists.
    pub(crate) fn of_segment(memory: &Arc<PoolMemory>, ordinal: u32, bytes: u64) -> Self {
        Self { memory: BufferMemory::Segment(memory.clone(), ordinal), offset: 0, bytes: bytes as usize }
    }

    /// Returns the part of `bytes` bytes at `offset` (in bytes, from the start of this buffer), or `None` if the part
    /// exceeds this buffer.
    #[must_use]
    pub fn part(&self, offset: usize, bytes: usize) -> Option<Self> {
        (offset.checked_add(bytes)? <= self.bytes).then(|| Self {
            memory: self.memory.clone(),
            offset: self.offset + offset,
            bytes,
        })
    }

    /// The address on this rank.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        let base = match &self.memory {
            BufferMemory::Pool(block) => block.ptr(),
            BufferMemory::Segment(memory, ordinal) => {
                let arena = memory.arena();
                DevicePtr(arena.segments().get(*ordinal as usize).map_or(0, |segment| segment.memory.address))
            }
            BufferMemory::Own(memory) => memory.ptr(),
        };
        base + self.offset
    }

    /// The length of the buffer in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn kind(&self) -> DeviceKind {
        self.memory.in_pool().map_or_else(PeerMemory::kind, |_| DeviceKind::Cuda)
    }

    /// The offset of the buffer in the allocation that peers map, in bytes.
    pub(crate) fn offset(&self) -> usize {
        self.memory.in_pool().map_or(0, |(_, place)| place.offset as usize) + self.offset
    }

    /// For a buffer in a block of a pool: the number of the request that allocated the block. A pool numbers its
    /// requests one after the other. `None` for other buffers.
    pub(crate) fn request(&self) -> Option<u64> {
        match &self.memory {
            BufferMemory::Pool(block) => Some(block.request()),
            BufferMemory::Segment(..) | BufferMemory::Own(_) => None,
        }
    }

    /// The number of the segment that contains the buffer, or 0 for an allocation that belongs to no pool.
    pub(crate) fn ordinal(&self) -> u32 {
        self.memory.in_pool().map_or(0, |(_, place)| place.ordinal)
    }

    /// The pool that contains the buffer, or `None` for an allocation that belongs to no pool.
    pub(crate) fn pool(&self) -> Option<PoolId> {
        self.memory.in_pool().ok().map(|(memory, _)| memory.id())
    }

    fn attachments(&self) -> &Attachments {
        match self.memory.in_pool() {
            Ok((memory, _)) => memory.attachments(),
            Err(memory) => &memory.inner.attachments,
        }
    }

    /// Returns whether the drop of this buffer may free mappings of peers' memory. False if the buffer is in a pool
    /// that the program has not dropped, because that pool keeps the mappings.
    pub(crate) fn may_free_mappings(&self) -> bool {
        let has_pool = self.memory.in_pool().is_ok_and(|(memory, _)| !memory.is_orphaned());
        !has_pool && !self.attachments().is_empty()
    }

    /// The mapping of the peers' memory that the buffer's allocation keeps for `group`, if there is one. `group` is the
    /// field `mappings` of a [`PeerGroup`](super::PeerGroup).
    pub(crate) fn mapping(&self, group: &Owner) -> Option<PeerMapping> {
        self.attachments().get::<PeerMapping>(group, self.ordinal()).map(Arc::unwrap_or_clone)
    }

    /// Makes the buffer's allocation keep `mapping` for `group`, in place of an earlier one. It keeps the mapping until
    /// one of these happens:
    /// - The allocation is freed, or its segment is [retired](crate::SymmetricPool::retire).
    /// - This method is called again for the same allocation and `group`.
    /// - `group` is dropped, and after that a mapping for any other group is added to the same pool or allocation.
    pub(crate) fn keep_mapping(&self, group: &Owner, mapping: PeerMapping) {
        self.attachments().put(group, self.ordinal(), Arc::new(mapping));
    }

    /// Pins this rank's segment for the graph that `stream` captures: the segment is not
    /// [retired](crate::SymmetricPool::retire) while the graph exists. All ranks retire a segment together, or none
    /// does. So the pin also keeps the peers' segments mapped, which the graph uses. Does nothing if `stream` does not
    /// capture, or if the buffer is in no pool.
    pub(crate) fn segment_used_by_graph(&self, stream: &Stream) -> cuda_driver::Result<()> {
        match self.memory.in_pool() {
            Ok((memory, place)) => memory.segment_used_by_graph(place.ordinal, stream),
            Err(_) => Ok(()),
        }
    }

    /// The whole allocation that contains the buffer, or `None` if it is a retired segment.
    pub(crate) fn allocation(&self) -> Option<WholeAllocation> {
        let (memory, Placement { ordinal, .. }) = match self.memory.in_pool() {
            Ok(in_pool) => in_pool,
            Err(memory) => {
                let PeerMemory { inner } = memory;
                let (base, bytes) = (memory.ptr(), memory.whole_bytes());
                let (subject, number) = (inner.subject, Some(inner.number));
                return Some(WholeAllocation { subject, number, base, bytes, frozen: false });
            }
        };
        let arena = memory.arena();
        let segment = arena.segments().get(ordinal as usize).filter(|segment| !segment.retired)?;
        Some(WholeAllocation {
            subject: Subject::Pool { pool: memory.id(), ordinal, log: segment.log.into() },
            number: None,
            base: DevicePtr(segment.memory.address),
            bytes: segment.bytes as usize,
            frozen: arena.is_frozen(),
        })
    }

    /// Returns the memory of the buffer's allocation, as a value that can be exported to other ranks. `allocation` is
    /// an earlier result of [`allocation`](Self::allocation). Returns `None` if the allocation is a segment that was
    /// retired since then.
    pub(crate) fn shareable(
        &self,
        context: &Context,
        allocation: &WholeAllocation,
    ) -> Result<Option<Shareable>, cuda_driver::Error> {
        if let BufferMemory::Own(memory) = &self.memory {
            return Ok(Some(memory.shareable()));
        }
        let retained = PhysicalMemory::retain(context, allocation.base, allocation.bytes);
        // If another thread has retired the segment since `allocation` was made, `retained` may be other memory at the
        // same address.
        match self.allocation() {
            Some(_) => retained.map(|physical| Some(Shareable::Virtual(physical))),
            None => Ok(None),
        }
    }
}

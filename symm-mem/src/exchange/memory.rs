//! Memory that a transfer copies from or to.

use std::{any::Any, sync::Arc};

use caching_alloc::{core::Block, driver::DeviceAllocator};
use cuda_driver::{Context, DevicePtr, DeviceView, Element, memory::DeviceMemory};
use process_group::error_text;

use super::{
    TransferError,
    owned::{Owned, OwnedAllocation},
    protocol::AllocationId,
};
use crate::{
    pool::SymmetricBlock,
    rendezvous::{Buffer, DeviceKind, Layout, PeerMemory, protocol::Subject},
    sharing::{PlainMemory, Shareable},
};

/// A contiguous range of memory that this rank has allocated on a CUDA device, and that peers can open for transfers.
/// Clones share the memory and keep it alive. The range lies in one of these:
/// - a block of a [symmetric pool](crate::SymmetricPool)
/// - a block of a [caching allocator](Self::block)
/// - a [slice](Self::of_slice) that a symmetric pool or a caching allocator has allocated
/// - a [`PeerMemory`]
/// - a [`DeviceMemory`], which is memory of `cuMemAlloc`
/// - [memory of another owner](Self::foreign)
#[derive(Debug, Clone)]
pub struct Memory {
    backing: Backing,
    offset: usize,
    bytes: usize,
}

#[derive(Debug, Clone)]
enum Backing {
    /// A block of a symmetric pool, or a [`PeerMemory`].
    Virtual(Buffer),
    /// All other memory.
    Owned(Arc<Owned>),
}

impl From<&Buffer> for Memory {
    fn from(buffer: &Buffer) -> Self {
        let bytes = buffer.bytes();
        Self { backing: Backing::Virtual(buffer.clone()), offset: 0, bytes }
    }
}

impl From<&PeerMemory> for Memory {
    fn from(memory: &PeerMemory) -> Self {
        Self::from(&Buffer::from(memory))
    }
}

impl From<&SymmetricBlock> for Memory {
    fn from(block: &SymmetricBlock) -> Self {
        Self::from(&Buffer::from(block))
    }
}

impl From<&Memory> for Memory {
    fn from(memory: &Memory) -> Self {
        memory.clone()
    }
}

impl From<DeviceMemory> for Memory {
    /// Wraps memory of `cuMemAlloc`. Peers in other processes open it by legacy IPC handle.
    fn from(memory: DeviceMemory) -> Self {
        Self::owned(Owned::from(memory))
    }
}

impl Memory {
    fn owned(owned: Owned) -> Self {
        let bytes = owned.bytes;
        Self { backing: Backing::Owned(Arc::new(owned)), offset: 0, bytes }
    }

    /// Wraps a block of a [caching allocator](caching_alloc) on the device of `context`. Peers open the segment (the
    /// allocation of the driver) that contains the block. If the segment is virtual memory with exportable
    /// [handles](caching_alloc::driver::Sharing), peers in other processes use its file descriptor or fabric handle. If
    /// it is memory of `cuMemAlloc`, they use its legacy IPC handle.
    ///
    /// A block of a [re-mappable](caching_alloc::core::PoolKind) pool may lie in several segments, called pages, each
    /// with its own handle. A copy from or to a peer's block is then split at the ends of the peer's pages.
    ///
    /// The block stays allocated, and its segments are neither moved nor released, until no rank needs the memory any
    /// more. Then the block is freed to its stream's cache. If other streams use the block,
    /// [record](caching_alloc::core::Block::record_stream) them, or make sure that their work has ended by then.
    ///
    /// # Errors
    /// [`TransferError::Unheld`] if a segment of the block is about to move or to be released.
    /// [`TransferError::Driver`] if the driver fails, if the block is not on the device of `context`, or if the driver
    /// did not allocate the block's memory.
    pub fn block(context: &Context, block: impl Into<Arc<Block>>) -> Result<Self, TransferError> {
        let block: Arc<Block> = block.into();
        Ok(Self::owned(Owned::block(context, &block, block.clone())?))
    }

    /// Wraps the elements of a slice or view that [`SymmetricPool::alloc`](crate::SymmetricPool::alloc) or
    /// [`DeviceAllocator::alloc`] allocated. Peers open the segments that contain the elements, as for a
    /// [`block`](Self::block). The slice's memory stays allocated until no rank needs it any more, also after the slice
    /// is dropped.
    ///
    /// Transfers are not ordered with the work of the slice's [stream](DeviceView::stream). Until both the slice and
    /// this memory are dropped, the program must order each transfer of any rank with that work, for example by events
    /// and [notifications](super::Regions::transfer_and_notify). The calls that enqueue transfers are `unsafe`, and
    /// state this as a condition on conflicting accesses.
    ///
    /// # Errors
    /// As [`block`](Self::block). [`TransferError::ForeignSlice`] if another allocator allocated the slice.
    ///
    /// ```no_run
    /// # use caching_alloc::driver::DeviceAllocator;
    /// # use cuda_driver::Stream;
    /// # use symm_mem::exchange::{Exchange, Memory};
    /// # fn rank(exchange: &Exchange, allocator: &DeviceAllocator, stream: &Stream) -> Result<(), Box<dyn std::error::Error>> {
    /// let cache = allocator.alloc::<u16>(1 << 20, stream)?;
    /// let (keys, values) = (cache.slice(..1 << 19)?, cache.slice(1 << 19..)?);
    /// let regions = [("keys", Memory::of_slice(keys)?), ("values", Memory::of_slice(values)?)];
    /// let regions = exchange.share_regions("kv", &regions)?;
    /// # drop(regions);
    /// # Ok(())
    /// # }
    /// ```
    pub fn of_slice<'a, T: Element>(slice: impl Into<DeviceView<'a, T>>) -> Result<Self, TransferError> {
        let view = slice.into();
        if let Ok(buffer) = Buffer::of_slice(view) {
            return Ok(Self::from(&buffer));
        }
        let address = view.device_ptr();
        let foreign = TransferError::ForeignSlice { address: address.0 };
        let block = DeviceAllocator::block_of(view.memory()).ok_or(foreign)?;
        let owned = Owned::block(view.stream().context(), block, view.memory().clone())?;
        // A slice without elements has no address.
        let offset = address.offset_from(owned.ptr).unwrap_or(0) as usize;
        Self::owned(owned).part(offset, view.bytes())
    }

    /// Wraps `bytes` bytes of device memory that begin at `ptr` and belong to `owner`. The range may lie anywhere in an
    /// allocation of `cuMemAlloc`, or in a mapping of virtual memory. `owner` is dropped once no rank needs the memory
    /// any more.
    ///
    /// # Safety
    /// The allocation stays valid until `owner` is dropped. If the range lies in a mapping of virtual memory, the
    /// mapping must begin at the first byte of its physical memory, because peers map the physical memory from there.
    ///
    /// # Errors
    /// [`TransferError::Driver`] if the driver fails, or did not allocate `ptr`. [`TransferError::OutOfBounds`] if the
    /// range extends beyond the allocation.
    pub unsafe fn foreign(
        context: &Context,
        ptr: DevicePtr,
        bytes: usize,
        owner: impl Any + Send + Sync,
    ) -> Result<Self, TransferError> {
        let (owned, offset) = Owned::foreign(context, ptr, owner)?;
        Self::owned(owned).part(offset, bytes)
    }

    /// Returns the `bytes` bytes of this memory that begin at byte `offset`.
    ///
    /// # Errors
    /// [`TransferError::OutOfBounds`] if the range extends beyond this memory.
    pub fn part(&self, offset: usize, bytes: usize) -> Result<Self, TransferError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => {
                Ok(Self { backing: self.backing.clone(), offset: self.offset + offset, bytes })
            }
            _ => Err(TransferError::OutOfBounds { offset, bytes, whole: self.bytes }),
        }
    }

    /// Returns the part of this memory that a tensor with this layout occupies. `offset` is the distance of the tensor
    /// from the first byte of this memory, in elements of the tensor's data type.
    ///
    /// # Errors
    /// [`TransferError::NotContiguous`] if the elements are not contiguous in row-major order: copy engines move
    /// contiguous bytes. [`TransferError::OutOfBounds`] if the tensor extends beyond this memory.
    pub fn view(&self, layout: &Layout, offset: usize) -> Result<Self, TransferError> {
        let dense = Layout::contiguous(layout.shape(), layout.data_type());
        // The stride of a dimension of length 1 has no effect.
        let dimensions = layout.shape().iter().zip(layout.strides().iter().zip(dense.strides()));
        let is_dense = dimensions.clone().all(|(length, (stride, dense))| *length <= 1 || stride == dense);
        if !is_dense && layout.elements() != Some(0) {
            let (shape, strides) = (layout.shape().to_vec(), layout.strides().to_vec());
            return Err(TransferError::NotContiguous { shape, strides });
        }
        let begin = offset.saturating_mul(layout.data_type().size());
        self.part(begin, layout.bytes().unwrap_or(usize::MAX))
    }

    /// Address of the first byte on this rank.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        let base = match &self.backing {
            Backing::Virtual(buffer) => buffer.ptr(),
            Backing::Owned(owned) => owned.ptr,
        };
        base + self.offset
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns an error if the memory does not belong to a CUDA device.
    pub(super) fn check_kind(&self) -> Result<(), TransferError> {
        match &self.backing {
            Backing::Virtual(buffer) if buffer.kind() != DeviceKind::Cuda => {
                Err(TransferError::OtherDevice { kind: buffer.kind() })
            }
            _ => Ok(()),
        }
    }

    /// Returns whether freeing this memory may call `cuMemFree`, which may wait for the work of the device:
    /// - Memory of `cuMemAlloc` is freed by `cuMemFree`.
    /// - A [`PeerMemory`], or memory of a dropped symmetric pool, may have mappings of peers' memory, which are freed
    ///   together with it. Each mapping has an array of the peers' addresses in device memory, which `cuMemFree` frees.
    pub(super) fn may_wait_when_freed(&self) -> bool {
        match &self.backing {
            Backing::Virtual(buffer) => buffer.may_free_mappings(),
            Backing::Owned(owned) => owned.allocations.iter().any(|it| it.physical.is_none()),
        }
    }

    /// Splits this memory into pieces, one for each allocation that it lies in, in the order of their addresses.
    /// Returns `None` if the memory lies in a segment that its pool has [retired](crate::SymmetricPool::retire), that
    /// is, removed.
    pub(super) fn pieces(&self) -> Option<Vec<MemorySpan>> {
        let owned = match &self.backing {
            Backing::Virtual(buffer) => {
                let allocation = buffer.allocation()?;
                let id = match (allocation.number, allocation.subject) {
                    (Some(number), _) => AllocationId::Own { number },
                    (None, Subject::Pool { pool, ordinal, .. }) => AllocationId::Segment { pool, ordinal },
                    _ => return None,
                };
                let offset = buffer.offset() + self.offset;
                return Some(vec![MemorySpan { id, offset, bytes: self.bytes, memory: self.clone(), at: 0 }]);
            }
            Backing::Owned(owned) => owned,
        };
        let (begin, end) = (self.ptr(), self.ptr() + self.bytes);
        let piece = |(at, allocation): (usize, &OwnedAllocation)| {
            let from = begin.max(allocation.base);
            let until = end.min(allocation.base + allocation.bytes);
            let bytes = until.offset_from(from).filter(|bytes| *bytes > 0)? as usize;
            let offset = from.offset_from(allocation.base)? as usize;
            let id = AllocationId::Own { number: allocation.number.0 };
            Some(MemorySpan { id, offset, bytes, memory: self.clone(), at })
        };
        Some(owned.allocations.iter().enumerate().filter_map(piece).collect())
    }
}

/// The part of a [`Memory`] that lies in one allocation. Keeps the memory alive.
pub(super) struct MemorySpan {
    pub(super) id: AllocationId,
    /// Offset of the part in the allocation, in bytes.
    pub(super) offset: usize,
    /// Length of the part in bytes.
    pub(super) bytes: usize,
    memory: Memory,
    /// For [`Backing::Owned`], the index of the allocation in `Owned::allocations`. Otherwise 0.
    at: usize,
}

impl MemorySpan {
    /// Returns the allocation as a value that [`sharing`](crate::sharing) can export. The error is the reason of a
    /// failure, for example that the allocation is a retired segment of a pool, or that copy engines cannot access it.
    pub(super) fn shareable(&self, context: &Context) -> Result<Shareable, String> {
        self.memory.check_kind().map_err(|error| error_text(&error))?;
        let gone = || "the memory has no pages".to_owned();
        match &self.memory.backing {
            Backing::Owned(owned) => {
                let OwnedAllocation { base, bytes, physical, .. } = &owned.allocations[self.at];
                Ok(match physical {
                    Some(physical) => Shareable::Virtual(physical.clone()),
                    None => {
                        // SAFETY: `owned` keeps the device memory of all its allocations.
                        let memory =
                            unsafe { PlainMemory::new(&owned.context, *base, *bytes, owned.clone()) };
                        Shareable::Plain(memory)
                    }
                })
            }
            Backing::Virtual(buffer) => {
                let allocation = buffer.allocation().ok_or_else(gone)?;
                let shareable = buffer.shareable(context, &allocation).map_err(|error| error_text(&error))?;
                shareable.ok_or_else(gone)
            }
        }
    }
}

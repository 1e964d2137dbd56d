//! Memory that a transfer copies from or to.

use std::{any::Any, sync::Arc};

use caching_alloc::core::Block;
use cuda_driver::{Context, DevicePtr, memory::DeviceMemory, vmm::PhysicalMemory};
use process_group::error_text;

use super::{
    TransferError,
    owned::{Owned, OwnedAllocation, handles_of},
    protocol::{AllocationId, Way},
};
use crate::{
    pool::SymmetricBlock,
    rendezvous::{Buffer, Layout, PeerMemory, protocol::Subject},
};

/// Contiguous memory of this rank's device, or a [part](Self::part) of such memory. The memory is a block of a
/// symmetric pool or of a caching allocator, an allocation that peers can map, memory of `cuMemAlloc`, or
/// [memory of another owner](Self::foreign). Clones share the memory and keep it alive.
#[derive(Debug, Clone)]
pub struct Memory {
    backing: Backing,
    offset: usize,
    bytes: usize,
}

#[derive(Debug, Clone)]
enum Backing {
    Virtual(Buffer),
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
    /// Wraps memory of `cuMemAlloc`, which peers open by legacy IPC handle.
    fn from(memory: DeviceMemory) -> Self {
        Self::owned(Owned::from(memory))
    }
}

impl Memory {
    fn owned(owned: Owned) -> Self {
        let bytes = owned.bytes();
        Self { backing: Backing::Owned(Arc::new(owned)), offset: 0, bytes }
    }

    /// Wraps a block of a [caching allocator](caching_alloc) on the device of `context`. Peers open the block's
    /// segment. They use a file descriptor or fabric handle if the segment is virtual memory of a source with such
    /// [handles](caching_alloc::driver::Sharing), and a legacy IPC handle if it is memory of `cuMemAlloc`.
    ///
    /// The block and its segments are held until no rank needs the memory any more. Then the block is freed to its
    /// stream's cache. By then, work that the caller enqueued on other streams must have ended or be
    /// [recorded](caching_alloc::core::Block::record_stream).
    ///
    /// A block of a re-mappable pool may lie in several pages, which have a handle each. Such a block can be a
    /// [region](super::Exchange::share_regions). A [`Transfer`](super::Transfer) takes only a [`part`](Self::part) of
    /// it that lies in one page.
    ///
    /// # Errors
    /// [`TransferError::Unheld`] if a page of the block is about to move or to be released. [`TransferError::Driver`]
    /// if the driver fails, or if the block is on another device or not memory of the driver.
    pub fn block(context: &Context, block: impl Into<Arc<Block>>) -> Result<Self, TransferError> {
        Ok(Self::owned(Owned::block(context, block.into())?))
    }

    /// Wraps `bytes` bytes of device memory of another owner, from `ptr` on. The range may lie anywhere in an
    /// allocation of `cuMemAlloc`, or in a mapping of virtual memory. `owner` is dropped once no rank needs the memory
    /// any more.
    ///
    /// # Safety
    /// The allocation stays valid until `owner` is dropped. If the range lies in a mapping of virtual memory, the
    /// mapping begins at the first byte of its physical memory, because peers map the physical memory from there.
    ///
    /// # Errors
    /// [`TransferError::Driver`] for an address that the driver did not allocate; [`TransferError::OutOfBounds`] if
    /// the range leaves the allocation.
    pub unsafe fn foreign(
        context: &Context,
        ptr: DevicePtr,
        bytes: usize,
        owner: impl Any + Send + Sync,
    ) -> Result<Self, TransferError> {
        let (owned, offset) = Owned::foreign(context, ptr, owner)?;
        Self::owned(owned).part(offset, bytes)
    }

    /// Returns the `bytes` bytes of this memory from byte `offset` on.
    ///
    /// # Errors
    /// [`TransferError::OutOfBounds`].
    pub fn part(&self, offset: usize, bytes: usize) -> Result<Self, TransferError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => {
                Ok(Self { backing: self.backing.clone(), offset: self.offset + offset, bytes })
            }
            _ => Err(TransferError::OutOfBounds { offset, bytes, whole: self.bytes }),
        }
    }

    /// Returns the memory of a tensor that begins `offset` elements after the first byte.
    ///
    /// # Errors
    /// [`TransferError::NotContiguous`] for a tensor with gaps or in another order: copy engines move contiguous
    /// bytes. [`TransferError::OutOfBounds`].
    pub fn view(&self, layout: &Layout, offset: usize) -> Result<Self, TransferError> {
        let dense = Layout::contiguous(layout.shape(), layout.data_type());
        // The stride of a dimension of length 1 has no effect.
        let moves = layout.shape().iter().zip(layout.strides().iter().zip(dense.strides()));
        let is_dense = moves.clone().all(|(length, (stride, dense))| *length <= 1 || stride == dense);
        if !is_dense && layout.elements() != Some(0) {
            let (shape, strides) = (layout.shape().to_vec(), layout.strides().to_vec());
            return Err(TransferError::NotContiguous { shape, strides });
        }
        let begin = offset.saturating_mul(layout.data_type().size());
        self.part(begin, layout.bytes().unwrap_or(usize::MAX))
    }

    /// Address of its first byte on this rank.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        let base = match &self.backing {
            Backing::Virtual(buffer) => buffer.ptr(),
            Backing::Owned(owned) => owned.ptr(),
        };
        base + self.offset
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the part of this memory in each allocation that contains some of it. Returns `None` if the memory lies
    /// in a retired segment of a pool.
    pub(super) fn pieces(&self) -> Option<Vec<Piece>> {
        let owned = match &self.backing {
            Backing::Virtual(buffer) => {
                let allocation = buffer.allocation()?;
                let id = match (allocation.number, allocation.subject) {
                    (Some(number), _) => AllocationId::Own { number },
                    (None, Subject::Pool { pool, ordinal, .. }) => AllocationId::Segment { pool, ordinal },
                    _ => return None,
                };
                let (whole, offset) = (allocation.bytes, buffer.offset() + self.offset);
                let allocation = Allocation { memory: self.clone(), at: 0 };
                return Some(vec![Piece { id, whole, offset, bytes: self.bytes, allocation }]);
            }
            Backing::Owned(owned) => owned,
        };
        let (begin, end) = (self.ptr(), self.ptr() + self.bytes);
        let piece = |(at, allocation): (usize, &OwnedAllocation)| {
            let from = begin.max(allocation.base);
            let until = end.min(allocation.base + allocation.bytes);
            let bytes = until.offset_from(from).filter(|bytes| *bytes > 0)? as usize;
            let offset = from.offset_from(allocation.base)? as usize;
            let (id, whole) = (AllocationId::Own { number: allocation.number() }, allocation.bytes);
            let allocation = Allocation { memory: self.clone(), at };
            Some(Piece { id, whole, offset, bytes, allocation })
        };
        Some(owned.allocations().iter().enumerate().filter_map(piece).collect())
    }

    /// Returns the only piece of memory that lies in one allocation. Otherwise returns a description of the problem.
    pub(super) fn piece(&self) -> Result<Piece, String> {
        let mut pieces = self.pieces().ok_or("the block is of no segment of its pool")?;
        match (pieces.pop(), pieces.len()) {
            (Some(piece), 0) => Ok(piece),
            (_, others) => Err(format!(
                "the memory lies in {} pages, and a transfer takes memory of one: share it as a region, or transfer a \
                 part in one page",
                others + 1
            )),
        }
    }
}

/// The part of a memory in one allocation.
pub(super) struct Piece {
    pub(super) id: AllocationId,
    /// Length of the whole allocation in bytes.
    pub(super) whole: usize,
    /// First byte of the part in the allocation.
    pub(super) offset: usize,
    /// Length of the part in bytes.
    pub(super) bytes: usize,
    pub(super) allocation: Allocation,
}

/// An allocation that contains part of a [`Memory`]. Keeps the memory alive.
#[derive(Debug, Clone)]
pub(crate) struct Allocation {
    memory: Memory,
    /// Index among the allocations of an [`Owned`] memory.
    at: usize,
}

impl Allocation {
    fn owned(&self) -> Option<(&Owned, &OwnedAllocation)> {
        match &self.memory.backing {
            Backing::Virtual(_) => None,
            Backing::Owned(owned) => Some((owned, owned.allocations().get(self.at)?)),
        }
    }

    /// Exports the handles by which peers can open the allocation.
    pub(super) fn way(&self, context: &Context) -> Result<Way, String> {
        if let Some((owned, allocation)) = self.owned()
            && allocation.physical().is_none()
        {
            return owned.legacy(allocation);
        }
        let physical = self.physical(context).map_err(|error| error_text(&error))?;
        handles_of(&physical.ok_or("the memory has no pages")?)
    }

    /// The allocation's physical memory, if it is virtual memory.
    pub(super) fn physical(&self, context: &Context) -> Result<Option<PhysicalMemory>, cuda_driver::Error> {
        match &self.memory.backing {
            Backing::Owned(_) => Ok(self.owned().and_then(|(_, allocation)| allocation.physical()).cloned()),
            Backing::Virtual(buffer) => match buffer.allocation() {
                Some(allocation) => buffer.physical(context, &allocation),
                None => Ok(None),
            },
        }
    }

    /// Base address and context of memory of `cuMemAlloc`; `None` for virtual memory.
    pub(super) fn plain(&self) -> Option<(DevicePtr, &Context)> {
        let (owned, allocation) = self.owned()?;
        allocation.physical().is_none().then_some((allocation.base, owned.context()))
    }
}

//! Memory that a transfer copies from or to.

use std::{any::Any, fmt, sync::Arc};

use cuda_driver::{
    Context, DevicePtr,
    memory::{DeviceMemory, IpcHandle},
    vmm::{HandleTypes, PhysicalMemory},
};
use process_group::error_text;

use super::{
    TransferError,
    protocol::{AllocationId, Way},
};
use crate::{
    pool::SymmetricBlock,
    rendezvous::{Buffer, Layout, PeerMemory, fresh_number, protocol::Subject},
};

/// Contiguous memory of this rank's device: a block of a pool, an allocation that peers can map, or plain memory of
/// `cuMemAlloc`; all of it or a [part](Self::part). Clones share the memory and keep it alive.
#[derive(Debug, Clone)]
pub struct Memory {
    backing: Backing,
    offset: usize,
    bytes: usize,
}

#[derive(Debug, Clone)]
enum Backing {
    Virtual(Buffer),
    Plain(Arc<Plain>),
}

/// An allocation of `cuMemAlloc`.
struct Plain {
    context: Context,
    number: u64,
    base: DevicePtr,
    bytes: usize,
    _owner: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for Plain {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, base, bytes, .. } = self;
        write!(out, "Plain({bytes} bytes at {base}, allocation {number})")
    }
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
    /// Wraps plain memory, which peers open by legacy IPC handle.
    fn from(memory: DeviceMemory) -> Self {
        let (context, base, bytes) = (memory.context().clone(), memory.ptr(), memory.bytes());
        let plain = Plain { context, number: fresh_number(), base, bytes, _owner: Box::new(memory) };
        Self { backing: Backing::Plain(Arc::new(plain)), offset: 0, bytes }
    }
}

impl Memory {
    /// Wraps `bytes` bytes of plain memory of another owner, from `ptr` on. The range may lie anywhere in an
    /// allocation of `cuMemAlloc` of the device of `context`. `owner` is dropped once no rank needs the memory any
    /// more.
    ///
    /// # Safety
    /// The allocation stays valid until `owner` is dropped.
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
        let range = context.address_range(ptr)?;
        let offset = ptr.offset_from(range.start).unwrap_or(u64::MAX) as usize;
        let whole = Plain {
            context: context.clone(),
            number: fresh_number(),
            base: range.start,
            bytes: range.bytes,
            _owner: Box::new(owner),
        };
        let whole = Self { backing: Backing::Plain(Arc::new(whole)), offset: 0, bytes: range.bytes };
        whole.part(offset, bytes)
    }

    /// Returns `bytes` bytes from `offset` on.
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
            Backing::Plain(plain) => plain.base,
        };
        base + self.offset
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The allocation that contains it.
    pub(super) fn whole(&self) -> Option<Whole> {
        match &self.backing {
            Backing::Virtual(buffer) => {
                let allocation = buffer.allocation()?;
                let id = match (allocation.number, allocation.subject) {
                    (Some(number), _) => AllocationId::Own { number },
                    (None, Subject::Pool { pool, ordinal, .. }) => AllocationId::Segment { pool, ordinal },
                    _ => return None,
                };
                Some(Whole { id, bytes: allocation.bytes, offset: buffer.offset() + self.offset })
            }
            Backing::Plain(plain) => {
                let id = AllocationId::Own { number: plain.number };
                Some(Whole { id, bytes: plain.bytes, offset: self.offset })
            }
        }
    }

    /// Exports the handles by which peers can open the allocation.
    pub(super) fn way(&self, context: &Context) -> Result<Way, String> {
        match &self.backing {
            Backing::Plain(plain) => {
                let IpcHandle(handle) =
                    plain.context.export_ipc(plain.base).map_err(|error| error_text(&error))?;
                Ok(Way::Legacy { handle: handle.to_vec() })
            }
            Backing::Virtual(_) => {
                let physical = self.physical(context).map_err(|error| error_text(&error))?;
                let Some(physical) = physical else { return Err("the memory has no pages".to_owned()) };
                let kinds = physical.handle_types();
                let fabric = match kinds.contains(HandleTypes::FABRIC) {
                    true => Some(physical.export_fabric().map_err(|error| error_text(&error))?.0.to_vec()),
                    false => None,
                };
                Ok(Way::Virtual { descriptor: kinds.contains(HandleTypes::POSIX_FD), fabric })
            }
        }
    }

    /// The allocation's physical memory, if it is virtual memory.
    pub(super) fn physical(&self, context: &Context) -> Result<Option<PhysicalMemory>, cuda_driver::Error> {
        match &self.backing {
            Backing::Plain(_) => Ok(None),
            Backing::Virtual(buffer) => match buffer.allocation() {
                Some(allocation) => buffer.physical(context, &allocation),
                None => Ok(None),
            },
        }
    }

    /// Base address and context of plain memory; `None` for virtual memory.
    pub(super) fn plain(&self) -> Option<(DevicePtr, &Context)> {
        match &self.backing {
            Backing::Plain(plain) => Some((plain.base, &plain.context)),
            Backing::Virtual(_) => None,
        }
    }
}

/// The whole allocation that contains a memory.
pub(super) struct Whole {
    pub(super) id: AllocationId,
    pub(super) bytes: usize,
    /// First byte of the memory in the allocation.
    pub(super) offset: usize,
}

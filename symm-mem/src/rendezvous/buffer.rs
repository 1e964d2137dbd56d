//! The memory of a rendezvous: a block of a pool, an allocation of its own, or a part of one.

use cuda_driver::{Context, DevicePtr, vmm::PhysicalMemory};

use super::{PeerMemory, buffers::PeerMappingCache, protocol::Subject};
use crate::pool::SymmetricBlock;

/// Memory for a rendezvous: all or a [part](Self::part) of a [`SymmetricBlock`] or a [`PeerMemory`]. It keeps the
/// memory allocated.
#[derive(Debug, Clone)]
pub struct Buffer {
    memory: Memory,
    /// The offset in the block or allocation, in bytes.
    offset: usize,
    bytes: usize,
}

#[derive(Debug, Clone)]
enum Memory {
    Pool(SymmetricBlock),
    Own(PeerMemory),
}

/// The whole allocation of a buffer, which peers map.
pub(crate) struct Allocation {
    pub(crate) subject: Subject,
    /// For an allocation of its own, its number in the process.
    pub(crate) number: Option<u64>,
    pub(crate) base: DevicePtr,
    pub(crate) bytes: usize,
    pub(super) frozen: bool,
}

impl From<&SymmetricBlock> for Buffer {
    fn from(block: &SymmetricBlock) -> Self {
        Self { memory: Memory::Pool(block.clone()), offset: 0, bytes: block.bytes() as usize }
    }
}

impl From<&PeerMemory> for Buffer {
    fn from(memory: &PeerMemory) -> Self {
        Self { memory: Memory::Own(memory.clone()), offset: 0, bytes: memory.bytes() }
    }
}

impl From<&Buffer> for Buffer {
    fn from(buffer: &Buffer) -> Self {
        buffer.clone()
    }
}

impl Buffer {
    /// Returns `bytes` bytes from `offset` on, or `None` if that is out of bounds.
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
            Memory::Pool(block) => block.ptr(),
            Memory::Own(memory) => memory.ptr(),
        };
        base + self.offset
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The offset in the allocation that peers map, in bytes.
    pub(crate) fn offset(&self) -> usize {
        match &self.memory {
            Memory::Pool(block) => block.placement().offset as usize + self.offset,
            Memory::Own(_) => self.offset,
        }
    }

    /// The segment number of the allocation, by which the mapping cache identifies it.
    pub(super) fn ordinal(&self) -> u32 {
        match &self.memory {
            Memory::Pool(block) => block.placement().ordinal,
            Memory::Own(_) => 0,
        }
    }

    /// The cache of the allocation's peer mappings.
    pub(super) fn peer_mappings(&self) -> &PeerMappingCache {
        match &self.memory {
            Memory::Pool(block) => block.memory().peer_mappings(),
            Memory::Own(memory) => &memory.inner.peer_mappings,
        }
    }

    pub(crate) fn allocation(&self) -> Option<Allocation> {
        match &self.memory {
            Memory::Own(memory) => {
                let mapping = &memory.inner.mapping;
                let (subject, base, bytes) = (memory.inner.subject, mapping.ptr(), mapping.bytes());
                let number = Some(memory.inner.number);
                Some(Allocation { subject, number, base, bytes, frozen: false })
            }
            Memory::Pool(block) => {
                let (pool, ordinal) = (block.memory().id(), block.placement().ordinal);
                let arena = block.memory().arena();
                let segment = arena.segments().get(ordinal as usize)?;
                let log = segment.log.into();
                Some(Allocation {
                    subject: Subject::Pool { pool, ordinal, log },
                    number: None,
                    base: DevicePtr(segment.memory.address),
                    bytes: segment.bytes as usize,
                    frozen: arena.is_frozen(),
                })
            }
        }
    }

    /// The physical memory of the allocation.
    pub(crate) fn physical(
        &self,
        context: &Context,
        allocation: &Allocation,
    ) -> Result<PhysicalMemory, cuda_driver::Error> {
        match &self.memory {
            Memory::Own(memory) => Ok(memory.inner.mapping.memory().clone()),
            Memory::Pool(_) => PhysicalMemory::retain(context, allocation.base, allocation.bytes),
        }
    }
}

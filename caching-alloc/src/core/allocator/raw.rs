//! Raw blocks: blocks identified by their addresses, for programs that cannot store a [`Block`], such as C plug-ins.

use super::Allocator;
use crate::core::block::Block;
use crate::core::error::AllocError;
use crate::core::registry::locked;
use crate::core::snapshot::{AddressInfo, Usage};
use crate::core::stream::StreamId;

/// The reason why no raw block, that is, no block of [`Allocator::allocate_raw`], begins at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RawError {
    /// The address is not in memory of this allocator.
    #[error("{address:#x} is no memory of this allocator; give it to the one that it came from")]
    Foreign {
        /// The address.
        address: u64,
    },
    /// No block at the address is handed out. If one was freed there, other streams or a call of
    /// [`with_raw`](Allocator::with_raw) may still use it.
    #[error("no raw block is at {address:#x} any more: it was released before; release each raw block once")]
    Free {
        /// The address.
        address: u64,
    },
    /// The address is inside a raw block, but is not its first byte.
    #[error("{address:#x} is inside the block at {begin:#x}; give back the block's first byte")]
    Inside {
        /// The address.
        address: u64,
        /// The block's first byte.
        begin: u64,
    },
    /// The address is in a block that was not allocated by [`allocate_raw`](Allocator::allocate_raw). Dropping its
    /// [`Block`] frees it.
    #[error("the block at {address:#x} was not allocated raw: it is given back when its owner drops it")]
    Owned {
        /// The address.
        address: u64,
    },
}

impl Allocator {
    /// Like [`allocate`](Self::allocate), but keeps the [`Block`] in the allocator, and returns its address.
    /// [`release_raw`](Self::release_raw) frees the block. A block that is never released is freed with the allocator:
    /// when the last handle of the allocator and its pools, and the last [`Attachment`](super::Attachment), are dropped.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    #[track_caller]
    pub fn allocate_raw(&self, bytes: u64, stream: StreamId) -> Result<u64, AllocError> {
        let block = self.allocate(bytes, stream)?;
        Ok(locked(&self.engine.raw).insert(block))
    }

    /// Frees a raw block, on its stream. If a call of [`with_raw`](Self::with_raw) is using the block, the block is
    /// freed when that call returns.
    ///
    /// # Errors
    /// [`RawError`]. Nothing is changed then. If the memory was already released, and was handed out again as another
    /// raw block at the same address, the second release frees that other block. This mistake cannot be detected.
    pub fn release_raw(&self, address: u64) -> Result<(), RawError> {
        // The block is dropped after the lock is released, because freeing it may call trackers and the driver.
        let block = locked(&self.engine.raw).release(address);
        block.map(drop).ok_or_else(|| self.not_raw(address))
    }

    /// Calls `look` with the raw block at `address`, for instance to [record a stream](Block::record_stream), and
    /// returns its result. No lock is held during the call. The block is not freed before `look` returns.
    ///
    /// # Errors
    /// As [`release_raw`](Self::release_raw).
    pub fn with_raw<R>(&self, address: u64, look: impl FnOnce(&Block) -> R) -> Result<R, RawError> {
        let block = locked(&self.engine.raw).get(address);
        block.map(|raw| look(&raw.block)).ok_or_else(|| self.not_raw(address))
    }

    /// Returns the reason why no raw block begins at an address.
    fn not_raw(&self, address: u64) -> RawError {
        // No block is released during the search. A block that was released before, and is found as active, was not
        // freed before the search, and so is among `released`.
        let raw = locked(&self.engine.raw);
        let released = raw.released();
        let Some(AddressInfo { block, .. }) = self.find(address) else {
            return RawError::Foreign { address };
        };
        if block.usage != Usage::Active || released.contains(&block.address) {
            return RawError::Free { address };
        }
        match raw.get(block.address) {
            Some(_) => RawError::Inside { address, begin: block.address },
            None => RawError::Owned { address },
        }
    }
}

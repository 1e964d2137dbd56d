//! Raw blocks: blocks identified by their addresses, for programs that cannot store a [`Block`], such as C plug-ins.

use std::sync::Arc;

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
    /// The address is in memory of this allocator, but in no block that is handed out. The memory is free, or belongs
    /// to a freed block that other streams may still use.
    #[error("the memory at {address:#x} is free: it was given back before; one of its users must not")]
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
    /// The address is in a block that is handed out, but that is not raw: a [`Block`] handle owns it. A raw block that
    /// was released during a call of [`Allocator::with_raw`] is also reported so, until that call returns.
    #[error("the block at {address:#x} was not allocated raw: it is given back when its owner drops it")]
    Owned {
        /// The address.
        address: u64,
    },
}

impl Allocator {
    /// Allocates a *raw* block: one that the program identifies by its address, without a [`Block`] handle. Otherwise
    /// like [`allocate`](Self::allocate). Returns the address of the first byte. The allocator owns the block until
    /// [`release_raw`](Self::release_raw) frees it. Without that call, the block is freed when the last handle of the
    /// allocator and its pools, the last [`ThreadRoute`](super::super::ThreadRoute), and the last
    /// [`Attachment`](super::Attachment) are dropped.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    #[track_caller]
    pub fn allocate_raw(&self, bytes: u64, stream: StreamId) -> Result<u64, AllocError> {
        let block = self.allocate(bytes, stream)?;
        let address = block.address();
        locked(&self.engine.raw).insert(address, Arc::new(block));
        Ok(address)
    }

    /// Frees a raw block, on its stream. If a call of [`with_raw`](Self::with_raw) is using the block, the block is
    /// freed when that call returns.
    ///
    /// # Errors
    /// [`RawError`]. Nothing is changed then. If the memory was already released, and was handed out again as another
    /// raw block at the same address, the second release frees that other block. This mistake cannot be detected.
    pub fn release_raw(&self, address: u64) -> Result<(), RawError> {
        let block = locked(&self.engine.raw).remove(&address);
        block.map(drop).ok_or_else(|| self.not_raw(address))
    }

    /// Calls `look` with the raw block at `address`, for instance to [record a stream](Block::record_stream), and
    /// returns its result. No lock is held during the call. The block is not freed before `look` returns.
    ///
    /// # Errors
    /// As [`release_raw`](Self::release_raw).
    pub fn with_raw<R>(&self, address: u64, look: impl FnOnce(&Block) -> R) -> Result<R, RawError> {
        let block = locked(&self.engine.raw).get(&address).cloned();
        block.map(|block| look(&block)).ok_or_else(|| self.not_raw(address))
    }

    /// Returns the reason why no raw block begins at an address.
    fn not_raw(&self, address: u64) -> RawError {
        let Some(AddressInfo { block, .. }) = self.find(address) else {
            return RawError::Foreign { address };
        };
        if block.usage != Usage::Active {
            return RawError::Free { address };
        }
        if locked(&self.engine.raw).contains_key(&block.address) {
            return RawError::Inside { address, begin: block.address };
        }
        RawError::Owned { address }
    }
}

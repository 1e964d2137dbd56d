//! Blocks by their addresses, for programs that can keep nothing else: those that plug in C functions.

use std::sync::Arc;

use super::allocator::{Allocator, Found};
use super::block::Block;
use super::device::locked;
use super::error::AllocError;
use super::snapshot::Usage;
use super::stream::StreamId;

/// Why an address does not name a block that can be given back by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RawError {
    /// No memory of this allocator.
    #[error("{address:#x} is no memory of this allocator; give it to the one that it came from")]
    Foreign {
        /// The address.
        address: u64,
    },
    /// It is free.
    #[error("the memory at {address:#x} is free: it was given back before; one of its users must not")]
    Free {
        /// The address.
        address: u64,
    },
    /// A block has that address inside.
    #[error("{address:#x} is inside the block at {begin:#x}; give back the block's first byte")]
    Inside {
        /// The address.
        address: u64,
        /// The block's first byte.
        begin: u64,
    },
    /// Its owner has it as a [`Block`].
    #[error("the block at {address:#x} was not allocated raw: it is given back when its owner drops it")]
    Owned {
        /// The address.
        address: u64,
    },
}

impl Allocator {
    /// As [`allocate`](Self::allocate), but the block is kept here, under its address, until it is
    /// [released](Self::release_raw). If the last handle of the allocator goes before, it stays allocated.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    #[track_caller]
    pub fn allocate_raw(&self, bytes: u64, stream: StreamId) -> Result<u64, AllocError> {
        let block = self.allocate(bytes, stream)?;
        let address = block.address();
        locked(&self.shared().raw).insert(address, Arc::new(block));
        Ok(address)
    }

    /// Frees a block that was allocated raw, on its stream. If another thread is inside [`with_raw`](Self::with_raw) with
    /// it, it is freed when that returns.
    ///
    /// # Errors
    /// [`RawError`]; nothing is changed then. Memory that was given back and handed out again meanwhile cannot be told
    /// from a block that was not.
    pub fn release_raw(&self, address: u64) -> Result<(), RawError> {
        let block = locked(&self.shared().raw).remove(&address);
        block.map(drop).ok_or_else(|| self.not_raw(address))
    }

    /// Calls `look` with a block that was allocated raw, for instance to [record a stream](Block::record_stream). No
    /// lock is held meanwhile. The block is not freed before `look` returns.
    ///
    /// # Errors
    /// As [`release_raw`](Self::release_raw).
    pub fn with_raw<R>(&self, address: u64, look: impl FnOnce(&Block) -> R) -> Result<R, RawError> {
        let block = locked(&self.shared().raw).get(&address).cloned();
        block.map(|block| look(&block)).ok_or_else(|| self.not_raw(address))
    }

    fn not_raw(&self, address: u64) -> RawError {
        let Some(Found { block, .. }) = self.find(address) else {
            return RawError::Foreign { address };
        };
        if block.usage != Usage::Active {
            return RawError::Free { address };
        }
        if locked(&self.shared().raw).contains_key(&block.address) {
            return RawError::Inside { address, begin: block.address };
        }
        RawError::Owned { address }
    }
}

//! The raw blocks of an allocator, by address.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::block::Block;

/// A block of [`Allocator::allocate_raw`](super::Allocator::allocate_raw).
#[derive(Debug)]
pub(super) struct RawBlock {
    pub(super) block: Block,
    /// Exists until the block is freed. Declared after `block`, because fields are dropped in the order of declaration.
    exists: Arc<()>,
}

/// The raw blocks of an allocator.
#[derive(Debug, Default)]
pub(super) struct RawBlocks {
    /// The blocks that are not released, by address.
    held: HashMap<u64, Arc<RawBlock>>,
    /// The blocks that were released, by address, with the token of [`RawBlock::exists`]. Such a block is about to be
    /// freed, or is freed when the last call of [`Allocator::with_raw`](super::Allocator::with_raw) that uses it
    /// returns.
    released: Vec<(u64, Weak<()>)>,
}

impl RawBlocks {
    /// Adds a block, and returns its address.
    pub(super) fn insert(&mut self, block: Block) -> u64 {
        let address = block.address();
        self.held.insert(address, Arc::new(RawBlock { block, exists: Arc::default() }));
        address
    }

    /// Returns the block that begins at an address, unless it was released.
    pub(super) fn get(&self, address: u64) -> Option<Arc<RawBlock>> {
        self.held.get(&address).cloned()
    }

    /// Releases the block that begins at an address. Drop the result without the lock of this value.
    pub(super) fn release(&mut self, address: u64) -> Option<Arc<RawBlock>> {
        let block = self.held.remove(&address)?;
        self.released.retain(|(_, exists)| exists.strong_count() > 0);
        self.released.push((address, Arc::downgrade(&block.exists)));
        Some(block)
    }

    /// Returns the addresses of the blocks that were released, but are not freed yet.
    pub(super) fn released(&self) -> Vec<u64> {
        let exists = |(_, exists): &&(u64, Weak<()>)| exists.strong_count() > 0;
        self.released.iter().filter(exists).map(|(address, _)| *address).collect()
    }
}

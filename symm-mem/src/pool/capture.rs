//! Graph capture: a pool does not grow meanwhile, and a graph keeps the blocks that it uses.

use std::sync::Arc;

use super::{SymmetricBlock, memory::Memory};

/// A capture in progress. Meanwhile the pool is frozen: an allocation without room is an error, and a commit is
/// refused on all members.
#[derive(Debug)]
pub struct PoolCapture {
    memory: Arc<Memory>,
    used: Vec<SymmetricBlock>,
}

impl PoolCapture {
    pub(super) fn begin(memory: Arc<Memory>) -> Self {
        memory.arena().freeze();
        Self { memory, used: Vec::new() }
    }

    /// Notes that captured work uses `block`.
    pub fn uses(&mut self, block: &SymmetricBlock) {
        self.used.push(block.clone());
    }

    /// Ends the capture. The pin is to live as long as the graph and what was instantiated from it.
    pub fn finish(mut self) -> GraphPin {
        GraphPin { memory: self.memory.clone(), blocks: std::mem::take(&mut self.used) }
    }
}

impl Drop for PoolCapture {
    fn drop(&mut self) {
        self.memory.arena().unfreeze();
    }
}

/// What a captured graph uses. While it lives, its blocks are not placed again and the pool's memory stays.
///
/// Dropping it frees blocks that nobody else holds: do so at the same point of the program on every rank.
#[derive(Debug)]
#[must_use = "a graph's blocks are free for others once its pin is dropped"]
pub struct GraphPin {
    blocks: Vec<SymmetricBlock>,
    #[expect(dead_code, reason = "held so that the memory stays, also for graphs that note no block")]
    memory: Arc<Memory>,
}

impl GraphPin {
    /// The blocks that the graph uses.
    pub fn blocks(&self) -> &[SymmetricBlock] {
        &self.blocks
    }
}

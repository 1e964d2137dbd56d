//! Graph capture: a pool does not grow meanwhile, and a graph keeps what it uses.

use std::sync::Arc;

use super::{
    SymmetricBlock,
    memory::{Memory, Used},
};

/// A capture in progress. Meanwhile the pool is frozen: an allocation without room is an error, and a commit is
/// refused on all members.
///
/// What is looked up meanwhile is taken as used by the captured work: its segment, and the blocks there, even if
/// their owners drop them before the capture ends. A capture that is dropped, and not finished, leaves no pin.
#[derive(Debug)]
pub struct PoolCapture {
    memory: Arc<Memory>,
    /// `None` once it is finished.
    capture: Option<u64>,
    used: Vec<SymmetricBlock>,
}

impl PoolCapture {
    pub(super) fn begin(memory: Arc<Memory>) -> Self {
        let capture = Some(memory.begin_capture());
        Self { memory, capture, used: Vec::new() }
    }

    /// Notes that captured work uses `block`, for who did not look it up.
    pub fn uses(&mut self, block: &SymmetricBlock) {
        self.memory.note_use(block.placement(), block.bytes());
        self.used.push(block.clone());
    }

    /// Ends the capture. The pin is to live as long as the graph and what was instantiated from it.
    pub fn finish(mut self) -> GraphPin {
        let used = self.capture.take().map(|capture| self.memory.end_capture(capture)).unwrap_or_default();
        GraphPin { used, blocks: std::mem::take(&mut self.used), memory: self.memory.clone() }
    }
}

impl Drop for PoolCapture {
    fn drop(&mut self) {
        if let Some(capture) = self.capture.take() {
            let used = self.memory.end_capture(capture);
            self.memory.unpin(&used);
        }
    }
}

/// What a captured graph uses. While it lives, its blocks are not placed again, its segments are not retired, on no
/// rank, and the pool's memory stays.
///
/// Dropping it frees blocks that nobody else holds: do so at the same point of the program on every rank.
#[derive(Debug)]
#[must_use = "a graph's blocks are free for others once its pin is dropped"]
pub struct GraphPin {
    used: Used,
    blocks: Vec<SymmetricBlock>,
    memory: Arc<Memory>,
}

impl GraphPin {
    /// The blocks that the graph was said to use ([`PoolCapture::uses`]).
    pub fn blocks(&self) -> &[SymmetricBlock] {
        &self.blocks
    }

    /// The segments that the graph uses, by ordinal.
    pub fn segments(&self) -> impl Iterator<Item = u32> + '_ {
        self.used.segments.iter().copied()
    }
}

impl Drop for GraphPin {
    fn drop(&mut self) {
        self.memory.unpin(&self.used);
    }
}

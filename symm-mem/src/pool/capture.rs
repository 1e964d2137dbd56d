//! Declared graph captures: a pool does not grow meanwhile, and a pin keeps what is used.

use std::sync::Arc;

use super::{SymmetricBlock, memory::Memory};

/// A declared capture in progress. Meanwhile the pool is frozen: an allocation without room is an error, and a commit is
/// refused on all members.
///
/// No declaration is needed for a graph to keep the blocks that it uses: collectives and messages of a group, kernels of
/// [`kernels`](crate::kernels) and transfers of an [`exchange`](crate::exchange) that a stream captures pin them until the
/// graph and its executables are dropped, if the capture was begun by
/// [`Stream::begin_capture`](cuda_driver::Stream::begin_capture). A declaration is for what this crate does not see: blocks
/// that only kernels of the program's own use, and captures that another library began. It also keeps the pool from growing.
///
/// What is looked up meanwhile is taken as used by the captured work: its segment, and the blocks there, even if
/// their owners drop them before the capture ends. So is what is allocated meanwhile. A capture that is dropped, and not
/// finished, leaves no pin.
#[derive(Debug)]
pub struct PoolCapture {
    memory: Arc<Memory>,
    pin: u64,
    is_finished: bool,
    used: Vec<SymmetricBlock>,
}

impl PoolCapture {
    pub(super) fn begin(memory: Arc<Memory>) -> Self {
        let pin = memory.begin_capture();
        Self { memory, pin, is_finished: false, used: Vec::new() }
    }

    /// Notes that captured work uses `block`, for who did not look it up.
    pub fn uses(&mut self, block: &SymmetricBlock) {
        self.memory.note_use(block.placement(), block.bytes());
        self.used.push(block.clone());
    }

    /// Ends the capture. The pin is to live as long as the graph and what was instantiated from it.
    pub fn finish(mut self) -> GraphPin {
        self.is_finished = true;
        let (pin, segments) = (self.pin, self.memory.end_capture(self.pin));
        GraphPin { pin, segments, blocks: std::mem::take(&mut self.used), memory: self.memory.clone() }
    }
}

impl Drop for PoolCapture {
    fn drop(&mut self) {
        if !self.is_finished {
            self.memory.end_capture(self.pin);
            self.memory.unpin(self.pin);
        }
    }
}

/// What a captured graph uses, as far as it was declared. While it lives, its blocks are not placed again, its segments are
/// not retired, on no rank, and the pool's memory stays.
///
/// Dropping it frees blocks that nobody else holds: do so at the same point of the program on every rank.
#[derive(Debug)]
#[must_use = "a graph's blocks are free for others once its pin is dropped"]
pub struct GraphPin {
    pin: u64,
    segments: Vec<u32>,
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
        self.segments.iter().copied()
    }
}

impl Drop for GraphPin {
    fn drop(&mut self) {
        self.memory.unpin(self.pin);
    }
}

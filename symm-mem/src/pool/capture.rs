//! Declared graph captures: the pool does not grow during a capture, and a pin keeps the memory that the graph uses.

use std::sync::Arc;

use super::{SymmetricBlock, memory::Memory};

/// A declared capture in progress. While it lives, the pool is frozen: an allocation that needs a new segment fails,
/// and a commit or retirement is refused on all members.
///
/// A graph keeps most blocks that it uses without a declaration: those of collectives and messages of a group, of
/// kernels of [`kernels`](crate::kernels) and of transfers of an [`exchange`](crate::exchange). A stream that
/// captures them pins the blocks until the graph and its executables are dropped, if
/// [`Stream::begin_capture`](cuda_driver::Stream::begin_capture) began the capture. A declaration is for uses that
/// this crate does not see: blocks used by the program's own kernels only, and captures begun by another library. It
/// also keeps the pool from growing.
///
/// Blocks that are looked up or allocated during the capture count as used by it, with their segments, even if their
/// owners drop them before the capture ends. A capture that is dropped without [`finish`](Self::finish) leaves no
/// pin.
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

    /// Declares that captured work uses `block`. This is needed for a block that was neither looked up nor allocated
    /// during the capture.
    pub fn uses(&mut self, block: &SymmetricBlock) {
        self.memory.note_use(block.placement(), block.bytes());
        self.used.push(block.clone());
    }

    /// Ends the capture. Keep the pin as long as the graph and its executables live.
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

/// The memory that a captured graph was declared to use. While it lives, its blocks are not reused, no rank retires
/// its segments, and the pool's memory stays.
///
/// Dropping it frees blocks without another owner: drop it at the same point of the program on every rank.
#[derive(Debug)]
#[must_use = "a graph's blocks are free for others once its pin is dropped"]
pub struct GraphPin {
    pin: u64,
    segments: Vec<u32>,
    blocks: Vec<SymmetricBlock>,
    memory: Arc<Memory>,
}

impl GraphPin {
    /// The blocks that were declared with [`PoolCapture::uses`].
    pub fn blocks(&self) -> &[SymmetricBlock] {
        &self.blocks
    }

    /// Ordinals of the segments that the graph uses.
    pub fn segments(&self) -> impl Iterator<Item = u32> + '_ {
        self.segments.iter().copied()
    }
}

impl Drop for GraphPin {
    fn drop(&mut self) {
        self.memory.unpin(self.pin);
    }
}

//! Graph captures that the program declares to the pool. During a declared capture, the pool does not grow. A pin keeps
//! the graph's blocks allocated, during the capture and afterwards.

use std::sync::Arc;

use super::{
    block::SymmetricBlock,
    memory::{GraphHold, PoolMemory},
};

/// A graph capture in progress that the program has declared by
/// [`SymmetricPool::begin_capture`](crate::SymmetricPool::begin_capture). While this value exists, the pool is frozen:
/// an allocation that needs a new segment fails, and a [commit](crate::SymmetricPool::commit) or
/// [retirement](crate::SymmetricPool::retire) is refused on all ranks that take part.
///
/// Most captures need no declaration. If [`Stream::begin_capture`](cuda_driver::Stream::begin_capture) began the
/// capture, the graph and its executables pin the blocks (keep them allocated) that captured work of this library uses:
/// collectives and messages of a group, [`kernels`](crate::kernels), and transfers of an [`exchange`](crate::exchange).
/// Declare a capture in these cases:
/// - Only the program's own kernels use some of the blocks, so this library does not see the use.
/// - Another library has begun the capture. If it captures work of this library on the pool's memory without a
///   declaration, the memory of the pool is never freed.
/// - The pool must not grow during the capture.
///
/// A declaration does not pin the blocks of a caching allocator that gets its segments from this pool
/// ([`PoolSource`](crate::PoolSource)). If this library does not see the use of such a block, call
/// [`Allocator::used_by_graph`](caching_alloc::core::Allocator::used_by_graph).
///
/// A declared capture pins all blocks that are [looked up](crate::SymmetricPool::lookup) or allocated while it is in
/// progress, and their segments. They stay pinned even if the owners of the blocks drop them before the capture ends.
/// Dropping this value without [`finish`](Self::finish) ends the declaration and removes the pin.
#[derive(Debug)]
pub struct PoolCapture {
    hold: Arc<GraphHold>,
    is_finished: bool,
    used: Vec<SymmetricBlock>,
}

impl PoolCapture {
    pub(crate) fn begin(memory: Arc<PoolMemory>) -> Self {
        let pin = memory.begin_capture();
        Self { hold: Arc::new(GraphHold { memory, pin }), is_finished: false, used: Vec::new() }
    }

    /// Declares that captured work uses `block`. Needed for a block that was neither looked up nor allocated during the
    /// capture.
    pub fn uses(&mut self, block: &SymmetricBlock) {
        self.hold.memory.note_use(block.placement(), block.bytes());
        self.used.push(block.clone());
    }

    /// Ends the declared capture, and returns its pin. Keep the pin as long as the graph or one of its executables
    /// exists.
    pub fn finish(mut self) -> GraphPin {
        self.is_finished = true;
        let segments = self.hold.memory.end_capture(self.hold.pin);
        GraphPin { _hold: self.hold.clone(), segments, blocks: std::mem::take(&mut self.used) }
    }
}

impl Drop for PoolCapture {
    fn drop(&mut self) {
        if !self.is_finished {
            self.hold.memory.end_capture(self.hold.pin);
        }
    }
}

/// The pin of a declared capture ([`PoolCapture`]). While the pin exists, the memory of its blocks goes to no other
/// block, no rank [retires](crate::SymmetricPool::retire) its segments, and the pool's memory is not freed.
///
/// Dropping the pin frees those of its blocks that have no other owner and no other pin. All ranks must free blocks in
/// the same order relative to their other requests of the pool (allocations, reservations and frees). So every rank
/// must drop the pin at the same point of the program.
#[derive(Debug)]
#[must_use = "a graph's blocks are free for others once its pin is dropped"]
pub struct GraphPin {
    /// Keeps all blocks of the pin. Declared before `blocks`, because fields are dropped in the order of their
    /// declaration. So every rank first frees the blocks that only `_hold` keeps, and then those that are also in
    /// `blocks`.
    _hold: Arc<GraphHold>,
    segments: Vec<u32>,
    blocks: Vec<SymmetricBlock>,
}

impl GraphPin {
    /// The blocks that were declared with [`PoolCapture::uses`]. The list lacks the other blocks of the pin.
    pub fn blocks(&self) -> &[SymmetricBlock] {
        &self.blocks
    }

    /// Ordinals (numbers in the pool) of the pinned segments.
    pub fn segments(&self) -> impl Iterator<Item = u32> + '_ {
        self.segments.iter().copied()
    }
}

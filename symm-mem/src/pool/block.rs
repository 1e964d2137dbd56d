//! Blocks of a symmetric pool.

use std::sync::Arc;

use caching_alloc::core::symmetric::{Placed, Placement};
use cuda_driver::{DevicePtr, Stream, graph::is_capture_open};

use super::memory::PoolMemory;

/// A block of a symmetric pool, with the same [placement](Self::placement) on every rank of the pool's
/// [`Domain`](crate::Domain). Clones share the block. Dropping the last clone frees the block. If a captured graph uses
/// the block, the block is freed only once the graph and its executables are dropped too. A
/// [`GraphPin`](crate::GraphPin) also keeps its blocks allocated.
///
/// A free is one of the requests that all ranks must make in the same order. So every rank must drop the last owner of
/// the block (a clone, a graph or a pin) at the same point of the program. The next allocation may reuse the memory, so
/// every rank must order its uses of this block before its uses of the block that gets the memory next.
#[derive(Debug)]
pub struct SymmetricBlock {
    memory: Arc<PoolMemory>,
    placed: Placed,
    requested: u64,
    /// The number of the block's request in the pool's sequence of requests.
    request: u64,
    /// If the block is a slice's: the stream whose work uses the block until it is freed. Each owner has a clone, so
    /// that the free of a block searches no map for it.
    stream: Option<Stream>,
}

impl SymmetricBlock {
    /// Makes the block that the [arena](PoolMemory::arena) (the pool's allocator) has placed at `placed` for request
    /// number `request`, of `requested` bytes. Pins the block for the [declared captures](crate::PoolCapture) in
    /// progress and for the captures that this thread has begun, because these captures may use the block. The caller
    /// must not hold the lock of the arena, because the pinning takes it.
    #[inline(always)]
    pub(crate) fn new(memory: Arc<PoolMemory>, placed: Placed, requested: u64, request: u64) -> Self {
        if memory.is_capturing() {
            memory.note_use(placed.placement, requested);
        }
        if is_capture_open() {
            memory.pin_for_captures(placed.address, requested);
        }
        Self { memory, placed, requested, request, stream: None }
    }

    /// The address of the block's first byte on this rank.
    pub fn ptr(&self) -> DevicePtr {
        DevicePtr(self.placed.address)
    }

    /// The requested length in bytes.
    pub fn bytes(&self) -> u64 {
        self.requested
    }

    pub(crate) fn memory(&self) -> &PoolMemory {
        &self.memory
    }

    /// The number of the block's request in the pool's sequence of requests, from 0.
    pub(crate) fn request(&self) -> u64 {
        self.request
    }

    /// Notes that the block, which has no other owner, is a slice's, and that work on `stream` uses it until it is
    /// freed.
    pub(super) fn bind(&mut self, stream: &Stream) {
        self.stream = Some(stream.clone());
    }

    /// The block's segment, and the block's offset in the segment. The same on every rank.
    pub fn placement(&self) -> Placement {
        self.placed.placement
    }
}

impl Clone for SymmetricBlock {
    fn clone(&self) -> Self {
        self.memory.share_block(self.placed.placement);
        Self { memory: self.memory.clone(), stream: self.stream.clone(), ..*self }
    }
}

impl Drop for SymmetricBlock {
    fn drop(&mut self) {
        self.memory.drop_block(self.placed, self.stream.take());
    }
}

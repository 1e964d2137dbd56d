//! Device slices over blocks of a pool ([`SymmetricPool::alloc`](crate::SymmetricPool::alloc)), for use in safe
//! collectives.

use std::{any::Any, sync::Arc};

use caching_alloc::core::symmetric::SymmetricError;
use cuda_driver::{
    DeviceSlice, Element, Stream,
    graph::{BoundMemory, StreamBound},
};

use super::{block::SymmetricBlock, memory::PoolMemory};

/// The reason why a slice of a pool could not be allocated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SliceError {
    /// The pool could not allocate the block.
    #[error(transparent)]
    Pool(#[from] SymmetricError),
    /// The stream is of another context than the pool, or the pool was made without a context
    /// ([`SymmetricPool::with_source`](crate::SymmetricPool::with_source)).
    #[error("the stream is of another context than the pool; use a stream of the pool's context")]
    ForeignStream,
    /// The stream is the per-thread default stream, which is a different stream on each thread.
    #[error("the per-thread default stream is another stream on each thread; use a stream of your own")]
    PerThreadStream,
    /// A slice of another stream was dropped, and the new block could get its memory. So the stream of the new slice
    /// would have to wait for that stream, but one of the two is capturing.
    #[error(
        "a slice of this pool was dropped on another stream, and that stream or this one captures: allocate before the \
         capture, or use one stream for all slices of the pool"
    )]
    WhileCapturing,
    /// A driver call to order the streams failed, for example because another thread began a capture on one of them
    /// during the call.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
}

/// The owner of a slice's memory: the block, and the stream to which the slice is bound.
struct SliceMemory {
    block: SymmetricBlock,
    stream: Stream,
}

// SAFETY:
// - `stream` always returns the slice's stream. `check_stream` has rejected the per-thread default stream and streams
//   of other contexts.
// - Once the block is freed, the memory may go to a new block. If a new slice gets the block, that slice has the same
//   stream, or its stream first waits for the work that was enqueued on `stream` before the free. Users of blocks
//   without a slice promise to order their uses after those of the former owner.
// - The pool frees the memory only once no block, window or graph uses it, and after the work on the streams of dropped
//   slices has ended.
// - `keep_for_ever` leaks a clone of the block, so the block is never freed.
unsafe impl StreamBound for SliceMemory {
    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn keep_for_ever(&self) {
        std::mem::forget(self.block.clone());
    }
}

/// Checks that a new slice in `memory` can be bound to `stream`.
pub(crate) fn check_stream(memory: &PoolMemory, stream: &Stream) -> Result<(), SliceError> {
    if memory.context() != Some(stream.context()) {
        return Err(SliceError::ForeignStream);
    }
    if stream.is_per_thread() {
        return Err(SliceError::PerThreadStream);
    }
    if !memory.dropped_on().can_order_before(stream)? {
        return Err(SliceError::WhileCapturing);
    }
    Ok(())
}

/// Makes a slice of `len` elements over a new block. Makes `stream` wait for the work on the streams of all slices that
/// were dropped so far.
///
/// # Safety
/// The block has the bytes of `len` elements, and no other owner. [`check_stream`] has checked `stream`.
pub(crate) unsafe fn into_slice<T: Element>(
    mut block: SymmetricBlock,
    len: usize,
    stream: &Stream,
) -> Result<DeviceSlice<T>, SliceError> {
    // Order the streams only after the block is placed. In the other order, another thread could drop a slice in
    // between. The block could get the memory of that slice, but `stream` would not wait for that slice's stream.
    block.memory().dropped_on().order_before(stream)?;
    block.bind(stream);
    let start = block.ptr();
    let memory = Arc::new(SliceMemory { block, stream: stream.clone() });
    // SAFETY: the caller promises that the block has `len` elements and no other owner. Blocks begin at multiples of
    // 512 bytes, so the slice is aligned.
    Ok(unsafe { DeviceSlice::from_owner(memory, start, len) })
}

/// Returns the block that contains the elements of a slice or view, or `None` if they are not memory of a pool.
/// `memory` is the [memory](cuda_driver::DeviceView::memory) of the view.
pub(crate) fn block_of(memory: &BoundMemory) -> Option<&SymmetricBlock> {
    let memory: &dyn Any = &**memory;
    memory.downcast_ref::<SliceMemory>().map(|memory| &memory.block)
}

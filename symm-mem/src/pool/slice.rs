//! Typed blocks: device slices over blocks of a pool, for safe collectives.

use std::sync::Arc;

use caching_alloc::core::symmetric::SymmetricError;
use cuda_driver::{DeviceSlice, Element, Stream, graph::StreamBound};

use super::{block::SymmetricBlock, memory::Memory};

/// The reason why a typed block could not be allocated.
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
    /// The per-thread default stream, which is another stream on each thread.
    #[error("the per-thread default stream is another stream on each thread; use a stream of your own")]
    PerThreadStream,
    /// The block may get the memory of a dropped slice of another stream, and that stream or the stream of this call
    /// captures.
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

/// The block of a slice.
struct SliceMemory {
    block: SymmetricBlock,
    stream: Stream,
}

// SAFETY: `stream` returns the slice's stream, which `check_stream` has checked. The memory of a dropped block goes to a
// slice of the same stream, or of one that waits for this stream first. Users of untyped blocks promise to order their
// uses after those of the former owner. The pool frees the memory only after no block, window or graph uses it and the
// work on the streams of dropped slices has ended.
// A leaked clone of a block is never freed.
unsafe impl StreamBound for SliceMemory {
    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn keep_for_ever(&self) {
        std::mem::forget(self.block.clone());
    }
}

impl Drop for SliceMemory {
    fn drop(&mut self) {
        self.block.memory().dropped_on().add(&self.stream);
    }
}

/// Checks that a slice of a pool with this memory can be bound to `stream`.
pub(crate) fn check_stream(memory: &Memory, stream: &Stream) -> Result<(), SliceError> {
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

/// Makes a slice of `len` elements of a new block, and makes `stream` wait for the work on the streams of all slices
/// dropped so far.
///
/// # Safety
/// The block has the bytes of `len` elements, and has no other owner. [`check_stream`] has checked `stream`.
pub(crate) unsafe fn into_slice<T: Element>(
    block: SymmetricBlock,
    len: usize,
    stream: &Stream,
) -> Result<DeviceSlice<T>, SliceError> {
    // Not before the block is placed: until then, another thread may drop the slice that had this memory.
    block.memory().dropped_on().order_before(stream)?;
    let start = block.ptr();
    let memory = Arc::new(SliceMemory { block, stream: stream.clone() });
    // SAFETY: the caller promises the length and the owner. A block begins at a multiple of 512.
    Ok(unsafe { DeviceSlice::from_owner(memory, start, len) })
}

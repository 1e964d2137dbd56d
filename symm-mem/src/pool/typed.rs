//! Typed blocks: device slices over blocks of a pool, for safe collectives.

use std::sync::Arc;

use caching_alloc::core::symmetric::SymmetricError;
use cuda_driver::{DeviceSlice, Element, Stream, graph::StreamBound};

use super::{SymmetricBlock, SymmetricPool};

/// The reason why a typed block could not be allocated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SliceError {
    /// The pool could not allocate the block.
    #[error(transparent)]
    Pool(#[from] SymmetricError),
    /// The stream is of another context than the pool, or the pool was made without a context
    /// ([`SymmetricPool::with_source`]).
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

// SAFETY: `stream` returns the slice's stream, which `alloc` has checked. The memory of a dropped block goes to a slice
// of the same stream, or of one that waits for this stream first. Users of untyped blocks promise to order their uses
// after those of the former owner. The pool frees the memory only after no block, window or graph uses it and the work
// on the streams of dropped slices has ended.
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

impl SymmetricPool {
    /// Allocates `len` elements with unspecified values as a slice of `stream`, for the typed operations of
    /// [`ProcessGroup`](process_group::ProcessGroup). Counts as an [`allocate`](Self::allocate) of the slice's size in
    /// bytes: every rank must allocate and drop its slices in the same order, and a commit makes their segments
    /// windows.
    ///
    /// Dropping the slice frees its block without a wait for the device. A later call may give the memory to a slice of
    /// another stream. So each call makes its `stream` wait for the work on the streams of all slices dropped so far.
    /// The slice may be used on any stream of the context. An untyped block may also get the memory. Its user must then
    /// order its uses after the work on the dropped slice's stream.
    ///
    /// ```no_run
    /// # use cuda_driver::Stream;
    /// # use process_group::{ProcessGroup, comm::ReduceOp};
    /// # use symm_mem::{CommitOptions, SymmetricPool};
    /// # fn rank(pool: &SymmetricPool, world: &ProcessGroup, stream: &Stream) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut gradients = pool.alloc::<f32>(1 << 20, stream)?;
    /// pool.commit(world, CommitOptions::default())?;
    /// stream.memset_zeros(&mut gradients)?;
    /// world.all_reduce(&mut gradients, ReduceOp::Sum)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`SliceError`]. The pool's log of requests must be equal on all ranks, and records some of the failed calls:
    /// - [`SliceError::Pool`]: recorded as an allocation, except for an invalid size ([`SymmetricError::Size`]), which
    ///   is not recorded.
    /// - [`SliceError::Driver`]: recorded as an allocation and a free if the block was already placed. Otherwise not
    ///   recorded.
    /// - Other errors: not recorded.
    #[track_caller]
    pub fn alloc<T: Element>(&self, len: usize, stream: &Stream) -> Result<DeviceSlice<T>, SliceError> {
        if self.context.as_ref() != Some(stream.context()) {
            return Err(SliceError::ForeignStream);
        }
        if stream.is_per_thread() {
            return Err(SliceError::PerThreadStream);
        }
        let dropped_on = self.memory.dropped_on();
        if !dropped_on.can_order_before(stream)? {
            return Err(SliceError::WhileCapturing);
        }
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64).max(1);
        let block = self.allocate(bytes)?;
        // Not earlier: until the block is placed, another thread may drop the slice that had this memory.
        dropped_on.order_before(stream)?;
        let start = block.ptr();
        let memory = Arc::new(SliceMemory { block, stream: stream.clone() });
        // SAFETY: the block has that many bytes, begins at a multiple of 512, and is this slice's alone.
        Ok(unsafe { DeviceSlice::from_owner(memory, start, len) })
    }
}

//! Use of blocks as memory of the `cudarc` crate, on streams of that crate.
//!
//! | type | purpose |
//! | --- | --- |
//! | [`Adopted`] | a cudarc context, with the context for the allocator's source and the allocator's [`DriverEvents`] |
//! | [`BlockSlice`] | a block as typed memory of cudarc: [`DevicePtr`], [`DevicePtrMut`], a kernel's argument, [views](CudaView) |
//!
//! ```no_run
//! use std::sync::Arc;
//! use caching_alloc::core::{Allocator, Settings};
//! use caching_alloc::cudarc::Adopted;
//! use caching_alloc::driver::DriverSource;
//! use cudarc::driver::CudaContext;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cuda = CudaContext::new(0)?;
//! let adopted = Adopted::new(&cuda)?;
//! let source = Arc::new(DriverSource::new(adopted.context()));
//! let allocator = Allocator::new(source, adopted.events().clone(), Settings::default());
//!
//! let stream = cuda.new_stream()?;
//! // SAFETY: the pool's memory is that of `source`, which only the allocator uses.
//! let mut memory = unsafe { adopted.alloc_zeros::<f32>(allocator.default_pool(), &stream, 1000) }?;
//! stream.memcpy_htod(&[1.0; 500], &mut memory.as_view_mut().slice_mut(..500))?;
//! assert_eq!(stream.clone_dtoh(&memory)?[499..501], [1.0, 0.0]);
//! drop(memory); // freed on `stream`: the next request on that stream may have it at once
//! # Ok(())
//! # }
//! ```
//!
//! # What is shared
//! - **The driver.** cudarc and `cuda-driver` each have their own loader and types. cudarc has loaded the driver
//!   already, since it made the context, and [`Driver::load`] uses a copy that the process has loaded.
//!   [`Adopted::new`] [checks](CudarcError::NotShared) that it is cudarc's copy: both must have the same primary
//!   context.
//! - **The context** is the device's primary one, which both crates retain. Other contexts are
//!   [refused](CudarcError::NotPrimary).
//! - **Streams** are passed from cudarc to the allocator, which keeps them until [`Adopted::forget`]. The per-thread
//!   default stream is [refused](CudarcError::PerThreadStream), because it is a different stream on every thread.
//!
//! # Ordering
//! A slice records events and waits for them like cudarc's own slices, while the context is in multi-stream mode and
//! event tracking is on. A read on one stream then waits for the writes of other streams, and a write for their reads
//! and writes. The slice's own stream waits for the last uses before the memory is freed.
//!
//! In addition, if a [registered](Adopted::register) stream accesses the slice through [`DevicePtr`] or
//! [`DevicePtrMut`], the allocator reuses the memory only after the work of that stream. This does not need event
//! tracking.
//!
//! cudarc keeps one event for the reads of a slice. If several streams read concurrently, a later write and the free of
//! the memory wait only for the read that was recorded last. The program must order such a write after the other reads
//! itself. The free also waits for the reads that the allocator tracks, as described above. If a stream reads in
//! another way, register it, and pass its number to [`Block::record_stream`]. The other ways are views, arguments of
//! kernels, and the slice dereferenced to a [`CudaSlice`](::cudarc::driver::CudaSlice).
//!
//! The memory always belongs to the allocator. cudarc never frees it.

mod error;
mod slice;

use std::sync::Arc;

use ::cudarc::driver::{CudaContext, CudaStream, DeviceRepr, ValidAsZeroBits};
#[cfg(doc)]
use ::cudarc::driver::{CudaView, DevicePtr, DevicePtrMut};
use cuda_driver::sys::CUstream;
use cuda_driver::{Context, Driver, Stream};

pub use self::error::CudarcError;
pub use self::slice::BlockSlice;
use crate::core::{Block, Pool, StreamId};
use crate::driver::DriverEvents;

/// The driver's handle of the per-thread default stream, `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

/// A cudarc context whose streams an allocator can use.
#[derive(Debug)]
pub struct Adopted {
    cuda: Arc<CudaContext>,
    context: Context,
    events: Arc<DriverEvents>,
}

impl Adopted {
    /// Retains the primary context of the device of `cuda` through the driver that this process has loaded. Checks
    /// that it is the context of `cuda`.
    ///
    /// # Errors
    /// [`CudarcError::NotPrimary`]; [`CudarcError::NotShared`]; [`CudarcError::Driver`] if the driver cannot be loaded,
    /// has no device with the ordinal of `cuda`, or cannot retain the context.
    pub fn new(cuda: &Arc<CudaContext>) -> Result<Self, CudarcError> {
        let ordinal = cuda.ordinal();
        if !cuda.is_primary() {
            return Err(CudarcError::NotPrimary { ordinal });
        }
        let not_shared = |found| CudarcError::NotShared { ordinal, wanted: cuda.cu_ctx().addr(), found };
        let device = u32::try_from(ordinal).map_err(|_| not_shared(None))?;
        let context = Driver::load()?.device(device)?.retain_primary()?;
        if context.raw().addr() != cuda.cu_ctx().addr() {
            return Err(not_shared(Some(context.raw().addr())));
        }
        let events = Arc::new(DriverEvents::with_uncounted_captures(&context));
        Ok(Self { cuda: cuda.clone(), context, events })
    }

    /// Returns the context, for the allocator's source.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the registered streams and their events, for the allocator. Several allocators may share them.
    #[must_use]
    pub fn events(&self) -> &Arc<DriverEvents> {
        &self.events
    }

    /// Registers a stream, and keeps it alive until [`forget`](Self::forget). Returns its number for the allocator,
    /// which is the same if the stream is registered already.
    ///
    /// # Errors
    /// [`CudarcError::OtherContext`], [`CudarcError::PerThreadStream`].
    pub fn register(&self, stream: &Arc<CudaStream>) -> Result<StreamId, CudarcError> {
        if **stream.context() != *self.cuda {
            let facts = |context: &CudaContext| (context.ordinal(), context.cu_ctx().addr());
            let (wanted, wanted_context) = facts(&self.cuda);
            let (found, found_context) = facts(stream.context());
            return Err(CudarcError::OtherContext { wanted, wanted_context, found, found_context });
        }
        let handle: CUstream = stream.cu_stream().cast();
        if handle.addr() == PER_THREAD {
            return Err(CudarcError::PerThreadStream);
        }
        // SAFETY: the stream is of this context, as checked above. cudarc destroys it only when its last `Arc` is
        // dropped.
        let stream = unsafe { Stream::kept_by(&self.context, handle, stream.clone()) };
        Ok(self.events.register(&stream))
    }

    /// Removes a registered stream, like [`DriverEvents::forget`]. Does nothing if the stream is not registered.
    pub fn forget(&self, stream: &CudaStream) {
        if let Some(number) = self.events.number_of(stream.cu_stream().cast()) {
            self.events.forget(number);
        }
    }

    /// Registers `stream`, and allocates memory for `len` elements from `pool`, for use on `stream` from now on.
    ///
    /// # Errors
    /// [`CudarcError::Alloc`] if the pool fails, also for zero or too many bytes. [`CudarcError::ForeignBlock`] if the
    /// pool's allocator was not made with these [`events`](Self::events). Otherwise as [`register`](Self::register) and
    /// [`slice`](Self::slice).
    ///
    /// # Safety
    /// - The memory is not initialised. It must be written before it is read, unless every bit pattern is a valid `T`.
    /// - The pool's source has memory behind its addresses, which the device can access, and only the pool's allocator
    ///   releases or unmaps it. The sources of [`driver`](crate::driver) are such sources, if nothing else calls them.
    #[track_caller]
    pub unsafe fn alloc<T: DeviceRepr>(
        &self,
        pool: &Pool,
        stream: &Arc<CudaStream>,
        len: usize,
    ) -> Result<BlockSlice<T>, CudarcError> {
        let number = self.register(stream)?;
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        let block = pool.allocate(bytes, number)?;
        // SAFETY: the caller keeps the contract.
        unsafe { self.slice(block, stream, len) }
    }

    /// Like [`alloc`](Self::alloc), and enqueues a fill with zeros on the stream.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), and [`CudarcError::Cuda`].
    ///
    /// # Safety
    /// The pool's source is as [`alloc`](Self::alloc) requires.
    #[track_caller]
    pub unsafe fn alloc_zeros<T: DeviceRepr + ValidAsZeroBits>(
        &self,
        pool: &Pool,
        stream: &Arc<CudaStream>,
        len: usize,
    ) -> Result<BlockSlice<T>, CudarcError> {
        // SAFETY: the memory is set to zeros on its stream before anybody else has the slice. cudarc orders uses on
        // other streams after that. The caller vouches for the source.
        let mut slice = unsafe { self.alloc(pool, stream, len) }?;
        stream.memset_zeros(&mut slice)?;
        Ok(slice)
    }

    /// Makes a slice of `len` elements that begins at the block's first byte. `stream` must be the stream on which the
    /// block was allocated.
    ///
    /// # Errors
    /// An error frees the block. [`CudarcError::ForeignBlock`] if the block's allocator was not made with these
    /// [`events`](Self::events), `stream` is not the block's, or `stream` was [forgotten](Self::forget);
    /// [`CudarcError::TooLong`]; [`CudarcError::Alignment`]; [`CudarcError::Cuda`] or [`CudarcError::Panicked`] if
    /// cudarc cannot make the slice.
    ///
    /// # Safety
    /// - The block holds `len` valid elements, or they are written before they are read.
    /// - The source of the block's pool is as [`alloc`](Self::alloc) requires.
    pub unsafe fn slice<T: DeviceRepr>(
        &self,
        block: Block,
        stream: &Arc<CudaStream>,
        len: usize,
    ) -> Result<BlockSlice<T>, CudarcError> {
        let ours = block.events().is_some_and(|events| std::ptr::addr_eq(&*events, &*self.events));
        let same = self.events.number_of(stream.cu_stream().cast()) == Some(block.stream());
        if !ours || !same || **stream.context() != *self.cuda {
            return Err(CudarcError::ForeignBlock { address: block.address(), stream: block.stream() });
        }
        BlockSlice::new(block, stream, self.events.clone(), len)
    }
}

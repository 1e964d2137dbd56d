//! Blocks as memory of `cudarc`, and streams of cudarc in the allocator.
//!
//! | type | purpose |
//! | --- | --- |
//! | [`Adopted`] | a cudarc context for this workspace: the source's context, the allocator's streams |
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
//! let mut memory = adopted.alloc_zeros::<f32>(allocator.default_pool(), &stream, 1000)?;
//! stream.memcpy_htod(&[1.0; 500], &mut memory.as_view_mut().slice_mut(..500))?;
//! assert_eq!(stream.clone_dtoh(&memory)?[499..501], [1.0, 0.0]);
//! drop(memory); // freed on `stream`: its next request there may have it at once
//! # Ok(())
//! # }
//! ```
//!
//! # What is shared
//! - **The driver.** cudarc and `cuda-driver` each have a loader and types of their own. cudarc loads first,
//!   since it made the context; [`Driver::load`] then uses the copy that the process has loaded. The context
//!   is used to [check](CudarcError::NotShared) that it is the same copy.
//! - **The context**: the device's primary one, retained by both. Other kinds of contexts are
//!   [refused](CudarcError::NotPrimary).
//! - **Streams** are passed from cudarc to the allocator, which keeps them until [`Adopted::forget`]. The
//!   per-thread default stream is a different one on every thread and is
//!   [refused](CudarcError::PerThreadStream).
//!
//! # Ordering
//! A slice waits and records like cudarc's own slices. While the context manages several streams and event
//! tracking is on, a use on one stream waits for the writes of others (and a write for their reads), and the
//! slice's own stream waits for the last uses before the memory is free. In addition, the allocator keeps the
//! memory back for [registered](Adopted::register) streams with accesses through [`DevicePtr`] and
//! [`DevicePtrMut`], with or without event tracking.
//!
//! cudarc has one event for a slice's reads: when several streams read concurrently it knows only the last
//! one. That is enough for registered streams. Pass other streams, and streams that read through views or as
//! kernels' arguments, to [`Block::record_stream`].
//!
//! The memory always belongs to the allocator: it is never passed to `cuMemFree`.

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

/// The handle that means a different stream on every thread.
const PER_THREAD: usize = 2;

/// A cudarc context for this workspace.
#[derive(Debug)]
pub struct Adopted {
    cuda: Arc<CudaContext>,
    context: Context,
    events: Arc<DriverEvents>,
}

impl Adopted {
    /// Looks up the same context in the driver that the process has loaded.
    ///
    /// # Errors
    /// [`CudarcError::NotPrimary`], [`CudarcError::NotShared`]; [`CudarcError::Driver`] if the driver is out of reach.
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

    /// The context for the allocator's source.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The streams for the allocator. Several allocators may share them.
    #[must_use]
    pub fn events(&self) -> &Arc<DriverEvents> {
        &self.events
    }

    /// Registers a stream and keeps it, until [`forget`](Self::forget). Returns the allocator's number for
    /// it. Registering it again is no error.
    ///
    /// # Errors
    /// [`CudarcError::OtherContext`], [`CudarcError::PerThreadStream`].
    pub fn register(&self, stream: &Arc<CudaStream>) -> Result<StreamId, CudarcError> {
        if **stream.context() != *self.cuda {
            let (wanted, found) = (self.cuda.ordinal(), stream.context().ordinal());
            return Err(CudarcError::OtherContext { wanted, found });
        }
        let handle: CUstream = stream.cu_stream().cast();
        if handle.addr() == PER_THREAD {
            return Err(CudarcError::PerThreadStream);
        }
        // SAFETY: a stream of this context, as checked, which cudarc destroys when the last `Arc` of it goes.
        let stream = unsafe { Stream::kept_by(&self.context, handle, stream.clone()) };
        Ok(self.events.register(&stream))
    }

    /// Removes a registered stream, like [`DriverEvents::forget`].
    pub fn forget(&self, stream: &CudaStream) {
        if let Some(number) = self.events.number_of(stream.cu_stream().cast()) {
            self.events.forget(number);
        }
    }

    /// Allocates memory for `len` elements from `pool`, for use on `stream` from now on; registers the
    /// stream.
    ///
    /// # Errors
    /// [`CudarcError::Alloc`] if the pool fails, also for zero or too many bytes;
    /// [`CudarcError::ForeignBlock`] if the pool's allocator has other [`events`](Self::events); else as
    /// [`register`](Self::register) and [`slice`](Self::slice).
    ///
    /// # Safety
    /// The memory is uninitialised: it must be written before it is read, unless every bit pattern is a valid
    /// `T`.
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
        // SAFETY: the caller's word.
        unsafe { self.slice(block, stream, len) }
    }

    /// Like [`alloc`](Self::alloc), set to zeros on the stream.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), and [`CudarcError::Cuda`].
    #[track_caller]
    pub fn alloc_zeros<T: DeviceRepr + ValidAsZeroBits>(
        &self,
        pool: &Pool,
        stream: &Arc<CudaStream>,
        len: usize,
    ) -> Result<BlockSlice<T>, CudarcError> {
        // SAFETY: set on its stream before anybody else has it; cudarc orders other streams after that.
        let mut slice = unsafe { self.alloc(pool, stream, len) }?;
        stream.memset_zeros(&mut slice)?;
        Ok(slice)
    }

    /// Makes a slice of `len` elements from the block's first byte on. `stream` is the block's own.
    ///
    /// # Errors
    /// The block is freed then. [`CudarcError::ForeignBlock`] if it is not of an allocator with these
    /// [`events`](Self::events), or not of this stream; [`CudarcError::TooLong`]; [`CudarcError::Cuda`] if cudarc
    /// cannot make the slice's events.
    ///
    /// # Safety
    /// The block holds `len` elements, or they are written before they are read.
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

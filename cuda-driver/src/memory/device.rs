//! Device memory from `cuMemAlloc`.

use crate::call::call;
use crate::error::within;
use crate::graph::RelaxedCapture;
use crate::{Context, DevicePtr, Element, Result, teardown};

/// Device memory from `cuMemAlloc`. Dropping the value frees the memory. Allocating and freeing may wait for all work
/// of the device.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Context,
    ptr: DevicePtr,
    bytes: usize,
    /// False after an attempt to free the memory, even if it failed.
    owned: bool,
}

impl DeviceMemory {
    /// Allocates `bytes` bytes, aligned to at least 256 bytes.
    ///
    /// The driver refuses this call during a capture whose [mode](crate::graph::CaptureMode) forbids it on this
    /// thread, and invalidates that capture. It accepts the call while the thread holds a [`RelaxedCapture`].
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemAlloc_v2`: `CUDA_ERROR_OUT_OF_MEMORY`
    /// ([`Error::is_out_of_memory`](crate::Error::is_out_of_memory)); `CUDA_ERROR_INVALID_VALUE` for zero bytes.
    #[doc(alias = "cuMemAlloc")]
    pub fn new(context: &Context, bytes: usize) -> Result<Self> {
        let _current = context.enter()?;
        let mut ptr = 0;
        // SAFETY: writes one address, to a local that outlives the call.
        unsafe { call!(context.api(), cuMemAlloc_v2(&mut ptr, bytes)) }?;
        Ok(Self { context: context.clone(), ptr: DevicePtr(ptr), bytes, owned: true })
    }

    /// The address of the first byte.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The context that the memory belongs to.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Copies `from` into the memory, starting `offset` bytes after the first byte of the memory. Blocks until the copy
    /// is done. The copy does not wait for work on [non-blocking](crate::StreamFlags::NON_BLOCKING) streams:
    /// synchronise with them first. Work of the device that reads these bytes during the copy may see old or new
    /// values.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](crate::Error::OutOfBounds) if `from` does not fit; the errors of
    /// [`Context::copy_from_host`]. After [`Error::Driver`](crate::Error::Driver), the copy may still run later.
    pub fn copy_from_host<T: Element>(&self, offset: usize, from: &[T]) -> Result<()> {
        within("device memory", offset, size_of_val(from), self.bytes)?;
        // SAFETY: the range is inside memory that `self` owns. Concurrent access by other work can only see or leave a
        // mix of old and new bytes, and any bits are a value of an element type.
        unsafe { self.context.copy_from_host(self.ptr + offset, from) }
    }

    /// Fills `to` with a copy of the memory, starting `offset` bytes after the first byte of the memory. Blocks until
    /// the copy is done. The copy does not wait for work on [non-blocking](crate::StreamFlags::NON_BLOCKING) streams:
    /// synchronise with them first.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](crate::Error::OutOfBounds) if the memory is too short; the errors of
    /// [`Context::copy_to_host`].
    pub fn copy_to_host<T: Element>(&self, offset: usize, to: &mut [T]) -> Result<()> {
        within("device memory", offset, size_of_val(to), self.bytes)?;
        // SAFETY: the range is inside memory that `self` owns. Work that writes it during the copy can only mix old and
        // new bytes in `to`, and any bits are a value of `T`.
        unsafe { self.context.copy_to_host(to, self.ptr + offset) }
    }

    /// Frees the memory, as dropping it does, and returns the outcome. If the call fails, the memory is leaked.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemFree_v2`, also for errors of earlier asynchronous work.
    #[doc(alias = "cuMemFree")]
    pub fn free(mut self) -> Result<()> {
        self.owned = false;
        free(&self.context, self.ptr)
    }
}

fn free(context: &Context, ptr: DevicePtr) -> Result<()> {
    // Freeing does not take part in an open capture and must not invalidate it.
    let _relaxed = RelaxedCapture::enter(context.driver());
    let _current = context.enter()?;
    // SAFETY: the owner of the memory calls this once and does not use the memory afterwards.
    unsafe { call!(context.api(), cuMemFree_v2(ptr.0)) }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.owned {
            teardown::report(free(&self.context, self.ptr));
        }
    }
}

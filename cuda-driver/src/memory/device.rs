//! Device memory from `cuMemAlloc`.

use crate::call::call;
use crate::error::within;
use crate::graph::RelaxedCapture;
use crate::{Context, DevicePtr, Element, Result, teardown};

/// Device memory from `cuMemAlloc`. Both allocating and freeing may wait for the whole device.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Context,
    ptr: DevicePtr,
    bytes: usize,
    /// False once it is freed.
    owned: bool,
}

impl DeviceMemory {
    /// Allocates `bytes` bytes, aligned to at least 256.
    ///
    /// Refused while a stream captures, and ruins that capture, unless the thread holds a [`RelaxedCapture`].
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemAlloc_v2`: `CUDA_ERROR_OUT_OF_MEMORY` ([`Error::is_out_of_memory`](crate::Error::is_out_of_memory)),
    /// `CUDA_ERROR_INVALID_VALUE` for no bytes.
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

    /// The context the memory belongs to.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Copies `from` into the memory, starting at the byte at `offset`. If the device uses these bytes at the
    /// same time, it may see old or new values.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](crate::Error::OutOfBounds) if it does not fit; else as [`Context::copy_from_host`].
    pub fn copy_from_host<T: Element>(&self, offset: usize, from: &[T]) -> Result<()> {
        within("device memory", offset, size_of_val(from), self.bytes)?;
        // SAFETY: the range is inside memory that `self` owns.
        unsafe { self.context.copy_from_host(self.ptr + offset, from) }
    }

    /// Copies from the memory, from the byte at `offset` on, into `to`. It does not wait for streams that do not wait
    /// for the default stream: synchronise with them first.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](crate::Error::OutOfBounds) if there is not as much; else as [`Context::copy_to_host`].
    pub fn copy_to_host<T: Element>(&self, offset: usize, to: &mut [T]) -> Result<()> {
        within("device memory", offset, size_of_val(to), self.bytes)?;
        // SAFETY: the range is inside memory that `self` owns; any bits are values of `T`.
        unsafe { self.context.copy_to_host(to, self.ptr + offset) }
    }

    /// Frees the memory, as dropping does, and returns the outcome. Memory is leaked if the call fails.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemFree_v2`, also for what earlier asynchronous work did wrong.
    #[doc(alias = "cuMemFree")]
    pub fn free(mut self) -> Result<()> {
        self.owned = false;
        free(&self.context, self.ptr)
    }
}

fn free(context: &Context, ptr: DevicePtr) -> Result<()> {
    // Freeing is not part of an open capture, and must not invalidate it.
    let _relaxed = RelaxedCapture::enter(context.driver());
    let _current = context.enter()?;
    // SAFETY: the owner of the memory calls this once, and gives it up.
    unsafe { call!(context.api(), cuMemFree_v2(ptr.0)) }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.owned {
            teardown::report(free(&self.context, self.ptr));
        }
    }
}

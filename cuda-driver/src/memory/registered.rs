//! Host memory of the program that the device can access while it is registered.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

use bitflags::bitflags;

use crate::call::call;
use crate::graph::RelaxedCapture;
use crate::{Context, DevicePtr, Result, teardown};

bitflags! {
    /// Flags for registering host memory.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RegisterFlags: u32 {
        /// Pinned for every context, not only for the one that registers it.
        const PORTABLE = 1;
        /// Mapped into the device's address space ([`RegisteredMemory::device_ptr`]).
        const DEVICE_MAPPED = 2;
        /// I/O memory of another device (its registers), mapped into this process.
        const IO_MEMORY = 4;
        /// The device only reads it; the pages may be read-only.
        const READ_ONLY = 8;
        const _ = !0;
    }
}

/// Memory of the program, pinned while this value lives. Registering takes milliseconds per gigabyte: do it
/// once. If unregistering fails (the [drop hook](crate::set_drop_error_hook) receives the error), the pages
/// stay pinned.
pub struct RegisteredMemory<'a> {
    context: Context,
    start: NonNull<u8>,
    bytes: usize,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: stands for `&mut [u8]` and a context.
unsafe impl Send for RegisteredMemory<'_> {}
// SAFETY: shared references only read.
unsafe impl Sync for RegisteredMemory<'_> {}

impl<'a> RegisteredMemory<'a> {
    /// Registers `memory`. Whole pages are pinned; two registrations must not touch the same page on some drivers.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemHostRegister_v2`:
    /// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`, `CUDA_ERROR_OUT_OF_MEMORY` past the limit of locked memory,
    /// `CUDA_ERROR_INVALID_VALUE` for no bytes.
    #[doc(alias = "cuMemHostRegister")]
    pub fn new(context: &Context, memory: &'a mut [u8], flags: RegisterFlags) -> Result<Self> {
        // SAFETY: the slice is borrowed for as long as the registration.
        unsafe { Self::from_raw(context, NonNull::from(&mut *memory).cast(), memory.len(), flags) }
    }

    /// Registers memory that is not a Rust slice, for example pages shared with another process.
    ///
    /// # Safety
    /// `bytes` bytes from `start` on must be mapped, readable (writable too, but for
    /// [`READ_ONLY`](RegisterFlags::READ_ONLY)) and initialised for as long as `'a`, and nobody else may unmap them.
    ///
    /// # Errors
    /// As [`RegisteredMemory::new`].
    pub unsafe fn from_raw(
        context: &Context,
        start: NonNull<u8>,
        bytes: usize,
        flags: RegisterFlags,
    ) -> Result<Self> {
        let _current = context.enter()?;
        // SAFETY: the caller vouches for the range.
        unsafe { call!(context.api(), cuMemHostRegister_v2(start.as_ptr().cast(), bytes, flags.bits())) }?;
        Ok(Self { context: context.clone(), start, bytes, memory: PhantomData })
    }

    /// The address of the first byte, for enqueued work and for other users of the memory.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address under which the device accesses the memory.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemHostGetDevicePointer_v2`, where it is not mapped.
    #[doc(alias = "cuMemHostGetDevicePointer")]
    pub fn device_ptr(&self) -> Result<DevicePtr> {
        super::pinned::device_ptr(&self.context, self.start)
    }
}

impl Drop for RegisteredMemory<'_> {
    #[doc(alias = "cuMemHostUnregister")]
    fn drop(&mut self) {
        // Unregistering is not part of an open capture, and must not invalidate it.
        let _relaxed = RelaxedCapture::enter(self.context.driver());
        teardown::report(self.context.enter().and_then(|_current| {
            // SAFETY: registered by `from_raw`, and used by no work after this, as its `unsafe` calls promised.
            unsafe { call!(self.context.api(), cuMemHostUnregister(self.start.as_ptr().cast())) }
        }));
    }
}

impl fmt::Debug for RegisteredMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredMemory({:p}, {} bytes)", self.start, self.bytes)
    }
}

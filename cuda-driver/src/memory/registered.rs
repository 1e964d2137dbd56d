//! Registration of the program's host memory, so that the device can access it.

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
        /// The memory is pinned for every context, not only for the one that registers it.
        const PORTABLE = 1;
        /// The memory is mapped into the device's address space ([`RegisteredMemory::device_ptr`]).
        const DEVICE_MAPPED = 2;
        /// The memory is I/O memory of another device (its registers), mapped into this process.
        const IO_MEMORY = 4;
        /// The device only reads the memory. The pages may be read-only for the host too.
        const READ_ONLY = 8;
        const _ = !0;
    }
}

/// Host memory of the program, pinned while this value lives.
///
/// Registering takes milliseconds per gigabyte, so register memory once and reuse it. If unregistering fails, the [drop
/// hook](crate::set_drop_error_hook) receives the error, and the pages stay pinned.
pub struct RegisteredMemory<'a> {
    context: Context,
    start: NonNull<u8>,
    bytes: usize,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: equivalent to a `&mut [u8]` and a context, which are both `Send`.
unsafe impl Send for RegisteredMemory<'_> {}
// SAFETY: shared references give no access to the memory in safe code.
unsafe impl Sync for RegisteredMemory<'_> {}

impl<'a> RegisteredMemory<'a> {
    /// Registers `memory`. The driver pins whole pages. Some drivers refuse a second registration that shares a page
    /// with another. The driver refuses this call during the same captures as
    /// [`PinnedMemory::new`](super::PinnedMemory::new), and invalidates them.
    ///
    /// # Safety
    /// The returned value must be dropped before `memory` is freed. In particular, it must not be
    /// [forgotten](std::mem::forget): that ends the borrow, but the driver keeps the registration. Copies to memory
    /// that the program later has at the same addresses then go to the old pages.
    ///
    /// ```compile_fail,E0133
    /// # use cuda_driver::{Context, Result, memory::{RegisterFlags, RegisteredMemory}};
    /// fn register_for_ever(context: &Context, memory: &mut [u8]) -> Result<()> {
    ///     std::mem::forget(RegisteredMemory::new(context, memory, RegisterFlags::empty())?);
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemHostRegister_v2`:
    /// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED` if a part of `memory` is registered or pinned already;
    /// `CUDA_ERROR_OUT_OF_MEMORY` if the limit of locked memory is exceeded; `CUDA_ERROR_INVALID_VALUE` for zero bytes.
    #[doc(alias = "cuMemHostRegister")]
    pub unsafe fn new(context: &Context, memory: &'a mut [u8], flags: RegisterFlags) -> Result<Self> {
        // SAFETY: the slice is borrowed as long as the value exists, and the caller promises to drop the value.
        unsafe { Self::from_raw(context, NonNull::from(&mut *memory).cast(), memory.len(), flags) }
    }

    /// Registers memory that is not a Rust slice, for example pages shared with another process.
    ///
    /// # Safety
    /// Until the returned value is dropped, the `bytes` bytes from `start` on must be mapped, readable and initialised.
    /// They must also be writable, unless [`READ_ONLY`](RegisterFlags::READ_ONLY) is set. Nothing may unmap them, also
    /// if the value is forgotten.
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
        // SAFETY: the caller promises that the range is valid.
        unsafe { call!(context.api(), cuMemHostRegister_v2(start.as_ptr().cast(), bytes, flags.bits())) }?;
        Ok(Self { context: context.clone(), start, bytes, memory: PhantomData })
    }

    /// The host address of the first byte, to pass to enqueued work and to other users of the memory.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address at which the device accesses the memory.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemHostGetDevicePointer_v2` if the memory is not mapped for the
    /// device.
    #[doc(alias = "cuMemHostGetDevicePointer")]
    pub fn device_ptr(&self) -> Result<DevicePtr> {
        super::pinned::device_ptr(&self.context, self.start)
    }
}

impl Drop for RegisteredMemory<'_> {
    #[doc(alias = "cuMemHostUnregister")]
    fn drop(&mut self) {
        // Unregistering does not take part in an open capture and must not invalidate it.
        let _relaxed = RelaxedCapture::enter(self.context.driver());
        teardown::report(self.context.enter().and_then(|_current| {
            // SAFETY: `from_raw` registered the memory. No work uses it any more, as the caller of the `unsafe` call
            // that enqueued the work promised.
            unsafe { call!(self.context.api(), cuMemHostUnregister(self.start.as_ptr().cast())) }
        }));
    }
}

impl fmt::Debug for RegisteredMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredMemory({:p}, {} bytes)", self.start, self.bytes)
    }
}

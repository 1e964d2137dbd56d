//! Pinned host memory that the device can access.

mod free;

use std::fmt;
use std::ptr::NonNull;

use bitflags::bitflags;

use cuda_driver_sys::CUresult;

use crate::call::{call, failure};
use crate::graph::RelaxedCapture;
use crate::{Context, DevicePtr, Result, teardown};

bitflags! {
    /// Flags for allocating pinned memory. With [`UNIFIED_ADDRESSING`](crate::Capabilities::UNIFIED_ADDRESSING), all
    /// pinned memory is mapped and portable, with or without these flags.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PinnedFlags: u32 {
        /// The memory is pinned for every context, not only for the one that allocates it.
        const PORTABLE = 1;
        /// The memory is mapped into the device's address space ([`PinnedMemory::device_ptr`]).
        const DEVICE_MAPPED = 2;
        /// The memory is write-combined: faster for the device to read, slow for the host to read.
        const WRITE_COMBINED = 4;
        const _ = !0;
    }
}

/// Pinned host memory, initialised with zeros. Dropping the value frees the memory and may wait for the device.
pub struct PinnedMemory {
    context: Context,
    start: NonNull<u8>,
    /// The size in bytes; 0 after a call of [`free`](Self::free).
    bytes: usize,
}

// SAFETY: `self` owns the memory, which is not bound to a thread.
unsafe impl Send for PinnedMemory {}
// SAFETY: shared references only allow reads in safe code.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Allocates `bytes` bytes of pinned memory and sets them to zero.
    ///
    /// The driver refuses this call during a capture whose [mode](crate::graph::CaptureMode) forbids it on this
    /// thread, and invalidates that capture. It accepts the call while the thread holds a [`RelaxedCapture`].
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemHostAlloc`: `CUDA_ERROR_OUT_OF_MEMORY` if the host has no
    /// more memory, the limit of locked memory is exceeded, or the driver reports success but returns a null pointer;
    /// `CUDA_ERROR_INVALID_VALUE` for zero bytes.
    #[doc(alias = "cuMemHostAlloc")]
    pub fn new(context: &Context, bytes: usize, flags: PinnedFlags) -> Result<Self> {
        let _current = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one pointer, to a local that outlives the call.
        unsafe { call!(context.api(), cuMemHostAlloc(&mut raw, bytes, flags.bits())) }?;
        // A null pointer is no memory, even if the driver reports success.
        let Some(start) = NonNull::new(raw.cast::<u8>()) else {
            let code = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
            return Err(failure(context.api(), "cuMemHostAlloc", code).into());
        };
        let memory = Self { context: context.clone(), start, bytes };
        // SAFETY: the driver allocated that many bytes, and nothing else uses them yet.
        unsafe { memory.start.write_bytes(0, memory.bytes) };
        Ok(memory)
    }

    /// Returns the bytes for reading. Does not wait for enqueued work that writes them. The calls that enqueue such
    /// work are `unsafe`, and their contract forbids reading the bytes before the work has completed.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is initialised and `self` owns it. Callers of the `unsafe` calls that enqueue work
        // promised that no such work writes it now.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// Returns the bytes for writing. Does not wait for enqueued work that reads or writes them. The calls that
    /// enqueue such work are `unsafe`, and their contract forbids conflicting access to the bytes before the work has
    /// completed.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    /// The host address of the first byte, to pass to enqueued work.
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
    /// device (only without unified addressing).
    #[doc(alias = "cuMemHostGetDevicePointer")]
    pub fn device_ptr(&self) -> Result<DevicePtr> {
        device_ptr(&self.context, self.start)
    }
}

/// Returns the address at which the device accesses pinned or registered memory, which must be alive. `start` is the
/// host address.
pub(super) fn device_ptr(context: &Context, start: NonNull<u8>) -> Result<DevicePtr> {
    let _current = context.enter()?;
    let mut ptr = 0;
    // SAFETY: writes one address, to a local that outlives the call; the driver refuses memory that is not pinned.
    unsafe { call!(context.api(), cuMemHostGetDevicePointer_v2(&mut ptr, start.as_ptr().cast(), 0)) }?;
    Ok(DevicePtr(ptr))
}

impl Drop for PinnedMemory {
    #[doc(alias = "cuMemFreeHost")]
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        // Freeing does not take part in an open capture and must not invalidate it.
        let _relaxed = RelaxedCapture::enter(self.context.driver());
        teardown::report(self.context.enter().and_then(|_current| {
            // SAFETY: `cuMemHostAlloc` returned the address. Safe code cannot use the memory any more. Enqueued work
            // does not use it either, as the callers of the `unsafe` calls that enqueued the work promised.
            unsafe { call!(self.context.api(), cuMemFreeHost(self.start.as_ptr().cast())) }
        }));
    }
}

impl fmt::Debug for PinnedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedMemory({:p}, {} bytes)", self.start, self.bytes)
    }
}

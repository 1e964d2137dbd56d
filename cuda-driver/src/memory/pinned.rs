//! Pinned host memory that the device can access.

mod free;

use std::fmt;
use std::ptr::NonNull;

use bitflags::bitflags;

use crate::call::call;
use crate::graph::RelaxedCapture;
use crate::{Context, DevicePtr, Result, teardown};

bitflags! {
    /// Flags for allocating pinned memory.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PinnedFlags: u32 {
        /// Pinned for every context, not only for the one that makes it.
        const PORTABLE = 1;
        /// Mapped into the device's address space ([`PinnedMemory::device_ptr`]).
        const DEVICE_MAPPED = 2;
        /// Fast for the device to read, slow for the host to read.
        const WRITE_COMBINED = 4;
        const _ = !0;
    }
}

/// Pinned host memory, zeroed when it is made.
pub struct PinnedMemory {
    context: Context,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory that `self` owns.
unsafe impl Send for PinnedMemory {}
// SAFETY: shared references only read.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Allocates `bytes` bytes of pinned, zeroed memory. Refused while a stream captures, and ruins that capture,
    /// unless the thread holds a [`RelaxedCapture`].
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemHostAlloc`: `CUDA_ERROR_OUT_OF_MEMORY` where the host (or
    /// its limit of locked memory) has no more, `CUDA_ERROR_INVALID_VALUE` for no bytes.
    #[doc(alias = "cuMemHostAlloc")]
    pub fn new(context: &Context, bytes: usize, flags: PinnedFlags) -> Result<Self> {
        let _current = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one pointer, to a local that outlives the call.
        unsafe { call!(context.api(), cuMemHostAlloc(&mut raw, bytes, flags.bits())) }?;
        // Treat null on success as empty: an empty slice, and nothing to free.
        let (start, bytes) =
            NonNull::new(raw.cast::<u8>()).map_or((NonNull::dangling(), 0), |start| (start, bytes));
        let memory = Self { context: context.clone(), start, bytes };
        // SAFETY: the driver gave that many bytes, and nobody else has them yet.
        unsafe { memory.start.write_bytes(0, memory.bytes) };
        Ok(memory)
    }

    /// The bytes. Work that writes them must have completed: its `unsafe` call promised that.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is initialised, `self` owns it, and asynchronous writers have promised not to overlap.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// The bytes, to be written. Work that uses them must have completed: its `unsafe` call promised that.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as `as_slice`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    /// The address of the first byte, for work that is enqueued.
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
        device_ptr(&self.context, self.start)
    }
}

/// The device's address of pinned memory, which must be alive.
pub(super) fn device_ptr(context: &Context, start: NonNull<u8>) -> Result<DevicePtr> {
    let _current = context.enter()?;
    let mut ptr = 0;
    // SAFETY: writes one address, to a local that outlives the call; the driver refuses what is not pinned.
    unsafe { call!(context.api(), cuMemHostGetDevicePointer_v2(&mut ptr, start.as_ptr().cast(), 0)) }?;
    Ok(DevicePtr(ptr))
}

impl Drop for PinnedMemory {
    #[doc(alias = "cuMemFreeHost")]
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        // Freeing is not part of an open capture, and must not invalidate it.
        let _relaxed = RelaxedCapture::enter(self.context.driver());
        teardown::report(self.context.enter().and_then(|_current| {
            // SAFETY: made by `cuMemHostAlloc` and used by nobody after this.
            unsafe { call!(self.context.api(), cuMemFreeHost(self.start.as_ptr().cast())) }
        }));
    }
}

impl fmt::Debug for PinnedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedMemory({:p}, {} bytes)", self.start, self.bytes)
    }
}

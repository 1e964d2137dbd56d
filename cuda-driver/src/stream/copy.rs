//! Copies and fills that are enqueued on a stream.

use std::ffi::c_void;

use super::Stream;
use crate::call::call;
use crate::context::Current;
use crate::{Context, DevicePtr, Result};

impl Stream {
    /// Makes the context current. While no context is current, the driver refuses a copy from or to a range that
    /// several allocations of virtual memory make up.
    #[inline]
    fn enter_to_copy(&self) -> Result<Current<'_>> {
        self.context().enter()
    }

    /// Enqueues a copy of `bytes` bytes from host memory to device memory. The call returns at once if the host memory
    /// is pinned; with pageable memory it may block.
    ///
    /// # Safety
    /// The contract of [asynchronous calls](Stream#what-asynchronous-calls-ask-of-the-caller) must hold for both
    /// ranges.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemcpyHtoDAsync_v2`.
    #[doc(alias = "cuMemcpyHtoDAsync")]
    pub unsafe fn copy_from_host(&self, to: DevicePtr, from: *const c_void, bytes: usize) -> Result<()> {
        let _current = self.enter_to_copy()?;
        // SAFETY: the caller promises that both ranges are valid; the stream is alive.
        unsafe { call!(self.api(), cuMemcpyHtoDAsync_v2(to.0, from, bytes, self.raw())) }
    }

    /// Enqueues a copy of `bytes` bytes from device memory to host memory. The call returns at once if the host memory
    /// is pinned; with pageable memory it may block.
    ///
    /// # Safety
    /// The contract of [asynchronous calls](Stream#what-asynchronous-calls-ask-of-the-caller) must hold for both
    /// ranges.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemcpyDtoHAsync_v2`.
    #[doc(alias = "cuMemcpyDtoHAsync")]
    pub unsafe fn copy_to_host(&self, to: *mut c_void, from: DevicePtr, bytes: usize) -> Result<()> {
        let _current = self.enter_to_copy()?;
        // SAFETY: the caller promises that both ranges are valid; the stream is alive.
        unsafe { call!(self.api(), cuMemcpyDtoHAsync_v2(to, from.0, bytes, self.raw())) }
    }

    /// Enqueues a copy of `bytes` bytes within device memory. The ranges may be on different devices if the stream's
    /// device can access both.
    ///
    /// # Safety
    /// The contract of [asynchronous calls](Stream#what-asynchronous-calls-ask-of-the-caller) must hold for both
    /// ranges. They must not overlap.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemcpyDtoDAsync_v2`.
    #[doc(alias = "cuMemcpyDtoDAsync")]
    pub unsafe fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: usize) -> Result<()> {
        let _current = self.enter_to_copy()?;
        // SAFETY: the caller promises that both ranges are valid; the stream is alive.
        unsafe { call!(self.api(), cuMemcpyDtoDAsync_v2(to.0, from.0, bytes, self.raw())) }
    }

    /// Enqueues a copy of `bytes` bytes from memory of one context to memory of another. If their devices cannot access
    /// each other, the driver copies through the host.
    ///
    /// # Safety
    /// The contract of [asynchronous calls](Stream#what-asynchronous-calls-ask-of-the-caller) must hold for both
    /// ranges.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemcpyPeerAsync`;
    /// [`Error::DifferentDrivers`](crate::Error::DifferentDrivers).
    #[doc(alias = "cuMemcpyPeerAsync")]
    pub unsafe fn copy_peer(
        &self,
        (to, to_context): (DevicePtr, &Context),
        (from, from_context): (DevicePtr, &Context),
        bytes: usize,
    ) -> Result<()> {
        for context in [to_context, from_context] {
            let ours = self.context().driver();
            ours.require_same("an allocation's context", context.driver(), "the stream that should copy")?;
        }
        let _current = self.enter_to_copy()?;
        let (to_context, from_context) = (to_context.raw(), from_context.raw());
        // SAFETY: the caller promises that both ranges are valid; the contexts and the stream are alive.
        unsafe {
            call!(self.api(), cuMemcpyPeerAsync(to.0, to_context, from.0, from_context, bytes, self.raw()))
        }
    }

    /// Enqueues a fill that sets `count` bytes of device memory to `value`.
    ///
    /// # Safety
    /// The contract of [asynchronous calls](Stream#what-asynchronous-calls-ask-of-the-caller) must hold for the range.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemsetD8Async`.
    #[doc(alias = "cuMemsetD8Async")]
    pub unsafe fn fill_u8(&self, at: DevicePtr, value: u8, count: usize) -> Result<()> {
        let _current = self.enter_if_implicit()?;
        // SAFETY: the caller promises that the range is valid; the stream is alive.
        unsafe { call!(self.api(), cuMemsetD8Async(at.0, value, count, self.raw())) }
    }

    /// Enqueues a fill that sets `count` 16-bit words of device memory to `value`. `at` must be a multiple of 2 bytes.
    ///
    /// # Safety
    /// The contract of [asynchronous calls](Stream#what-asynchronous-calls-ask-of-the-caller) must hold for the range.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemsetD16Async`.
    #[doc(alias = "cuMemsetD16Async")]
    pub unsafe fn fill_u16(&self, at: DevicePtr, value: u16, count: usize) -> Result<()> {
        let _current = self.enter_if_implicit()?;
        // SAFETY: the caller promises that the range is valid; the stream is alive.
        unsafe { call!(self.api(), cuMemsetD16Async(at.0, value, count, self.raw())) }
    }

    /// Enqueues a fill that sets `count` 32-bit words of device memory to `value`. `at` must be a multiple of 4 bytes.
    ///
    /// # Safety
    /// The contract of [asynchronous calls](Stream#what-asynchronous-calls-ask-of-the-caller) must hold for the range.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemsetD32Async`.
    #[doc(alias = "cuMemsetD32Async")]
    pub unsafe fn fill_u32(&self, at: DevicePtr, value: u32, count: usize) -> Result<()> {
        let _current = self.enter_if_implicit()?;
        // SAFETY: the caller promises that the range is valid; the stream is alive.
        unsafe { call!(self.api(), cuMemsetD32Async(at.0, value, count, self.raw())) }
    }
}

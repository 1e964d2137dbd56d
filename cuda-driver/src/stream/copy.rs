//! Copies and fills that are enqueued on a stream.

use std::ffi::c_void;

use cuda_driver_sys::{CUdeviceptr, CUmemcpyAttributes, CUmemcpySrcAccessOrder};

use super::Stream;
use crate::call::call;
use crate::graph::CaptureStatus;
use crate::{Context, DevicePtr, Result};

/// The raw value of the legacy default stream; 0 means it too.
const LEGACY: usize = 1;

/// A copy within device memory, for [`Stream::copy_all`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceCopy {
    /// The first byte of the destination.
    pub to: DevicePtr,
    /// The first byte of the source.
    pub from: DevicePtr,
    /// The length in bytes.
    pub bytes: usize,
}

impl Stream {
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
        let _current = self.enter_if_implicit()?;
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
        let _current = self.enter_if_implicit()?;
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
        let _current = self.enter_if_implicit()?;
        // SAFETY: the caller promises that both ranges are valid; the stream is alive.
        unsafe { call!(self.api(), cuMemcpyDtoDAsync_v2(to.0, from.0, bytes, self.raw())) }
    }

    /// Enqueues copies within device memory, which may run in any order and at the same time. Work that is enqueued
    /// later waits for all of them. They are one call if the driver has `cuMemcpyBatchAsync` of CUDA 13.0, and one call
    /// each if it lacks it, if there is one copy only, or if the stream captures or is the legacy default stream, for
    /// which the driver refuses the batch.
    ///
    /// If the call fails, some of the copies may be enqueued.
    ///
    /// # Safety
    /// The contract of [asynchronous calls](Stream#what-asynchronous-calls-ask-of-the-caller) must hold for all
    /// ranges. No destination may overlap another range of the copies.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemcpyBatchAsync_v2`, `cuMemcpyDtoDAsync_v2` or
    /// `cuStreamIsCapturing`.
    #[doc(alias = "cuMemcpyBatchAsync")]
    pub unsafe fn copy_all(&self, copies: &[DeviceCopy]) -> Result<()> {
        // SAFETY: the caller's promise, for this and the next one.
        let one = |copy: &DeviceCopy| unsafe { self.copy(copy.to, copy.from, copy.bytes) };
        let is_batch = copies.len() > 1
            && self.api().cuMemcpyBatchAsync_v2().is_ok()
            && self.raw().addr() > LEGACY
            && self.capture_status()? == CaptureStatus::None;
        if !is_batch {
            return copies.iter().try_for_each(one);
        }
        let mut to: Vec<CUdeviceptr> = copies.iter().map(|copy| copy.to.0).collect();
        let mut from: Vec<CUdeviceptr> = copies.iter().map(|copy| copy.from.0).collect();
        let mut bytes: Vec<usize> = copies.iter().map(|copy| copy.bytes).collect();
        let order = CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        let mut attributes = CUmemcpyAttributes { srcAccessOrder: order, ..CUmemcpyAttributes::default() };
        // The one set of attributes holds from the first copy on.
        let mut first = 0;
        let _current = self.enter_if_implicit()?;
        // SAFETY: the caller promises that the ranges are valid. The lists have `copies.len()` elements each, and
        // outlive the call, which reads them; the stream is alive.
        unsafe {
            call!(
                self.api(),
                cuMemcpyBatchAsync_v2(
                    to.as_mut_ptr(),
                    from.as_mut_ptr(),
                    bytes.as_mut_ptr(),
                    copies.len(),
                    &mut attributes,
                    &mut first,
                    1,
                    self.raw()
                )
            )
        }
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
        let _current = self.enter_if_implicit()?;
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

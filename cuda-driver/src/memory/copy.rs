//! Copies and fills that are not enqueued on a stream of the caller. They run on the context's legacy default stream.

use crate::call::call;
use crate::{Context, DevicePtr, Element, Result, Stream};

impl Context {
    /// Copies host memory to device memory. Blocks until the copy is done: work that any stream runs afterwards sees
    /// it. The copy does not wait for work on [non-blocking](crate::StreamFlags::NON_BLOCKING) streams: synchronise
    /// with them first.
    ///
    /// # Safety
    /// The range at `to` must be device memory at least as large as `from`. No other work may access it until the copy
    /// is done. If the call fails with [`Error::Driver`](crate::Error::Driver), the copy may still run later. The same
    /// conditions then hold until a synchronisation of the context's legacy default stream has succeeded.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemcpyHtoD_v2` or `cuStreamSynchronize`, also for errors of
    /// earlier asynchronous work; [`Error::Missing`](crate::Error::Missing) if the driver lacks one of them, before
    /// anything is copied.
    #[doc(alias = "cuMemcpyHtoD")]
    pub unsafe fn copy_from_host<T: Element>(&self, to: DevicePtr, from: &[T]) -> Result<()> {
        // SAFETY: the caller's promises are the same.
        unsafe { self.enqueue_copy_from_host(to, from) }?;
        Stream::legacy_default(self).synchronize()
    }

    /// Enqueues a copy on the legacy default stream. Blocks only until the driver has read `from`: if `from` is
    /// pageable memory, the device memory may be written after this call has returned.
    ///
    /// # Safety
    /// As [`copy_from_host`](Self::copy_from_host). The copy is done after the next synchronisation of the legacy
    /// default stream.
    pub(crate) unsafe fn enqueue_copy_from_host<T: Element>(&self, to: DevicePtr, from: &[T]) -> Result<()> {
        // The caller waits for the copy by `cuStreamSynchronize`. If the driver lacks that function, no copy may start.
        self.api().cuStreamSynchronize()?;
        let _current = self.enter()?;
        // SAFETY: the caller promises that the device range is valid; the host range is the slice.
        unsafe { call!(self.api(), cuMemcpyHtoD_v2(to.0, from.as_ptr().cast(), size_of_val(from))) }
    }

    /// Copies device memory to host memory. Blocks until the copy is done. The copy does not wait for work on
    /// [non-blocking](crate::StreamFlags::NON_BLOCKING) streams: synchronise with them first.
    ///
    /// # Safety
    /// The range at `from` must be device memory at least as large as `to`. No other work may write it until the copy
    /// is done.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemcpyDtoH_v2`, also for errors of earlier asynchronous work.
    #[doc(alias = "cuMemcpyDtoH")]
    pub unsafe fn copy_to_host<T: Element>(&self, to: &mut [T], from: DevicePtr) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller promises that the device range is valid; the host range is the slice. Any bits are a value
        // of `T`.
        unsafe { call!(self.api(), cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), from.0, size_of_val(to))) }
    }

    /// Sets `count` bytes of device memory to `value`. May return before the fill is done. Later work on the legacy
    /// default stream runs after the fill. Work on [non-blocking](crate::StreamFlags::NON_BLOCKING) streams does not
    /// wait for the fill.
    ///
    /// # Safety
    /// The range must be device memory. No other work may access it until the fill is done.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemsetD8_v2`.
    #[doc(alias = "cuMemsetD8")]
    pub unsafe fn fill_u8(&self, at: DevicePtr, value: u8, count: usize) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller promises that the range is valid.
        unsafe { call!(self.api(), cuMemsetD8_v2(at.0, value, count)) }
    }

    /// Sets `count` 16-bit words of device memory to `value`, like [`fill_u8`](Self::fill_u8). `at` must be a multiple
    /// of 2 bytes.
    ///
    /// # Safety
    /// As [`fill_u8`](Self::fill_u8).
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemsetD16_v2`.
    #[doc(alias = "cuMemsetD16")]
    pub unsafe fn fill_u16(&self, at: DevicePtr, value: u16, count: usize) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller promises that the range is valid.
        unsafe { call!(self.api(), cuMemsetD16_v2(at.0, value, count)) }
    }

    /// Sets `count` 32-bit words of device memory to `value`, like [`fill_u8`](Self::fill_u8). `at` must be a multiple
    /// of 4 bytes.
    ///
    /// # Safety
    /// As [`fill_u8`](Self::fill_u8).
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemsetD32_v2`.
    #[doc(alias = "cuMemsetD32")]
    pub unsafe fn fill_u32(&self, at: DevicePtr, value: u32, count: usize) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller promises that the range is valid.
        unsafe { call!(self.api(), cuMemsetD32_v2(at.0, value, count)) }
    }

    /// Copies `bytes` bytes within device memory. The ranges may be on different devices if this context's device can
    /// access both. May return before the copy is done. Later work on the legacy default stream runs after the copy.
    /// Work on [non-blocking](crate::StreamFlags::NON_BLOCKING) streams does not wait for the copy.
    ///
    /// # Safety
    /// Both ranges must be device memory and must not overlap. Until the copy is done, no other work may write the
    /// source or access the target.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemcpyDtoD_v2`.
    #[doc(alias = "cuMemcpyDtoD")]
    pub unsafe fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: usize) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller promises that both ranges are valid.
        unsafe { call!(self.api(), cuMemcpyDtoD_v2(to.0, from.0, bytes)) }
    }

    /// Copies `bytes` bytes of this context's memory to memory of `to_context`. The devices need not be able to access
    /// each other. Like [`copy`](Self::copy), may return before the copy is done.
    ///
    /// # Safety
    /// As [`copy`](Self::copy).
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemcpyPeer`;
    /// [`Error::DifferentDrivers`](crate::Error::DifferentDrivers).
    #[doc(alias = "cuMemcpyPeer")]
    pub unsafe fn copy_to_peer(
        &self,
        (to, to_context): (DevicePtr, &Context),
        from: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        self.driver().require_same("the peer", to_context.driver(), "the context")?;
        let _current = self.enter()?;
        // SAFETY: the caller promises that both ranges are valid; both contexts are alive.
        unsafe { call!(self.api(), cuMemcpyPeer(to.0, to_context.raw(), from.0, self.raw(), bytes)) }
    }
}

//! Copies and fills that block the calling thread.

use crate::call::call;
use crate::{Context, DevicePtr, Element, Result};

impl Context {
    /// Copies host memory to device memory and waits until the source may be reused.
    ///
    /// # Safety
    /// The range at `to` must be device memory of the size of `from`, and used by nobody in conflict.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemcpyHtoD_v2`, also for what earlier asynchronous work did
    /// wrong.
    #[doc(alias = "cuMemcpyHtoD")]
    pub unsafe fn copy_from_host<T: Element>(&self, to: DevicePtr, from: &[T]) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller vouches for the device range; the host range is the slice.
        unsafe { call!(self.api(), cuMemcpyHtoD_v2(to.0, from.as_ptr().cast(), size_of_val(from))) }
    }

    /// Copies device memory to host memory and waits for it. It does not wait for work on streams that do not wait
    /// for the default stream: synchronise with them first.
    ///
    /// # Safety
    /// The range at `from` must be device memory of the size of `to`, and written by nobody meanwhile.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemcpyDtoH_v2`, also for what earlier asynchronous work did
    /// wrong.
    #[doc(alias = "cuMemcpyDtoH")]
    pub unsafe fn copy_to_host<T: Element>(&self, to: &mut [T], from: DevicePtr) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller vouches for the device range; the host range is the slice, whose elements take any bits.
        unsafe { call!(self.api(), cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), from.0, size_of_val(to))) }
    }

    /// Sets `count` bytes of device memory to `value`. It may return before the device is done, but later work on
    /// the default stream comes after it.
    ///
    /// # Safety
    /// The range must be device memory, and used by nobody in conflict.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemsetD8_v2`.
    #[doc(alias = "cuMemsetD8")]
    pub unsafe fn fill_u8(&self, at: DevicePtr, value: u8, count: usize) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller vouches for the range.
        unsafe { call!(self.api(), cuMemsetD8_v2(at.0, value, count)) }
    }

    /// Sets `count` 16-bit words of device memory to `value`, as [`fill_u8`](Self::fill_u8); `at` must be a multiple
    /// of 2.
    ///
    /// # Safety
    /// As [`fill_u8`](Self::fill_u8).
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemsetD16_v2`.
    #[doc(alias = "cuMemsetD16")]
    pub unsafe fn fill_u16(&self, at: DevicePtr, value: u16, count: usize) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller vouches for the range.
        unsafe { call!(self.api(), cuMemsetD16_v2(at.0, value, count)) }
    }

    /// Sets `count` 32-bit words of device memory to `value`, as [`fill_u8`](Self::fill_u8); `at` must be a multiple
    /// of 4.
    ///
    /// # Safety
    /// As [`fill_u8`](Self::fill_u8).
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemsetD32_v2`.
    #[doc(alias = "cuMemsetD32")]
    pub unsafe fn fill_u32(&self, at: DevicePtr, value: u32, count: usize) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller vouches for the range.
        unsafe { call!(self.api(), cuMemsetD32_v2(at.0, value, count)) }
    }

    /// Copies `bytes` bytes within device memory; between devices too, where this one can access both ranges. It may
    /// return before the device is done, but later work on the default stream comes after it.
    ///
    /// # Safety
    /// Both ranges must be device memory, not overlap, and be used by nobody in conflict.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemcpyDtoD_v2`.
    #[doc(alias = "cuMemcpyDtoD")]
    pub unsafe fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: usize) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: the caller vouches for both ranges.
        unsafe { call!(self.api(), cuMemcpyDtoD_v2(to.0, from.0, bytes)) }
    }

    /// Copies `bytes` bytes of this context's memory to memory of `to_context`, whether or not the devices can access
    /// each other; as [`copy`](Self::copy) for the host.
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
        // SAFETY: the caller vouches for both ranges; both contexts are alive.
        unsafe { call!(self.api(), cuMemcpyPeer(to.0, to_context.raw(), from.0, self.raw(), bytes)) }
    }
}

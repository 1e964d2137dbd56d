//! Primary contexts of devices, and making a context current on a thread.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bitflags::bitflags;
use cuda_driver_sys::{Api, CUcontext, CUlimit, CUresult};

use crate::call::{call, check, code};
use crate::{Device, Driver, Result, teardown};

bitflags! {
    /// Flags of a context. The first three choose how host threads wait for the device. Without them, the driver
    /// chooses.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ContextFlags: u32 {
        /// Waiting threads spin, which has the least latency.
        const WAIT_SPINNING = 1;
        /// Waiting threads yield the processor to other threads.
        const WAIT_YIELDING = 2;
        /// Waiting threads sleep.
        const WAIT_SLEEPING = 4;
        /// Pinned memory can be mapped for the device. Current drivers always allow that.
        const MAP_HOST = 8;
        /// The driver keeps the local memory of kernels at the largest size that was needed, instead of shrinking it.
        const KEEP_LOCAL_MEMORY = 16;
        const _ = !0;
    }
}

/// A device's primary context. A cheap handle: the context is retained as long as a clone of it, or an object made from
/// it, lives.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    raw: CUcontext,
}

// SAFETY: a context's handle may be used from every thread. Which context is current depends on the thread, but only
// `Current` relies on that, and it is not `Send`.
unsafe impl Send for Inner {}
// SAFETY: as above. The driver locks its own state.
unsafe impl Sync for Inner {}

impl Context {
    pub(crate) fn from_retained(device: Device, raw: CUcontext) -> Self {
        Self { inner: Arc::new(Inner { device, raw }) }
    }

    #[inline]
    pub(crate) fn api(&self) -> &Api {
        self.inner.device.api()
    }

    /// Returns the device of the context.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Returns the driver of the context.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        self.inner.device.driver()
    }

    /// Returns the driver's handle, which is valid while this context lives.
    #[must_use]
    pub fn raw(&self) -> CUcontext {
        self.inner.raw
    }

    /// Runs `body` with the context current on this thread, then makes the former context current again, and returns
    /// the result of `body`.
    ///
    /// The methods of this crate make their context current themselves. Use this method for other calls that need a
    /// current context, such as calls of NCCL, cuBLAS or raw functions of the driver. If the context is current
    /// already, the only cost is one query of the current context. Calls can be nested. `body` must leave the current
    /// context as it finds it: if the context was current already, a change by `body` (such as by `cudaSetDevice`)
    /// stays. The former context is also restored if `body` panics. If restoring it fails, the hook of
    /// [`set_drop_error_hook`](crate::set_drop_error_hook) receives the error.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuCtxGetCurrent` or `cuCtxPushCurrent_v2`. In this case `body` has
    /// not run.
    #[doc(alias = "cuCtxSetCurrent")]
    #[doc(alias = "cuCtxPushCurrent")]
    #[inline(always)]
    pub fn with_current<R>(&self, body: impl FnOnce() -> R) -> Result<R> {
        let _current = self.enter()?;
        Ok(body())
    }

    /// Makes the context current on this thread until the guard is dropped. Guards must be dropped in reverse order, or
    /// the wrong context becomes current, so the type is private to this crate.
    #[inline(always)]
    pub(crate) fn enter(&self) -> Result<Current<'_>> {
        let mut current = std::ptr::null_mut();
        // SAFETY: writes one handle, to a local that outlives the call.
        unsafe { call!(self.api(), cuCtxGetCurrent(&mut current)) }?;
        let pushed = current != self.raw();
        if pushed {
            self.push()?;
        }
        Ok(Current { context: self, pushed, thread: PhantomData })
    }

    #[cold]
    fn push(&self) -> Result<()> {
        // SAFETY: the context stays retained while `self` lives. The guard that pops the context borrows `self`.
        unsafe { call!(self.api(), cuCtxPushCurrent_v2(self.raw())) }
    }

    /// Returns the free and the total memory of the device, in bytes. The free memory can change at any time, since
    /// other processes may use the device.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemGetInfo_v2`.
    #[doc(alias = "cuMemGetInfo")]
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        let _current = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two sizes, to locals that outlive the call.
        unsafe { call!(self.api(), cuMemGetInfo_v2(&mut free, &mut total)) }?;
        Ok((free, total))
    }

    /// Blocks until all work enqueued on all streams of the context has completed. The driver refuses this call while a
    /// stream of the context captures, and during the same captures as [`Event::query`](crate::Event::query), and
    /// invalidates them.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuCtxSynchronize`, also for an error of earlier asynchronous work.
    #[doc(alias = "cuCtxSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: takes no pointer.
        unsafe { call!(self.api(), cuCtxSynchronize()) }
    }

    /// Lets kernels and copies of this context access the memory that `peer` allocates. This does not apply to
    /// mappings of [`vmm`](crate::vmm) and to memory of [pools](crate::memory::MemoryPool), which have their own
    /// access rights. The call does not give `peer` access to the memory of this context. Enabling access again is
    /// not an error.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuCtxEnablePeerAccess`, for example
    /// `CUDA_ERROR_PEER_ACCESS_UNSUPPORTED` or `CUDA_ERROR_TOO_MANY_PEERS`;
    /// [`Error::DifferentDrivers`](crate::Error::DifferentDrivers).
    #[doc(alias = "cuCtxEnablePeerAccess")]
    pub fn enable_peer_access(&self, peer: &Context) -> Result<()> {
        self.driver().require_same("the peer", peer.driver(), "the context")?;
        let _current = self.enter()?;
        // SAFETY: both contexts are alive.
        match unsafe { code!(self.api(), cuCtxEnablePeerAccess(peer.raw(), 0)) }? {
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            code => check(self.api(), "cuCtxEnablePeerAccess", code),
        }
    }

    /// Disables access that [`enable_peer_access`](Self::enable_peer_access) enabled. It is not an error if access is
    /// not enabled.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuCtxDisablePeerAccess`;
    /// [`Error::DifferentDrivers`](crate::Error::DifferentDrivers).
    #[doc(alias = "cuCtxDisablePeerAccess")]
    pub fn disable_peer_access(&self, peer: &Context) -> Result<()> {
        self.driver().require_same("the peer", peer.driver(), "the context")?;
        let _current = self.enter()?;
        // SAFETY: both contexts are alive.
        match unsafe { code!(self.api(), cuCtxDisablePeerAccess(peer.raw())) }? {
            CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED => Ok(()),
            code => check(self.api(), "cuCtxDisablePeerAccess", code),
        }
    }

    /// Returns the lowest and the highest priority that a stream can have, in this order. The highest priority is the
    /// smallest number.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuCtxGetStreamPriorityRange`.
    #[doc(alias = "cuCtxGetStreamPriorityRange")]
    pub fn stream_priority_range(&self) -> Result<(i32, i32)> {
        let _current = self.enter()?;
        let (mut lowest, mut highest) = (0, 0);
        // SAFETY: writes two integers, to locals that outlive the call.
        unsafe { call!(self.api(), cuCtxGetStreamPriorityRange(&mut lowest, &mut highest)) }?;
        Ok((lowest, highest))
    }

    /// Returns the flags of the context.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuCtxGetFlags`.
    #[doc(alias = "cuCtxGetFlags")]
    pub fn flags(&self) -> Result<ContextFlags> {
        let _current = self.enter()?;
        let mut flags = 0;
        // SAFETY: writes one integer, to a local that outlives the call.
        unsafe { call!(self.api(), cuCtxGetFlags(&mut flags)) }?;
        Ok(ContextFlags::from_bits_retain(flags))
    }

    /// Returns the context's number, which no other context of the process has or had.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuCtxGetId`; [`Error::Missing`](crate::Error::Missing) below
    /// CUDA 12.0.
    #[doc(alias = "cuCtxGetId")]
    pub fn id(&self) -> Result<u64> {
        let mut id = 0;
        // SAFETY: the context is alive; writes one number, to a local that outlives the call.
        unsafe { call!(self.api(), cuCtxGetId(self.raw(), &mut id)) }?;
        Ok(id)
    }

    /// Returns a limit of the context. Most limits are in bytes: `CU_LIMIT_STACK_SIZE` (per thread),
    /// `CU_LIMIT_PRINTF_FIFO_SIZE`, `CU_LIMIT_MALLOC_HEAP_SIZE`.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuCtxGetLimit`: `CUDA_ERROR_UNSUPPORTED_LIMIT` for a limit
    /// that the device does not have, `CUDA_ERROR_INVALID_VALUE` for a limit that the driver does not know.
    #[doc(alias = "cuCtxGetLimit")]
    pub fn limit(&self, limit: CUlimit) -> Result<usize> {
        let _current = self.enter()?;
        let mut value = 0;
        // SAFETY: writes one size, to a local that outlives the call.
        unsafe { call!(self.api(), cuCtxGetLimit(&mut value, limit)) }?;
        Ok(value)
    }

    /// Sets a limit of the context. `value` has the unit of the limit. The driver may round the value:
    /// [`limit`](Self::limit) returns the actual one.
    ///
    /// # Errors
    /// As [`limit`](Self::limit), from `cuCtxSetLimit`. Also `CUDA_ERROR_OUT_OF_MEMORY` if the memory that the limit
    /// needs cannot be allocated. Also `CUDA_ERROR_INVALID_VALUE` for `CU_LIMIT_PRINTF_FIFO_SIZE` after a kernel that
    /// calls `printf` was launched, and for `CU_LIMIT_MALLOC_HEAP_SIZE` after a kernel that calls `malloc` or `free`
    /// was launched.
    #[doc(alias = "cuCtxSetLimit")]
    pub fn set_limit(&self, limit: CUlimit, value: usize) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: takes no pointer.
        unsafe { call!(self.api(), cuCtxSetLimit(limit, value)) }
    }
}

impl Drop for Inner {
    #[doc(alias = "cuDevicePrimaryCtxRelease")]
    fn drop(&mut self) {
        // SAFETY: releases, once, the reference to the primary context that was retained when `self` was made. No
        // object made from the context is alive, since each of them holds a clone of the handle.
        teardown::report(unsafe {
            call!(self.device.api(), cuDevicePrimaryCtxRelease_v2(self.device.raw()))
        });
    }
}

impl PartialEq for Context {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.raw() == other.raw() && self.driver().is_same(other.driver())
    }
}

impl Eq for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({:?}, {:p})", self.inner.device, self.inner.raw)
    }
}

/// Keeps a context current on this thread. Made by [`Context::enter`].
#[derive(Debug)]
#[must_use = "the context is current only while the guard lives"]
pub(crate) struct Current<'a> {
    context: &'a Context,
    pushed: bool,
    /// Makes the type neither `Send` nor `Sync`, because each thread has its own current context.
    thread: PhantomData<*const ()>,
}

impl Current<'_> {
    #[cold]
    fn pop(&mut self) {
        let mut popped = std::ptr::null_mut();
        // SAFETY: pops the context that `enter` pushed. The guard is not `Send`, so this is the same thread.
        teardown::report(unsafe { call!(self.context.api(), cuCtxPopCurrent_v2(&mut popped)) });
    }
}

impl Drop for Current<'_> {
    #[doc(alias = "cuCtxPopCurrent")]
    #[inline]
    fn drop(&mut self) {
        if self.pushed {
            self.pop();
        }
    }
}

//! The primary context of a device, and which context is current on a thread.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bitflags::bitflags;
use cuda_driver_sys::{Api, CUcontext, CUlimit, CUresult};

use crate::call::{call, check, code};
use crate::{Device, Driver, Result, teardown};

bitflags! {
    /// Flags of a context. The first three choose how threads wait; without any, the driver chooses.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ContextFlags: u32 {
        /// Threads that wait spin: least latency.
        const WAIT_SPINNING = 1;
        /// Threads that wait yield.
        const WAIT_YIELDING = 2;
        /// Threads that wait sleep.
        const WAIT_SLEEPING = 4;
        /// Pinned memory can be mapped; always so in today's drivers.
        const MAP_HOST = 8;
        /// Local memory of kernels is kept at the largest size that was needed.
        const KEEP_LOCAL_MEMORY = 16;
        const _ = !0;
    }
}

/// A device's primary context, retained for as long as a clone of this handle, or anything made from it, lives.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    raw: CUcontext,
}

// SAFETY: a context's handle may be used from every thread. Only the current context is per thread, and
// that is held by `Current`, which is not `Send`.
unsafe impl Send for Inner {}
// SAFETY: as above; the driver locks what it shares between threads.
unsafe impl Sync for Inner {}

impl Context {
    pub(crate) fn from_retained(device: Device, raw: CUcontext) -> Self {
        Self { inner: Arc::new(Inner { device, raw }) }
    }

    #[inline]
    pub(crate) fn api(&self) -> &Api {
        self.inner.device.api()
    }

    /// The device that the context is of.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The driver under it.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        self.inner.device.driver()
    }

    /// The driver's handle, valid while this context lives.
    #[must_use]
    pub fn raw(&self) -> CUcontext {
        self.inner.raw
    }

    /// Runs `body` with the context current on this thread, then makes the former one current again.
    ///
    /// The methods of this crate do this themselves. Use it for calls of other libraries that read the
    /// current context (NCCL, cuBLAS, direct calls of the table). If the context is current already, it costs
    /// one read of the driver's thread state. Calls nest, so contexts are always restored in reverse order. A
    /// panic of `body` restores the context too.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuCtxGetCurrent` or `cuCtxPushCurrent_v2`; `body` has not run then.
    #[doc(alias = "cuCtxSetCurrent")]
    #[doc(alias = "cuCtxPushCurrent")]
    #[inline(always)]
    pub fn with_current<R>(&self, body: impl FnOnce() -> R) -> Result<R> {
        let _current = self.enter()?;
        Ok(body())
    }

    /// Like [`with_current`](Self::with_current), for a scope of this crate. Guards dropped in another order
    /// than scopes end would restore the wrong context, so no guard leaves the crate.
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
        // SAFETY: `self` keeps the context retained, and the guard that pops it borrows `self`.
        unsafe { call!(self.api(), cuCtxPushCurrent_v2(self.raw())) }
    }

    /// Free and total memory of the device in bytes. Free memory changes at any time, since other processes
    /// share the device.
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

    /// Blocks until everything enqueued in the context, on every stream, is done.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuCtxSynchronize`, also for what earlier asynchronous work
    /// did wrong.
    #[doc(alias = "cuCtxSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.enter()?;
        // SAFETY: takes no pointer.
        unsafe { call!(self.api(), cuCtxSynchronize()) }
    }

    /// Lets kernels and copies of this context reach the memory that `peer` allocates (not mappings of
    /// [`vmm`](crate::vmm), which carry their own access). It is one-way, and done once: asking again is no error.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) with `CUDA_ERROR_PEER_ACCESS_UNSUPPORTED` or
    /// `CUDA_ERROR_TOO_MANY_PEERS`.
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

    /// Takes back what [`enable_peer_access`](Self::enable_peer_access) gave; no error if nothing was given.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuCtxDisablePeerAccess`.
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

    /// The lowest and the highest priority a stream can have; the highest is the smallest number.
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

    /// The flags of the context.
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

    /// A number that no other context of the process has or had.
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

    /// A limit of the context: most are bytes (`CU_LIMIT_STACK_SIZE`, per thread; `CU_LIMIT_PRINTF_FIFO_SIZE`;
    /// `CU_LIMIT_MALLOC_HEAP_SIZE`).
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuCtxGetLimit`: `CUDA_ERROR_UNSUPPORTED_LIMIT` for one that the
    /// device does not have, `CUDA_ERROR_INVALID_VALUE` for one that the driver does not know.
    #[doc(alias = "cuCtxGetLimit")]
    pub fn limit(&self, limit: CUlimit) -> Result<usize> {
        let _current = self.enter()?;
        let mut value = 0;
        // SAFETY: writes one size, to a local that outlives the call.
        unsafe { call!(self.api(), cuCtxGetLimit(&mut value, limit)) }?;
        Ok(value)
    }

    /// Asks for another limit; the driver may round it, so that [`limit`](Self::limit) tells another number.
    ///
    /// # Errors
    /// As [`limit`](Self::limit), from `cuCtxSetLimit`; `CUDA_ERROR_OUT_OF_MEMORY`.
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
        // SAFETY: pairs with the retain that made `self`; nothing made from the context is alive, since
        // everything made from it holds a clone.
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

/// Keeps a context current on this thread; made by [`Context::enter`].
#[derive(Debug)]
#[must_use = "the context is current only while the guard lives"]
pub(crate) struct Current<'a> {
    context: &'a Context,
    pushed: bool,
    /// Which context is current is a property of the thread.
    thread: PhantomData<*const ()>,
}

impl Current<'_> {
    #[cold]
    fn pop(&mut self) {
        let mut popped = std::ptr::null_mut();
        // SAFETY: pairs with the push of `enter`, on the same thread, since the guard is not `Send`.
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

//! Events: points in a stream that others can wait for.

use std::ffi::c_char;
use std::fmt;

use bitflags::bitflags;
use cuda_driver_sys::{CUevent, CUipcEventHandle};

use crate::call::{call, code, ready};
use crate::{Context, Result, teardown};

bitflags! {
    /// Flags for creating an event.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct EventFlags: u32 {
        /// A host thread that waits sleeps instead of spinning.
        const BLOCKING_SYNC = 1;
        /// The event takes no time stamp, which makes recording and waiting cheaper.
        const DISABLE_TIMING = 2;
        /// The event can be shared with another process; needs [`DISABLE_TIMING`](Self::DISABLE_TIMING).
        const INTERPROCESS = 4;
        const _ = !0;
    }
}

/// A point in a stream. Until it is recorded for the first time it counts as complete.
pub struct Event {
    context: Context,
    raw: CUevent,
}

// SAFETY: an event's handle may be used from every thread.
unsafe impl Send for Event {}
// SAFETY: as above; the driver locks what it shares between threads.
unsafe impl Sync for Event {}

impl Event {
    /// Makes an event; allowed while a stream captures.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuEventCreate`.
    #[doc(alias = "cuEventCreate")]
    pub fn new(context: &Context, flags: EventFlags) -> Result<Self> {
        let _current = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle, to a local that outlives the call.
        unsafe { call!(context.api(), cuEventCreate(&mut raw, flags.bits())) }?;
        Ok(Self { context: context.clone(), raw })
    }

    /// The driver's handle, valid while this event lives.
    #[must_use]
    pub fn raw(&self) -> CUevent {
        self.raw
    }

    /// The context the event was made in.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns true if all work before the last record is done.
    ///
    /// While any stream captures in global mode this call is refused and *ends that capture in failure*, unless
    /// the thread holds a [`RelaxedCapture`](crate::graph::RelaxedCapture).
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuEventQuery`, also for what earlier asynchronous work did
    /// wrong.
    #[doc(alias = "cuEventQuery")]
    pub fn query(&self) -> Result<bool> {
        // SAFETY: the event is alive.
        let code = unsafe { code!(self.context.api(), cuEventQuery(self.raw)) }?;
        ready(self.context.api(), "cuEventQuery", code)
    }

    /// Blocks the calling thread until everything before the last record is done.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuEventSynchronize`, also for what earlier asynchronous work
    /// did wrong.
    #[doc(alias = "cuEventSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the event is alive.
        unsafe { call!(self.context.api(), cuEventSynchronize(self.raw)) }
    }

    /// The time from `earlier` to this event in µs (the device's clock resolves about 0.5 µs); both must have
    /// been recorded and be complete.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) with `CUDA_ERROR_INVALID_HANDLE` for an event without timing or
    /// never recorded, `CUDA_ERROR_NOT_READY` for one that is not complete;
    /// [`Error::DifferentDrivers`](crate::Error::DifferentDrivers).
    #[doc(alias = "cuEventElapsedTime")]
    pub fn elapsed_us(&self, earlier: &Event) -> Result<f64> {
        self.context.driver().require_same("the earlier event", earlier.context.driver(), "the event")?;
        let mut milliseconds = 0f32;
        // SAFETY: both events are alive; writes one float, to a local that outlives the call.
        unsafe { call!(self.context.api(), cuEventElapsedTime(&mut milliseconds, earlier.raw, self.raw)) }?;
        Ok(f64::from(milliseconds) * 1e3)
    }

    /// Names the event to other processes of the host; it must have been made with
    /// [`INTERPROCESS`](EventFlags::INTERPROCESS) and stay until they have dropped theirs.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuIpcGetEventHandle`: `CUDA_ERROR_INVALID_HANDLE` or
    /// `CUDA_ERROR_INVALID_VALUE` for an event made otherwise.
    #[doc(alias = "cuIpcGetEventHandle")]
    pub fn export_ipc(&self) -> Result<IpcEventHandle> {
        let _current = self.context.enter()?;
        let mut handle = CUipcEventHandle { reserved: [0; 64] };
        // SAFETY: the event is alive; writes 64 bytes, to a local that outlives the call.
        unsafe { call!(self.context.api(), cuIpcGetEventHandle(&mut handle, self.raw)) }?;
        Ok(IpcEventHandle(handle.reserved.map(|byte| byte.to_ne_bytes()[0])))
    }

    /// Opens the event that another process exported. It has no timing.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuIpcOpenEventHandle`: `CUDA_ERROR_INVALID_CONTEXT` for a handle
    /// of this same process, `CUDA_ERROR_MAP_FAILED`, `CUDA_ERROR_INVALID_HANDLE`.
    #[doc(alias = "cuIpcOpenEventHandle")]
    pub fn open_ipc(context: &Context, handle: IpcEventHandle) -> Result<Self> {
        let _current = context.enter()?;
        let handle = CUipcEventHandle { reserved: handle.0.map(|byte| c_char::from_ne_bytes([byte])) };
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle, to a local that outlives the call; the driver checks the name.
        unsafe { call!(context.api(), cuIpcOpenEventHandle(&mut raw, handle)) }?;
        Ok(Self { context: context.clone(), raw })
    }
}

/// Names an event to other processes of the host: plain bytes, to be sent by any means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct IpcEventHandle(pub [u8; 64]);

impl Drop for Event {
    #[doc(alias = "cuEventDestroy")]
    fn drop(&mut self) {
        // SAFETY: made by `new` and used by nobody after this; the driver frees it when it has completed.
        teardown::report(unsafe { call!(self.context.api(), cuEventDestroy_v2(self.raw)) });
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:p})", self.raw)
    }
}

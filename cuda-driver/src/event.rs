//! Events. An event marks a point in a stream. Other streams and host threads can wait until the stream reaches it.

use std::ffi::c_char;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use bitflags::bitflags;
use cuda_driver_sys::{CUevent, CUipcEventHandle};

use crate::call::{call, code, ready};
use crate::{Context, Result, teardown};

bitflags! {
    /// Flags for creating an event.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct EventFlags: u32 {
        /// A host thread that waits for the event sleeps instead of spinning.
        const BLOCKING_SYNC = 1;
        /// The event takes no time stamp, which makes recording and waiting cheaper.
        const DISABLE_TIMING = 2;
        /// The event can be shared with other processes. Requires [`DISABLE_TIMING`](Self::DISABLE_TIMING).
        const INTERPROCESS = 4;
        const _ = !0;
    }
}

/// An event, which marks the point in a stream at which it was last [recorded](crate::Stream::record). It counts as
/// complete until it is recorded for the first time.
pub struct Event {
    context: Context,
    raw: CUevent,
    /// The number of records that may be part of a capture. A record that is under way counts.
    maybe_captured: AtomicU64,
}

// SAFETY: an event's handle may be used from every thread.
unsafe impl Send for Event {}
// SAFETY: as above. The driver locks its own state.
unsafe impl Sync for Event {}

impl Event {
    /// Makes an event. This is allowed while a stream captures.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuEventCreate`.
    #[doc(alias = "cuEventCreate")]
    pub fn new(context: &Context, flags: EventFlags) -> Result<Self> {
        let _current = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle, to a local that outlives the call.
        unsafe { call!(context.api(), cuEventCreate(&mut raw, flags.bits())) }?;
        Ok(Self { context: context.clone(), raw, maybe_captured: AtomicU64::new(0) })
    }

    /// Returns true if one of the event's records may be part of a capture. A record by another library is not seen.
    #[inline]
    pub(crate) fn may_be_captured(&self) -> bool {
        self.maybe_captured.load(Ordering::SeqCst) > 0
    }

    /// Counts a record, which begins after this call, as one that may be part of a capture.
    #[inline]
    pub(crate) fn begin_record(&self) {
        self.maybe_captured.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes back [`begin_record`](Self::begin_record), because that record is not part of a capture.
    #[inline]
    pub(crate) fn end_uncaptured_record(&self) {
        self.maybe_captured.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns the driver's handle, which is valid while this event lives.
    #[must_use]
    pub fn raw(&self) -> CUevent {
        self.raw
    }

    /// Returns the context in which the event was made.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns true if all work before the last record has completed, or if the event was never recorded. Does not
    /// block.
    ///
    /// The driver refuses this call during a capture in [global](crate::graph::CaptureMode::Global) mode, and during a
    /// capture in [thread-local](crate::graph::CaptureMode::ThreadLocal) mode that the calling thread began. A refused
    /// call also *invalidates the capture*. The driver accepts the call while the thread holds a
    /// [`RelaxedCapture`](crate::graph::RelaxedCapture).
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuEventQuery`, also for an error of earlier asynchronous work. In
    /// every mode, `CUDA_ERROR_CAPTURED_EVENT` if the last record is part of an open capture, which the call then
    /// invalidates; `CUDA_ERROR_INVALID_VALUE` if that capture has ended.
    #[doc(alias = "cuEventQuery")]
    pub fn query(&self) -> Result<bool> {
        // SAFETY: the event is alive.
        let code = unsafe { code!(self.context.api(), cuEventQuery(self.raw)) }?;
        ready(self.context.api(), "cuEventQuery", code)
    }

    /// Blocks the calling thread until all work before the last record has completed. The driver refuses this call in
    /// the same cases as [`query`](Self::query), and invalidates the same captures.
    ///
    /// # Errors
    /// As [`query`](Self::query), from `cuEventSynchronize`.
    #[doc(alias = "cuEventSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the event is alive.
        unsafe { call!(self.context.api(), cuEventSynchronize(self.raw)) }
    }

    /// Returns the time from `earlier` to this event in µs, with a resolution of about 0.5 µs. Both events must be of
    /// one device, recorded outside a capture, and complete.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuEventElapsedTime`: `CUDA_ERROR_INVALID_HANDLE` if an event has
    /// no timing or was never recorded, `CUDA_ERROR_NOT_READY` if one is not complete;
    /// [`Error::DifferentDrivers`](crate::Error::DifferentDrivers).
    #[doc(alias = "cuEventElapsedTime")]
    pub fn elapsed_us(&self, earlier: &Event) -> Result<f64> {
        self.context.driver().require_same("the earlier event", earlier.context.driver(), "the event")?;
        let mut milliseconds = 0f32;
        // SAFETY: both events are alive; writes one float, to a local that outlives the call.
        unsafe { call!(self.context.api(), cuEventElapsedTime(&mut milliseconds, earlier.raw, self.raw)) }?;
        Ok(f64::from(milliseconds) * 1e3)
    }

    /// Returns a handle with which other processes of the host can open the event. The event must have been made with
    /// [`INTERPROCESS`](EventFlags::INTERPROCESS). It must live until the other processes have dropped the events
    /// that they opened.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuIpcGetEventHandle`: `CUDA_ERROR_INVALID_HANDLE` or
    /// `CUDA_ERROR_INVALID_VALUE` if the event was made without that flag.
    #[doc(alias = "cuIpcGetEventHandle")]
    pub fn export_ipc(&self) -> Result<IpcEventHandle> {
        let _current = self.context.enter()?;
        let mut handle = CUipcEventHandle { reserved: [0; 64] };
        // SAFETY: the event is alive; writes 64 bytes, to a local that outlives the call.
        unsafe { call!(self.context.api(), cuIpcGetEventHandle(&mut handle, self.raw)) }?;
        Ok(IpcEventHandle(handle.reserved.map(|byte| byte.to_ne_bytes()[0])))
    }

    /// Opens an event that another process exported. The event has no timing.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuIpcOpenEventHandle`: `CUDA_ERROR_INVALID_CONTEXT` for a handle
    /// that this process exported itself, `CUDA_ERROR_MAP_FAILED` if the driver cannot map the event,
    /// `CUDA_ERROR_INVALID_HANDLE` if `handle` is not the handle of an event.
    #[doc(alias = "cuIpcOpenEventHandle")]
    pub fn open_ipc(context: &Context, handle: IpcEventHandle) -> Result<Self> {
        let _current = context.enter()?;
        let handle = CUipcEventHandle { reserved: handle.0.map(|byte| c_char::from_ne_bytes([byte])) };
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle, to a local that outlives the call. The driver checks the IPC handle.
        unsafe { call!(context.api(), cuIpcOpenEventHandle(&mut raw, handle)) }?;
        // No process can capture a record of an event that processes share. So no earlier record needs to be counted.
        Ok(Self { context: context.clone(), raw, maybe_captured: AtomicU64::new(0) })
    }
}

/// A handle with which other processes of the host can open an event. It is plain bytes, which can be sent by any
/// means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct IpcEventHandle(pub [u8; 64]);

impl Drop for Event {
    #[doc(alias = "cuEventDestroy")]
    fn drop(&mut self) {
        // SAFETY: `self` owns the event, and nobody uses it after this. If the event is not complete, the driver frees
        // it later.
        teardown::report(unsafe { call!(self.context.api(), cuEventDestroy_v2(self.raw)) });
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:p})", self.raw)
    }
}

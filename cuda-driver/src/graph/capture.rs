//! Stream capture: the guard of an open capture, and the capture mode of a thread.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use cuda_driver_sys::{CUresult, CUstreamCaptureMode, CUstreamCaptureStatus};

use super::Graph;
use super::kept::OpenCapture;
use super::watch::CountedCapture;
use crate::call::call;
use crate::{Context, Driver, Result, Stream, stream, teardown};

/// The threads whose calls the driver may refuse while a capture is open.
///
/// The refused calls are those that cannot be part of a graph, such as allocating device memory, querying an event or
/// unloading a module. Loading a module and virtual memory calls are not among them. A refused call also invalidates
/// the capture. A thread that holds a [`RelaxedCapture`] is exempt in every mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CaptureMode {
    /// The driver refuses these calls on every thread of the process.
    Global,
    /// The driver refuses these calls on the thread that began the capture.
    ThreadLocal,
    /// The driver refuses none of these calls.
    Relaxed,
}

impl CaptureMode {
    fn raw(self) -> CUstreamCaptureMode {
        match self {
            Self::Global => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            Self::ThreadLocal => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            Self::Relaxed => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
        }
    }
}

/// The capture state of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CaptureStatus {
    /// The stream does not capture: work enqueued on it runs.
    None,
    /// The stream captures: work enqueued on it is recorded.
    Active,
    /// The stream is in a capture that a refused call invalidated. The capture must still be ended. Also stands for a
    /// status that this crate does not know.
    Invalidated,
}

impl CaptureStatus {
    #[inline]
    fn of(status: CUstreamCaptureStatus) -> Self {
        match status {
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => Self::None,
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE => Self::Active,
            _ => Self::Invalidated,
        }
    }
}

/// The capture state of a stream, and the capture that it is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct CaptureInfo {
    /// The capture state.
    pub status: CaptureStatus,
    /// The number of the capture; `None` unless the status is [`Active`](CaptureStatus::Active). The number is the
    /// same for all streams in the capture, and no other capture of the process has it.
    pub id: Option<u64>,
}

/// Returns true if a stream of `context` captures, also if its capture is invalidated. Checks the streams with a live
/// handle of this crate, and all blocking streams, also those of other libraries. Does not find a capture of another
/// library on a non-blocking stream without such a handle.
///
/// # Errors
/// As [`Stream::capture_status`], except that `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT` shows a capture and is not an error.
pub fn is_capturing(context: &Context) -> Result<bool> {
    for stream in stream::alive(context) {
        if stream.capture_status()? != CaptureStatus::None {
            return Ok(true);
        }
    }
    match Stream::legacy_default(context).capture_status() {
        Ok(status) => Ok(status != CaptureStatus::None),
        // The driver returns this error if a blocking stream captures.
        Err(error) if error.code() == Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) => Ok(true),
        Err(error) => Err(error),
    }
}

impl Stream {
    /// Returns the capture state of the stream.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuStreamIsCapturing`: `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT` for
    /// the legacy default stream while a blocking stream of the context captures.
    #[doc(alias = "cuStreamIsCapturing")]
    #[inline(always)]
    pub fn capture_status(&self) -> Result<CaptureStatus> {
        let _current = self.enter_if_implicit()?;
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is alive; writes one enum, to a local that outlives the call.
        unsafe { call!(self.api(), cuStreamIsCapturing(self.raw(), &mut status)) }?;
        Ok(CaptureStatus::of(status))
    }

    /// Returns the capture state of the stream, and the number of the capture that it is part of.
    ///
    /// # Errors
    /// As [`capture_status`](Self::capture_status), from `cuStreamGetCaptureInfo_v2`.
    #[doc(alias = "cuStreamGetCaptureInfo")]
    pub fn capture_info(&self) -> Result<CaptureInfo> {
        let _current = self.enter_if_implicit()?;
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let mut id = 0;
        let (graph, nodes, count) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the stream is alive; writes an enum and a number, to locals that outlive the call, and nothing
        // through null.
        unsafe {
            call!(
                self.api(),
                cuStreamGetCaptureInfo_v2(self.raw(), &mut status, &mut id, graph, nodes, count)
            )
        }?;
        let status = CaptureStatus::of(status);
        Ok(CaptureInfo { status, id: (status == CaptureStatus::Active).then_some(id) })
    }

    /// Begins a capture: work enqueued on the stream is recorded instead of run, until [`Capture::end`].
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuStreamBeginCapture_v2`, for example
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` for the legacy default stream, or `CUDA_ERROR_ILLEGAL_STATE` for a
    /// stream that captures already; or from `cuStreamGetCaptureInfo_v2`. [`Error::Missing`](crate::Error::Missing) if
    /// the driver lacks `cuStreamEndCapture`. After an error, this call has left no capture open.
    #[doc(alias = "cuStreamBeginCapture")]
    pub fn begin_capture(&self, mode: CaptureMode) -> Result<Capture> {
        let _current = self.enter_if_implicit()?;
        // Without this function the capture could not be ended.
        let _end = self.api().cuStreamEndCapture()?;
        let open = &self.context().driver().captures;
        // Counted before the capture begins, so the count is never zero while work is captured.
        open.fetch_add(1, Ordering::Relaxed);
        let (counted, _call) = (CountedCapture::begin(), self.count_capture_call());
        // SAFETY: the stream is alive.
        let begun = unsafe { call!(self.api(), cuStreamBeginCapture_v2(self.raw(), mode.raw())) };
        begun.inspect_err(|_| _ = open.fetch_sub(1, Ordering::Relaxed))?;
        let mut capture = Capture {
            stream: self.clone(),
            ended: false,
            open: None,
            counted: Some(counted),
            thread: PhantomData,
        };
        capture.open = OpenCapture::begin(self)?;
        Ok(capture)
    }
}

/// An open capture. Dropping it without [`end`](Self::end) ends the capture and discards the recorded work.
///
/// A capture cannot be sent to another thread: in every mode but [`Relaxed`](CaptureMode::Relaxed), the driver requires
/// that a capture ends on the thread on which it began. This does not compile:
/// ```compile_fail,E0277
/// fn elsewhere(capture: cuda_driver::graph::Capture) {
///     std::thread::spawn(move || capture.end());
/// }
/// ```
/// A capture can be ended only once. This does not compile:
/// ```compile_fail,E0382
/// fn twice(capture: cuda_driver::graph::Capture) {
///     let first = capture.end();
///     let second = capture.end();
/// }
/// ```
#[must_use = "dropping the capture throws away what it recorded"]
pub struct Capture {
    stream: Stream,
    ended: bool,
    /// The entry that collects the objects the graph will hold. `None` after `end` took it, after `finish` leaked it,
    /// or if the capture was already invalidated when `begin_capture` queried its id.
    open: Option<OpenCapture>,
    /// `None` only if the capture cannot be ended and counts as open for ever.
    counted: Option<CountedCapture>,
    thread: PhantomData<*const ()>,
}

impl Capture {
    /// Ends the capture, and returns the graph of the recorded work.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuStreamEndCapture`: `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED` if a
    /// refused call invalidated the capture, `CUDA_ERROR_STREAM_CAPTURE_UNJOINED` if this stream does not wait for the
    /// work of another stream that became part of the capture. The capture has ended even then. But if the context of
    /// the per-thread default stream cannot be made current, the capture stays open for ever.
    #[doc(alias = "cuStreamEndCapture")]
    pub fn end(mut self) -> Result<Graph> {
        let mut graph = self.finish()?;
        graph.kept = self.open.take().map(OpenCapture::take).unwrap_or_default();
        Ok(graph)
    }

    fn finish(&mut self) -> Result<Graph> {
        self.ended = true;
        let stream = &self.stream;
        let current = stream.enter_if_implicit();
        if current.is_err() {
            // The capture cannot be ended without its context, so it stays open in the driver. It counts as open for
            // ever, and the objects that it needs stay alive.
            std::mem::forget((self.open.take(), self.counted.take()));
        }
        let _current = current?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the stream is alive; writes one handle, to a local that outlives the call.
        let ended = unsafe { call!(stream.api(), cuStreamEndCapture(stream.raw(), &mut raw)) };
        // The stream does not capture any more, even if the call failed.
        stream.context().driver().captures.fetch_sub(1, Ordering::Relaxed);
        ended?;
        // SAFETY: the driver made the graph for this call, so nobody else owns it. The callers that enqueued the
        // captured work promised to keep the contract of asynchronous calls at every launch. `end` makes the graph hold
        // the modules of its kernels.
        Ok(unsafe { Graph::from_raw(stream.context(), raw) })
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if !self.ended {
            // The errors of an invalidated or unjoined capture are not reported, since the capture is discarded anyway.
            let abandoned = self.finish().map(drop);
            let code = abandoned.as_ref().err().and_then(crate::Error::code);
            if !matches!(
                code,
                Some(
                    CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                        | CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                )
            ) {
                teardown::report(abandoned);
            }
        }
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Capture({:?})", self.stream)
    }
}

/// Keeps the capture mode of this thread relaxed, so the driver does not refuse calls of this thread because of the
/// [mode](CaptureMode) of an open capture. Made by [`RelaxedCapture::enter`].
#[derive(Debug)]
#[must_use = "the thread's capture mode is relaxed only while the guard lives"]
pub struct RelaxedCapture {
    driver: Driver,
    former: CUstreamCaptureMode,
    /// Makes the type neither `Send` nor `Sync`, because each thread has its own mode.
    thread: PhantomData<*const ()>,
}

impl RelaxedCapture {
    /// Sets this thread's capture mode to relaxed. Dropping the guard restores the former mode, so drop nested guards
    /// in reverse order. Use the guard for calls that are not part of a capture but may run during one, such as an
    /// allocator's calls for memory, or a watchdog's queries of events.
    ///
    /// The guard cannot be sent to another thread. This does not compile:
    /// ```compile_fail,E0277
    /// fn elsewhere(guard: cuda_driver::graph::RelaxedCapture) {
    ///     std::thread::spawn(move || drop(guard));
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuThreadExchangeStreamCaptureMode`.
    #[doc(alias = "cuThreadExchangeStreamCaptureMode")]
    pub fn enter(driver: &Driver) -> Result<Self> {
        let former = exchange(driver, CaptureMode::Relaxed.raw())?;
        Ok(Self { driver: driver.clone(), former, thread: PhantomData })
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        teardown::report(exchange(&self.driver, self.former).map(drop));
    }
}

fn exchange(driver: &Driver, mode: CUstreamCaptureMode) -> Result<CUstreamCaptureMode> {
    let mut mode = mode;
    // SAFETY: reads and writes one enum, in a local that outlives the call.
    unsafe { call!(driver.api(), cuThreadExchangeStreamCaptureMode(&mut mode)) }?;
    Ok(mode)
}

//! Order between streams: events, and waits for them.

use super::Stream;
use crate::call::call;
use crate::graph::{Uncaptured, order_after, record_uncaptured};
use crate::{Error, Event, Result, device};

impl Stream {
    /// Records `event`: the event is complete when all work enqueued on the stream so far is done. This replaces an
    /// earlier record of the event.
    ///
    /// # Errors
    /// [`Error::DifferentDevices`] or [`Error::DifferentDrivers`] if the event is of another context than the stream;
    /// [`Error::Driver`] from `cuEventRecord`.
    #[doc(alias = "cuEventRecord")]
    #[inline(always)]
    pub fn record(&self, event: &Event) -> Result<()> {
        if event.context() != self.context() {
            return Err(self.cannot_record(event));
        }
        let _current = self.enter_if_implicit()?;
        let uncaptured = Uncaptured::before(self);
        event.begin_record();
        // SAFETY: the event and the stream are alive.
        let recorded = unsafe { call!(self.api(), cuEventRecord(event.raw(), self.raw())) };
        if uncaptured.holds(self) {
            event.end_uncaptured_record();
        }
        recorded
    }

    #[cold]
    fn cannot_record(&self, event: &Event) -> Error {
        device::mismatch(
            ("the event", event.context().device()),
            ("the stream that should record it", self.context().device()),
        )
    }

    /// Makes an event without timing, and [records](Self::record) it outside of any capture. The event is complete when
    /// all work enqueued on the stream so far is done. Another stream that waits for it joins no capture.
    ///
    /// # Errors
    /// [`Error::WhileCapturing`] if the stream captures; [`Error::CaptureRace`] if another thread may have made it part
    /// of a capture during the call; [`Error::Driver`] from `cuStreamIsCapturing`, `cuEventCreate` or `cuEventRecord`.
    #[doc(alias = "cuEventRecord")]
    pub fn record_uncaptured(&self) -> Result<Event> {
        record_uncaptured(self)
    }

    /// Enqueues a wait: later work of the stream starts only when the last record of `event` is complete. The host does
    /// not wait. The event may be of another device.
    ///
    /// Waiting for an event that a capturing stream recorded adds this stream to that capture.
    ///
    /// # Errors
    /// [`Error::DifferentDrivers`]; [`Error::Driver`] from `cuStreamWaitEvent`.
    #[doc(alias = "cuStreamWaitEvent")]
    pub fn wait(&self, event: &Event) -> Result<()> {
        let call = self.count_capture_call();
        let was_captured = event.may_be_captured();
        self.wait_uncounted(event)?;
        if !was_captured && !event.may_be_captured() {
            call.take_back();
        }
        Ok(())
    }

    /// Enqueues a wait for all work that is enqueued on `other` so far. The host does not wait. Neither stream may
    /// capture. `other` may be of another device.
    ///
    /// # Errors
    /// [`Error::WhileCapturing`] if one of the streams captures; [`Error::CaptureRace`] if another thread may have made
    /// one of them part of a capture during the call. Then the wait may be missing, or part of that capture.
    /// [`Error::DifferentDrivers`]; [`Error::Driver`] from calls on streams and events.
    pub fn wait_stream(&self, other: &Stream) -> Result<()> {
        order_after(self, other)
    }

    /// Does the work of [`wait`](Self::wait) without [`count_capture_call`](Self::count_capture_call). The caller must
    /// count the call if a capture other than this stream's own may have recorded the event.
    pub(crate) fn wait_uncounted(&self, event: &Event) -> Result<()> {
        let (ours, theirs) = (self.context().driver(), event.context().driver());
        ours.require_same("the event", theirs, "the stream that should wait for it")?;
        let _current = self.enter_if_implicit()?;
        // SAFETY: the event and the stream are alive; the driver keeps its own reference to the event's record.
        unsafe { call!(self.api(), cuStreamWaitEvent(self.raw(), event.raw(), 0)) }
    }
}

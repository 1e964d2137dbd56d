//! Translates the allocator's numbers of streams and events to the driver's streams and events.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cuda_driver::graph::{CaptureStatus, RelaxedCapture};
use cuda_driver::sys::CUstream;
use cuda_driver::{Context, Error, Event, EventFlags, Stream};

use super::captured_memory::CapturedMemory;
use crate::core::{CaptureCount, CapturedUses, EventError, EventId, StreamEvents, StreamId};

/// Orders the streams of one device by events of the driver. The events have no timing, and are reused.
///
/// A stream must be [registered](Self::register) before its number is passed to the allocator.
#[derive(Debug)]
pub struct DriverEvents {
    context: Context,
    streams: Mutex<Streams>,
    events: Mutex<HashMap<EventId, Arc<Event>>>,
    idle: Mutex<Vec<Arc<Event>>>,
    next: AtomicU64,
    captures: CaptureCount,
    graphs: Arc<CapturedMemory>,
}

/// The registered streams. Unlike the driver's handles, numbers are never reused. Otherwise memory that was freed on a
/// destroyed stream could be taken for memory of a new stream.
#[derive(Debug, Default)]
struct Streams {
    known: HashMap<StreamId, Stream>,
    /// Keyed by the handles of the context and the stream, because the default streams of all contexts have the same
    /// handle.
    by_handle: HashMap<(usize, usize), StreamId>,
    made: u64,
}

/// Returns the handles of a context and of one of its streams.
fn handles(context: &Context, stream: CUstream) -> (usize, usize) {
    (context.raw().addr(), stream.addr())
}

impl DriverEvents {
    /// Makes an object without streams, whose events are of `context`. The streams may be captured only by
    /// [`Stream::begin_capture`]: a request that the allocator serves from cached memory does not notice a capture that
    /// begins in another way.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self::with(context, context.driver().open_captures())
    }

    /// Like [`new`](Self::new), for streams whose captures may begin in any way. Every request queries the driver for
    /// the capture status of its stream.
    #[cfg(feature = "cudarc")]
    pub(crate) fn with_uncounted_captures(context: &Context) -> Self {
        Self::with(context, CaptureCount::of(&Arc::new(1.into())))
    }

    fn with(context: &Context, captures: CaptureCount) -> Self {
        Self {
            context: context.clone(),
            streams: Mutex::default(),
            events: Mutex::default(),
            idle: Mutex::default(),
            next: AtomicU64::new(0),
            captures,
            graphs: CapturedMemory::new(context),
        }
    }

    /// Registers a stream, and returns its number for the allocator: the same number if the stream is registered
    /// already. Keeps the stream alive until [`forget`](Self::forget). A number is never reused for another stream.
    pub fn register(&self, stream: &Stream) -> StreamId {
        let mut streams = lock(&self.streams);
        let handles = handles(stream.context(), stream.raw());
        if let Some(id) = streams.by_handle.get(&handles) {
            return *id;
        }
        streams.made += 1;
        let id = StreamId(streams.made);
        streams.by_handle.insert(handles, id);
        streams.known.insert(id, stream.clone());
        id
    }

    /// Returns the number of the [registered](Self::register) stream that has this driver handle in this object's
    /// context; `None` if there is none.
    #[must_use]
    pub fn number_of(&self, handle: CUstream) -> Option<StreamId> {
        lock(&self.streams).by_handle.get(&handles(&self.context, handle)).copied()
    }

    /// Removes a stream, and drops the handle that kept it alive. From now on, `is_registered` returns false for the
    /// stream's number, and the other calls of this object with it fail. Memory that the allocator has cached for this
    /// number stays cached until a request needs it, or until the program calls
    /// [`Allocator::trim_to`](crate::core::Allocator::trim_to) or
    /// [`Allocator::empty_cache`](crate::core::Allocator::empty_cache). To release it at once, call
    /// [`Allocator::forget_stream`](crate::core::Allocator::forget_stream) before this function.
    pub fn forget(&self, stream: StreamId) {
        let mut streams = lock(&self.streams);
        let gone = streams.known.remove(&stream);
        if let Some(gone) = &gone {
            streams.by_handle.remove(&handles(gone.context(), gone.raw()));
        }
        drop(streams);
    }

    fn stream(&self, id: StreamId, call: &'static str) -> Result<Stream, EventError> {
        lock(&self.streams)
            .known
            .get(&id)
            .cloned()
            .ok_or_else(|| EventError { call, source: UnknownStream(id).into() })
    }

    fn event(&self, id: EventId, call: &'static str) -> Result<Arc<Event>, EventError> {
        lock(&self.events)
            .get(&id)
            .cloned()
            .ok_or_else(|| EventError { call, source: UnknownEvent(id).into() })
    }

    fn idle_event(&self) -> Result<Arc<Event>, EventError> {
        if let Some(event) = lock(&self.idle).pop() {
            return Ok(event);
        }
        Event::new(&self.context, EventFlags::DISABLE_TIMING).map(Arc::new).map_err(failed("cuEventCreate"))
    }
}

impl StreamEvents for DriverEvents {
    fn record(&self, stream: StreamId) -> Result<EventId, EventError> {
        const CALL: &str = "cuEventRecord";
        let stream = self.stream(stream, CALL)?;
        let event = self.idle_event()?;
        let id = EventId(self.next.fetch_add(1, Ordering::Relaxed));
        stream.record(&event).map_err(failed(CALL))?;
        lock(&self.events).insert(id, event);
        Ok(id)
    }

    fn query(&self, event: EventId) -> Result<bool, EventError> {
        const CALL: &str = "cuEventQuery";
        let event = self.event(event, CALL)?;
        let _relaxed = RelaxedCapture::enter(self.context.driver()).map_err(failed(CALL))?;
        event.query().map_err(failed(CALL))
    }

    fn wait(&self, stream: StreamId, event: EventId) -> Result<(), EventError> {
        const CALL: &str = "cuStreamWaitEvent";
        let (stream, event) = (self.stream(stream, CALL)?, self.event(event, CALL)?);
        stream.wait(&event).map_err(failed(CALL))
    }

    fn synchronize(&self, event: EventId) -> Result<(), EventError> {
        const CALL: &str = "cuEventSynchronize";
        let event = self.event(event, CALL)?;
        let _relaxed = RelaxedCapture::enter(self.context.driver()).map_err(failed(CALL))?;
        event.synchronize().map_err(failed(CALL))
    }

    fn synchronize_device(&self) -> Result<(), EventError> {
        const CALL: &str = "cuCtxSynchronize";
        let _relaxed = RelaxedCapture::enter(self.context.driver()).map_err(failed(CALL))?;
        self.context.synchronize().map_err(failed(CALL))
    }

    fn recycle(&self, event: EventId) {
        let event = lock(&self.events).remove(&event);
        lock(&self.idle).extend(event);
    }

    fn is_registered(&self, stream: StreamId) -> bool {
        lock(&self.streams).known.contains_key(&stream)
    }

    fn captures(&self) -> Option<CaptureCount> {
        Some(self.captures.clone())
    }

    fn report_captured_uses(&self, allocator: Weak<dyn CapturedUses>) {
        self.graphs.add(allocator);
    }

    fn note_allocation(&self, stream: StreamId, address: u64, bytes: u64) {
        if let Ok(stream) = self.stream(stream, "cuStreamGetCaptureInfo_v2") {
            self.graphs.note_allocation(&stream, address, bytes);
        }
    }

    fn is_capturing(&self, stream: StreamId) -> Result<bool, EventError> {
        const CALL: &str = "cuStreamIsCapturing";
        let stream = self.stream(stream, CALL)?;
        Ok(stream.capture_status().map_err(failed(CALL))? != CaptureStatus::None)
    }
}

/// The allocator passed the number of a stream that is not registered.
#[derive(Debug, thiserror::Error)]
#[error("{0} is not registered here, or was forgotten: register the stream before its number is used")]
struct UnknownStream(StreamId);

/// The allocator passed the number of an event that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("event {} was not recorded here, or was recycled", .0.0)]
struct UnknownEvent(EventId);

fn failed(call: &'static str) -> impl FnOnce(Error) -> EventError {
    move |error| EventError { call, source: error.into() }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

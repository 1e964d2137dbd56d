//! [`HostStreams`] with a hook of the test around their calls.

use std::fmt::Debug;

use caching_alloc::core::{CaptureCount, EventError, EventId, StreamEvents, StreamId};
use caching_alloc::host::HostStreams;

/// A call of [`StreamEvents`], with the stream that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Record(StreamId),
    Query,
    Wait(StreamId),
    Synchronize,
    SynchronizeDevice,
    Recycle,
    IsCapturing(StreamId),
}

/// Code of a test that runs around calls of the streams.
pub(crate) trait StreamHook: Debug + Send + Sync {
    /// Runs before each call.
    fn before(&self, _call: Call) {}

    /// Runs between the answer of `is_capturing` and its return to the allocator.
    fn after_is_capturing(&self) {}

    fn is_registered(&self, _stream: StreamId) -> bool {
        true
    }
}

/// [`HostStreams`] with a hook around their calls.
#[derive(Debug, Default)]
pub(crate) struct HookedStreams<H> {
    pub(crate) host: HostStreams,
    pub(crate) hook: H,
}

impl<H: StreamHook> HookedStreams<H> {
    fn enter(&self, call: Call) -> &HostStreams {
        self.hook.before(call);
        &self.host
    }
}

impl<H: StreamHook> StreamEvents for HookedStreams<H> {
    fn record(&self, stream: StreamId) -> Result<EventId, EventError> {
        self.enter(Call::Record(stream)).record(stream)
    }
    fn query(&self, event: EventId) -> Result<bool, EventError> {
        self.enter(Call::Query).query(event)
    }
    fn wait(&self, stream: StreamId, event: EventId) -> Result<(), EventError> {
        self.enter(Call::Wait(stream)).wait(stream, event)
    }
    fn synchronize(&self, event: EventId) -> Result<(), EventError> {
        self.enter(Call::Synchronize).synchronize(event)
    }
    fn synchronize_device(&self) -> Result<(), EventError> {
        self.enter(Call::SynchronizeDevice).synchronize_device()
    }
    fn recycle(&self, event: EventId) {
        self.enter(Call::Recycle).recycle(event);
    }
    fn is_registered(&self, stream: StreamId) -> bool {
        self.hook.is_registered(stream)
    }
    fn captures(&self) -> Option<CaptureCount> {
        self.host.captures()
    }
    fn is_capturing(&self, stream: StreamId) -> Result<bool, EventError> {
        let answer = self.enter(Call::IsCapturing(stream)).is_capturing(stream);
        self.hook.after_is_capturing();
        answer
    }
}

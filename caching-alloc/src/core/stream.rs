//! Streams and events as the allocator sees them: opaque numbers and a few calls.

use std::error::Error;
use std::fmt;
use std::sync::Weak;

use super::graph_use::GraphUse;

pub use cuda_driver::CaptureCount;

/// Identifies a stream, by a number that the implementation of [`StreamEvents`] chooses. The allocator only compares
/// numbers for equality.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StreamId(pub u64);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {:#x}", self.0)
    }
}

/// An event made by [`StreamEvents::record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId(pub u64);

/// The error of a call about a stream or an event.
#[derive(Debug, thiserror::Error)]
#[error("{call} failed")]
pub struct EventError {
    /// The call that failed.
    pub call: &'static str,
    /// The cause.
    #[source]
    pub source: Box<dyn Error + Send + Sync>,
}

/// The part of an allocator that is told which memory captured work uses.
pub trait CapturedUses: Send + Sync + fmt::Debug {
    /// Like [`Allocator::used_by_graph`](super::Allocator::used_by_graph).
    fn used_by_graph(&self, address: u64, bytes: u64, graph: &GraphUse) -> bool;
}

/// Events of streams, with which the allocator orders the uses of memory.
///
/// A hit is a request that cached memory serves. It calls none of these methods, except
/// [`is_capturing`](Self::is_capturing) while the counter that [`captures`](Self::captures) returned is not zero. The
/// allocator calls these methods only while it holds no lock that a hit takes.
pub trait StreamEvents: Send + Sync + fmt::Debug {
    /// Records an event, which marks the end of all work enqueued on `stream` so far. The caller owns the event until
    /// it calls [`recycle`](Self::recycle).
    ///
    /// # Errors
    /// The driver's error, for example that the stream is gone.
    fn record(&self, stream: StreamId) -> Result<EventId, EventError>;

    /// Returns true if the host can see that the work before the event has ended. Does not wait.
    ///
    /// # Errors
    /// The driver's error.
    fn query(&self, event: EventId) -> Result<bool, EventError>;

    /// Makes later work of `stream` wait, on the device, for the work before the event.
    ///
    /// # Errors
    /// The driver's error.
    fn wait(&self, stream: StreamId, event: EventId) -> Result<(), EventError>;

    /// Blocks the host until the work before the event has ended.
    ///
    /// # Errors
    /// The driver's error.
    fn synchronize(&self, event: EventId) -> Result<(), EventError>;

    /// Blocks the host until all work of the device has ended. Called if no event can be recorded on a stream, for
    /// example because the stream was destroyed, or if [`synchronize`](Self::synchronize) fails.
    ///
    /// # Errors
    /// The driver's error, for example that a stream is being captured.
    fn synchronize_device(&self) -> Result<(), EventError>;

    /// Takes an event back for reuse, whether it has completed or not.
    fn recycle(&self, event: EventId);

    /// Returns true if the implementation knows the stream. Called before a pool makes its first block for the
    /// stream, and when a use of a block by the stream is recorded. If it returns false, the request or the recording
    /// fails with [`AllocError::UnknownStream`](super::AllocError::UnknownStream).
    fn is_registered(&self, _stream: StreamId) -> bool {
        true
    }

    /// Returns a counter that is not zero while any stream may be captured. The implementation updates it without
    /// driver calls. Returns `None` if there is no such counter. Each pool calls this method once, and reads the
    /// counter on every request.
    ///
    /// While the counter is not zero, every request calls [`is_capturing`](Self::is_capturing), unless its pool is
    /// frozen or kept for a graph. While the counter is zero, or if there is none, only requests that find no free
    /// block in their stream's cache call `is_capturing`.
    fn captures(&self) -> Option<CaptureCount> {
        None
    }

    /// Called once by each new allocator that uses this object. If the implementation detects captured work, it calls
    /// [`CapturedUses::used_by_graph`] with the memory that this work uses. Does nothing by default: then the program
    /// calls [`Allocator::used_by_graph`](super::Allocator::used_by_graph).
    fn report_captured_uses(&self, _allocator: Weak<dyn CapturedUses>) {}

    /// Called after a request for `stream` was served from a frozen pool or a graph pool while the counter of
    /// [`captures`](Self::captures) was not zero. If the stream is being captured, the implementation reports the
    /// block's memory like memory that captured work uses. Does nothing by default.
    fn note_allocation(&self, _stream: StreamId, _address: u64, _bytes: u64) {}

    /// Returns true if `stream` is being captured into a graph. Events that are recorded on it during the capture
    /// cannot be queried.
    ///
    /// # Errors
    /// The driver's error.
    fn is_capturing(&self, stream: StreamId) -> Result<bool, EventError>;
}

//! Streams and events as the allocator sees them: opaque numbers and a few calls.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// A stream, by a number that its owner chose. The allocator compares them for equality only.
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

/// A failed call about a stream or an event.
#[derive(Debug, thiserror::Error)]
#[error("{call} failed")]
pub struct EventError {
    /// The call that failed.
    pub call: &'static str,
    /// The cause.
    #[source]
    pub source: Box<dyn Error + Send + Sync>,
}

/// Ordering between streams, and queries of it by the host.
///
/// A hit calls none of these methods, except [`is_capturing`](Self::is_capturing) while there are
/// [`captures`](Self::captures). They are never called with a lock held that a hit takes.
pub trait StreamEvents: Send + Sync + fmt::Debug {
    /// Marks the end of all work enqueued on `stream` so far. The caller owns the event until
    /// [`recycle`](Self::recycle).
    ///
    /// # Errors
    /// The driver's error, for example that the stream is gone.
    fn record(&self, stream: StreamId) -> Result<EventId, EventError>;

    /// Returns true if the marked work has ended, as far as the host can see. Does not wait.
    ///
    /// # Errors
    /// The driver's error.
    fn query(&self, event: EventId) -> Result<bool, EventError>;

    /// Lets later work of `stream` wait, on the device, for the marked work.
    ///
    /// # Errors
    /// The driver's error.
    fn wait(&self, stream: StreamId, event: EventId) -> Result<(), EventError>;

    /// Blocks the host until the marked work has ended.
    ///
    /// # Errors
    /// The driver's error.
    fn synchronize(&self, event: EventId) -> Result<(), EventError>;

    /// Blocks the host until all work of the device has ended: for streams that no longer take events.
    ///
    /// # Errors
    /// The driver's error, for example that a stream is being captured.
    fn synchronize_device(&self) -> Result<(), EventError>;

    /// Recycles an event, completed or not.
    fn recycle(&self, event: EventId);

    /// Returns true if the stream exists. Called when a pool first gets its number, and when a block's use by
    /// it is recorded.
    fn is_registered(&self, _stream: StreamId) -> bool {
        true
    }

    /// A counter that is non-zero while a stream captures, as far as is known without a driver call. The
    /// allocator gets it once and reads it on every hit. While it is non-zero, hits call
    /// [`is_capturing`](Self::is_capturing) too. `None`: only requests that miss are checked.
    fn captures(&self) -> Option<Arc<AtomicUsize>> {
        None
    }

    /// Returns true if `stream` is being captured into a graph, so no event of it can be queried.
    ///
    /// # Errors
    /// The driver's error.
    fn is_capturing(&self, stream: StreamId) -> Result<bool, EventError>;
}

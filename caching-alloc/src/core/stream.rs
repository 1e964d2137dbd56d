//! Streams and events as the allocator sees them: opaque numbers and five calls.

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

/// An event that [`StreamEvents::record`] made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId(pub u64);

/// A call about a stream or an event that failed.
#[derive(Debug, thiserror::Error)]
#[error("{call} failed")]
pub struct EventError {
    /// The call that failed.
    pub call: &'static str,
    /// What it said.
    #[source]
    pub source: Box<dyn Error + Send + Sync>,
}

/// Order between streams, and what the host knows of it.
///
/// None of this is called on a hit, but [`is_capturing`](Self::is_capturing) while there are
/// [`captures`](Self::captures); nor with a lock held that a hit takes.
pub trait StreamEvents: Send + Sync + fmt::Debug {
    /// Marks the end of all work enqueued on `stream` so far. The caller owns the event until
    /// [`recycle`](Self::recycle).
    ///
    /// # Errors
    /// Whatever the driver says, for instance that the stream is gone.
    fn record(&self, stream: StreamId) -> Result<EventId, EventError>;

    /// Whether the host can see that the marked work has ended. Does not wait.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn query(&self, event: EventId) -> Result<bool, EventError>;

    /// Lets later work of `stream` wait, on the device, for the marked work.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn wait(&self, stream: StreamId, event: EventId) -> Result<(), EventError>;

    /// Blocks the host until the marked work has ended.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn synchronize(&self, event: EventId) -> Result<(), EventError>;

    /// Blocks the host until all work of the device has ended: for streams that no longer take events.
    ///
    /// # Errors
    /// Whatever the driver says, for instance that something is being captured.
    fn synchronize_device(&self) -> Result<(), EventError>;

    /// Gives an event back, done or not.
    fn recycle(&self, event: EventId);

    /// Whether there is such a stream. Asked when a pool meets its number first, and when a block's use by it is recorded.
    fn knows(&self, _stream: StreamId) -> bool {
        true
    }

    /// A counter that is not 0 while a stream captures, as far as is known without asking the driver. The allocator
    /// asks for it once and reads it on every hit; while it is not 0, it calls [`is_capturing`](Self::is_capturing) for
    /// hits too. `None`: only requests that miss are checked.
    fn captures(&self) -> Option<Arc<AtomicUsize>> {
        None
    }

    /// Whether `stream` is being captured into a graph: no event of it can be queried then.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn is_capturing(&self, stream: StreamId) -> Result<bool, EventError>;
}

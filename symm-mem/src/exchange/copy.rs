//! Copies between the memory of two ranks.

use cuda_driver::{DevicePtr, Error, Stream};

/// A copy between the memory of two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RangeCopy {
    pub(super) to: DevicePtr,
    pub(super) from: DevicePtr,
    pub(super) bytes: usize,
}

/// Direction of a transfer, as seen by the rank that copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the peer's memory to this rank's.
    Get,
    /// From this rank's memory to the peer's.
    Put,
}

impl RangeCopy {
    /// Makes the copy between `own` memory of this rank and the `remote` memory of a peer.
    pub(super) fn new(direction: Direction, own: DevicePtr, remote: DevicePtr, bytes: usize) -> Self {
        let (to, from) = match direction {
            Direction::Get => (own, remote),
            Direction::Put => (remote, own),
        };
        Self { to, from, bytes }
    }

    /// Enqueues the copy.
    ///
    /// # Safety
    /// Both ranges stay mapped until the stream has passed the copy, and no other code accesses them in conflict with
    /// the copy until then.
    pub(super) unsafe fn enqueue(&self, stream: &Stream) -> Result<(), Error> {
        // SAFETY: the caller promises this.
        unsafe { stream.copy(self.to, self.from, self.bytes) }
    }
}

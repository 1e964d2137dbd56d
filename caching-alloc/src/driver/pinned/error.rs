//! Errors of pinned memory.

use crate::core::{AllocError, EventError, StreamId};

/// The error of allocating a block of pinned memory, or of accessing it on the host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinnedError {
    /// The allocator failed.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The block is not memory of the allocator's own source. It was borrowed from a pool with another source, or
    /// something other than the allocator released its segment.
    #[error(
        "the block at {address:#x} is not pinned memory of this allocator's source: let no pool with another source \
         lend to the default pool, and leave releases to the allocator"
    )]
    NotPinned {
        /// The address of the block's first byte.
        address: u64,
    },
    /// The host cannot wait for a stream that captures.
    #[error(
        "{stream} captures, so its work has no end to wait for: access the block before or after the capture"
    )]
    Capturing {
        /// The stream.
        stream: StreamId,
    },
    /// Waiting for earlier work failed: a stream is not registered any more, or the driver failed to return its capture
    /// status, to record an event or to wait for it.
    #[error(transparent)]
    Event(#[from] EventError),
}

//! Errors of pinned memory.

use crate::core::{AllocError, EventError, StreamId};

/// Why a block of pinned memory could not be allocated, or not be lent to the host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinnedError {
    /// The allocator's error.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The block is not of the allocator's own source: it was borrowed from a pool with another source, or its segment
    /// was released behind the allocator's back.
    #[error(
        "the block at {address:#x} is not pinned memory of this allocator's source: let no pool with another source \
         lend to the default pool, and leave releases to the allocator"
    )]
    NotPinned {
        /// The block's first byte.
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
    /// The end of the earlier work could not be awaited.
    #[error(transparent)]
    Event(#[from] EventError),
}

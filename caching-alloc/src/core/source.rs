//! Where segments come from.

use std::error::Error;
use std::fmt;

use super::size::UNIT;

/// Memory of one segment as its source handed it out.
///
/// The allocator gives it back to the same source unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentMemory {
    /// First byte, a device address; a multiple of 512.
    pub address: u64,
    /// Length in bytes: what was asked for.
    pub bytes: u64,
    /// The source's own name for it; the allocator does not look at it.
    pub token: u64,
}

impl SegmentMemory {
    /// One past the last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }
}

/// What a device has left, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Not in use by anybody.
    pub free: u64,
    /// All of the device's memory.
    pub total: u64,
}

/// Why a source could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// There is not enough memory. The allocator lets go of cached segments and asks again.
    #[error("the source has no {wanted} bytes left")]
    OutOfMemory {
        /// Bytes asked for.
        wanted: u64,
    },
    /// Anything else; asking again would not help.
    #[error("{call} failed")]
    Failed {
        /// The call that failed.
        call: &'static str,
        /// What it said.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The source broke its contract. What it gave was given back.
    #[error("asked for {wanted} bytes, the source gave {} at {:#x}, which {what}", given.bytes, given.address)]
    BadSegment {
        /// Bytes asked for.
        wanted: u64,
        /// What it gave.
        given: SegmentMemory,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// Asks `source` for `bytes` and checks what it gives.
pub(super) fn allocate(source: &dyn SegmentSource, bytes: u64) -> Result<SegmentMemory, SourceError> {
    let given = source.allocate(bytes)?;
    let what = if given.bytes != bytes {
        "is of another length"
    } else if given.address == 0 || !given.address.is_multiple_of(UNIT) {
        "is not a multiple of 512"
    } else if given.address.checked_add(given.bytes).is_none() {
        "wraps around the address space"
    } else {
        return Ok(given);
    };
    // The contract is broken already; a failure here tells nothing new.
    let _ = source.release(&given);
    Err(SourceError::BadSegment { wanted: bytes, given, what })
}

/// Upstream memory: device allocations, virtual memory with exportable handles, or plain numbers in tests.
///
/// The allocator calls a source only while it holds no lock that a hit takes, and never two calls of one
/// source at a time for one allocator. A source must not call back into the allocator.
pub trait SegmentSource: Send + Sync + fmt::Debug {
    /// Ordinal of the device whose memory this is.
    fn device(&self) -> u32;

    /// Sizes asked for are multiples of this (bytes, a power of two, at least 512).
    fn granularity(&self) -> u64 {
        2 << 20
    }

    /// Makes a segment of `bytes`, a multiple of [`granularity`](Self::granularity).
    ///
    /// # Errors
    /// [`SourceError::OutOfMemory`] when a smaller segment, or a later try, might succeed.
    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError>;

    /// Takes a segment back. All work that used it has ended on the device, and nobody holds it.
    ///
    /// # Errors
    /// After an error the memory is the source's to account for; the allocator reports it and forgets it.
    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError>;

    /// What the device has left; for error texts only.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn memory_info(&self) -> Result<MemoryInfo, SourceError>;
}

//! Where segments come from.

use std::error::Error;
use std::fmt;

use super::export::{ShareHandle, ShareKind};
use super::size::{MAX_BLOCK, UNIT};

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
    /// The source has no handles of that kind for the memory.
    #[error(
        "{} bytes at {:#x} have no handle of kind {kind:?} for other processes; use a pool whose source makes its memory \
         with such handles", memory.bytes, memory.address
    )]
    NotExportable {
        /// The memory.
        memory: SegmentMemory,
        /// The kind.
        kind: ShareKind,
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

/// The step of a source's segments, in bytes; a power of two and at least a unit, whatever it says.
pub(super) fn step(source: &dyn SegmentSource) -> u64 {
    source.granularity().clamp(UNIT, MAX_BLOCK).next_power_of_two()
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

    /// The same source as one of pages, if it is one: for re-mappable pools.
    fn as_pages(&self) -> Option<&dyn PageSource> {
        None
    }

    /// Whether its segments can be [exported](Self::export) in some way, as who lets others reach them needs.
    fn is_exportable(&self) -> bool {
        false
    }

    /// What another process needs to map the memory. The caller holds the segment.
    ///
    /// # Errors
    /// [`SourceError::NotExportable`] if there are no handles of that kind.
    fn export(&self, memory: &SegmentMemory, kind: ShareKind) -> Result<ShareHandle, SourceError> {
        Err(SourceError::NotExportable { memory: *memory, kind })
    }

    /// What the device has left; for error texts and reports. How much it has in all also bounds how far a segment
    /// exceeds the request that it is made for.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn memory_info(&self) -> Result<MemoryInfo, SourceError>;
}

/// Upstream memory whose pages can be mapped where they are needed.
///
/// A page is physical memory of its own; it can be mapped at several addresses at a time, of which the allocator uses one.
/// [`SegmentSource::release`] takes back a page together with the one mapping that it has then. Sizes and addresses are
/// multiples of [`granularity`](SegmentSource::granularity).
pub trait PageSource: SegmentSource {
    /// Reserves addresses without memory; returns the first.
    ///
    /// # Errors
    /// Whatever the driver says.
    fn reserve(&self, bytes: u64) -> Result<u64, SourceError>;

    /// Gives addresses back, at the latest when nothing is mapped there any more.
    fn unreserve(&self, address: u64, bytes: u64);

    /// Makes a page; returns the name that [`SegmentMemory::token`] has for it.
    ///
    /// # Errors
    /// [`SourceError::OutOfMemory`] when a smaller page, or a later try, might succeed.
    fn create(&self, bytes: u64) -> Result<u64, SourceError>;

    /// Takes back a page that is mapped nowhere.
    ///
    /// # Errors
    /// After an error the memory is the source's to account for.
    fn discard(&self, token: u64, bytes: u64) -> Result<(), SourceError>;

    /// Maps a page, whole, at reserved addresses where nothing is mapped. It cannot be used before
    /// [`enable`](Self::enable).
    ///
    /// # Errors
    /// Nothing is mapped then.
    fn map(&self, memory: &SegmentMemory) -> Result<(), SourceError>;

    /// Lets the device use what is mapped in a range.
    ///
    /// # Errors
    /// The range must be unmapped then.
    fn enable(&self, address: u64, bytes: u64) -> Result<(), SourceError>;

    /// Unmaps a range that holds whole pages; the pages stay. No work on the device uses these addresses.
    ///
    /// # Errors
    /// What was mapped is the source's to account for.
    fn unmap(&self, address: u64, bytes: u64) -> Result<(), SourceError>;
}

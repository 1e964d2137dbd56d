//! Sources of segments.

use std::error::Error;
use std::fmt;
use std::os::fd::OwnedFd;

use super::size::{MAX_BLOCK, UNIT};

/// Memory of one segment as its source returned it.
///
/// The allocator gives it back to the same source unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentMemory {
    /// First byte, a device address; a multiple of 512.
    pub address: u64,
    /// Length in bytes: the requested size.
    pub bytes: u64,
    /// The source's own identifier; the allocator does not interpret it.
    pub token: u64,
}

impl SegmentMemory {
    /// One past the last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }
}

/// The kind of handle that is sent to another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShareKind {
    /// A file descriptor, passed over a Unix socket of the host.
    PosixFd,
    /// Bytes that another process of the fabric can import.
    Fabric,
}

/// A handle that another process imports to map all of a segment's memory.
#[derive(Debug)]
#[non_exhaustive]
pub enum ShareHandle {
    /// A file descriptor.
    PosixFd(OwnedFd),
    /// Bytes for the fabric.
    Fabric([u8; 64]),
}

/// A device's memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Free memory.
    pub free: u64,
    /// All of the device's memory.
    pub total: u64,
}

/// Why a call of a source failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// There is not enough memory. The allocator releases cached segments and tries again.
    #[error("the source has no {wanted} bytes left")]
    OutOfMemory {
        /// Bytes asked for.
        wanted: u64,
    },
    /// Any other failure; a retry would not help.
    #[error("{call} failed")]
    Failed {
        /// The call that failed.
        call: &'static str,
        /// The cause.
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
    /// The source broke its contract. The memory that it returned was released.
    #[error("asked for {wanted} bytes, the source gave {} at {:#x}, which {what}", given.bytes, given.address)]
    BadSegment {
        /// Bytes asked for.
        wanted: u64,
        /// The memory that it returned.
        given: SegmentMemory,
        /// Description of the fault.
        what: &'static str,
    },
}

/// The step of a source's segments, in bytes: a power of two and at least a unit, whatever the source
/// reports.
pub(super) fn step(source: &dyn SegmentSource) -> u64 {
    source.granularity().clamp(UNIT, MAX_BLOCK).next_power_of_two()
}

/// Requests `bytes` from `source` and checks the result.
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
    // The contract is broken already, so another failure does not matter.
    let _ = source.release(&given);
    Err(SourceError::BadSegment { wanted: bytes, given, what })
}

/// Upstream memory: device allocations, virtual memory with exportable handles, or plain numbers in tests.
///
/// The allocator calls a source only while it holds no lock that a hit takes. For one allocator, it never
/// makes two calls of one source at the same time. A source must not call the allocator.
pub trait SegmentSource: Send + Sync + fmt::Debug {
    /// Ordinal of the device whose memory this is.
    fn device(&self) -> u32;

    /// Requested sizes are multiples of this (bytes, a power of two, at least 512).
    fn granularity(&self) -> u64 {
        2 << 20
    }

    /// Allocates a segment of `bytes`, a multiple of [`granularity`](Self::granularity).
    ///
    /// # Errors
    /// [`SourceError::OutOfMemory`] if a smaller segment, or a later try, might succeed.
    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError>;

    /// Releases a segment. All work that used it has ended on the device, and nobody holds it.
    ///
    /// # Errors
    /// After an error the source must account for the memory; the allocator reports the error and forgets the
    /// memory.
    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError>;

    /// Returns this source as a source of pages, if it is one: for re-mappable pools.
    fn as_pages(&self) -> Option<&dyn PageSource> {
        None
    }

    /// Returns true if its segments can be [exported](Self::export) in some way. Users that share segments
    /// with others need that.
    fn is_exportable(&self) -> bool {
        false
    }

    /// Exports a handle with which another process can map the memory. The caller holds the segment.
    ///
    /// # Errors
    /// [`SourceError::NotExportable`] if there are no handles of that kind.
    fn export(&self, memory: &SegmentMemory, kind: ShareKind) -> Result<ShareHandle, SourceError> {
        Err(SourceError::NotExportable { memory: *memory, kind })
    }

    /// Returns the device's memory, for error texts and reports. The total also limits the excess of a
    /// segment over its request.
    ///
    /// # Errors
    /// The driver's error.
    fn memory_info(&self) -> Result<MemoryInfo, SourceError>;
}

/// Upstream memory with pages that can be mapped at any address of a reserved range.
///
/// A page is physical memory of its own. It can be mapped at several addresses at a time, of which the
/// allocator uses one. [`SegmentSource::release`] releases a page together with the one mapping that it then
/// has. Sizes and addresses are multiples of [`granularity`](SegmentSource::granularity).
pub trait PageSource: SegmentSource {
    /// Reserves addresses without memory; returns the first one.
    ///
    /// # Errors
    /// The driver's error.
    fn reserve(&self, bytes: u64) -> Result<u64, SourceError>;

    /// Releases addresses, at the latest when nothing is mapped there any more.
    fn unreserve(&self, address: u64, bytes: u64);

    /// Makes a page; returns its [`SegmentMemory::token`].
    ///
    /// # Errors
    /// [`SourceError::OutOfMemory`] if a smaller page, or a later try, might succeed.
    fn create(&self, bytes: u64) -> Result<u64, SourceError>;

    /// Releases a page that is mapped nowhere.
    ///
    /// # Errors
    /// After an error the source must account for the memory.
    fn discard(&self, token: u64, bytes: u64) -> Result<(), SourceError>;

    /// Maps a page, whole, at reserved addresses where nothing is mapped. It cannot be used before
    /// [`enable`](Self::enable).
    ///
    /// # Errors
    /// On an error nothing is mapped.
    fn map(&self, memory: &SegmentMemory) -> Result<(), SourceError>;

    /// Lets the device access the pages mapped in a range.
    ///
    /// # Errors
    /// On an error the caller must unmap the range.
    fn enable(&self, address: u64, bytes: u64) -> Result<(), SourceError>;

    /// Unmaps a range that consists of whole pages; the pages stay. No work on the device uses these
    /// addresses.
    ///
    /// # Errors
    /// After an error the source must account for the mappings.
    fn unmap(&self, address: u64, bytes: u64) -> Result<(), SourceError>;
}

//! Sources of memory: the traits through which an allocator gets segments and pages.

use std::error::Error;
use std::fmt;
use std::os::fd::OwnedFd;

use super::size::{MAX_BLOCK, UNIT};

/// The memory of one segment, as its source returned it. For a page of a [`PageSource`], the address is the one at
/// which the page is mapped.
///
/// The allocator passes it unchanged to [`SegmentSource::release`].
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
    /// Returns the address one past the last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }
}

/// The kinds of handles with which another process can map memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShareKind {
    /// A file descriptor, passed over a Unix socket of the host.
    PosixFd,
    /// Bytes that a process on any host of the same fabric can import.
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

/// A limit that a program has put on a source, in bytes, and how much of it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLimit {
    /// The limit.
    pub limit: u64,
    /// Bytes that count against it.
    pub used: u64,
}

impl SourceLimit {
    /// Returns the number of bytes that are left.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// The cause of a source's error.
pub(super) type Cause = Box<dyn Error + Send + Sync>;

/// The error of a call to a source.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// There is not enough memory. The allocator releases cached segments and tries again.
    #[error("the source has no {wanted} bytes left")]
    OutOfMemory {
        /// Bytes asked for.
        wanted: u64,
        /// The cause, if the source knows more than the size, for example its own figures.
        #[source]
        source: Option<Cause>,
    },
    /// Any other failure; a retry would not help.
    #[error("{call} failed")]
    Failed {
        /// The call that failed.
        call: &'static str,
        /// The cause.
        #[source]
        source: Cause,
    },
    /// The source cannot make a handle of this kind for the memory.
    #[error(
        "{} bytes at {:#x} have no handle of kind {kind:?} for other processes; use a pool whose source makes its memory \
         with such handles", memory.bytes, memory.address
    )]
    NotExportable {
        /// The memory.
        memory: SegmentMemory,
        /// The kind of the handle.
        kind: ShareKind,
    },
    /// The source returned memory that is not valid for a segment. The allocator has passed this memory to
    /// [`SegmentSource::release`], and ignores an error of that call.
    #[error("asked for {wanted} bytes, the source gave {} at {:#x}, which {what}", given.bytes, given.address)]
    BadSegment {
        /// Bytes asked for.
        wanted: u64,
        /// The memory that the source returned.
        given: SegmentMemory,
        /// Description of the fault.
        what: &'static str,
    },
}

impl SourceError {
    /// Returns the error for a request of `wanted` bytes, more than are left.
    #[must_use]
    pub fn out_of_memory(wanted: u64) -> Self {
        Self::OutOfMemory { wanted, source: None }
    }
}

/// Returns the granularity of a source's segments, in bytes. The result is a power of two and at least 512, even if the
/// source reports another number.
pub(super) fn step(source: &dyn SegmentSource) -> u64 {
    source.granularity().clamp(UNIT, MAX_BLOCK).next_power_of_two()
}

/// Requests `bytes` from `source`, and checks the returned memory.
pub(super) fn allocate(source: &dyn SegmentSource, bytes: u64) -> Result<SegmentMemory, SourceError> {
    let given = source.allocate(bytes)?;
    let what = if given.bytes != bytes {
        "is of another length"
    } else if given.address == 0 {
        "is no address of memory"
    } else if !given.address.is_multiple_of(UNIT) {
        "is not a multiple of 512"
    } else if given.address.checked_add(given.bytes).is_none() {
        "wraps around the address space"
    } else {
        return Ok(given);
    };
    // The caller gets the error about the segment, so an error of the release is ignored.
    let _ = source.release(&given);
    Err(SourceError::BadSegment { wanted: bytes, given, what })
}

/// A source of memory, for example of device allocations or of virtual memory with exportable handles. A source for
/// tests may return addresses without memory.
///
/// While the allocator calls a source, it holds no lock that is needed to serve a request from cached memory. As long
/// as an allocator exists, its calls that allocate, release, map or unmap memory are made one at a time. After the
/// allocator is dropped, a segment that was held is released when its last [`Hold`](super::Hold) and its last
/// [`Segment`](super::Segment) are dropped, on any thread. [`memory_info`](Self::memory_info) and
/// [`export`](Self::export) may be called by several threads at any time. A source must not call the allocator.
pub trait SegmentSource: Send + Sync + fmt::Debug {
    /// Returns the ordinal of the device whose memory this is.
    fn device(&self) -> u32;

    /// Returns the granularity of segments in bytes, a power of two and at least 512. The allocator requests multiples
    /// of it.
    fn granularity(&self) -> u64 {
        2 << 20
    }

    /// Allocates a segment of `bytes`, a multiple of [`granularity`](Self::granularity). The request fails with
    /// [`SourceError::BadSegment`] unless the result has exactly `bytes` bytes at a multiple of 512 that is not 0, and
    /// does not wrap around the address space.
    ///
    /// # Errors
    /// [`SourceError::OutOfMemory`] if there is not enough memory, so a smaller segment or a later try might succeed.
    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError>;

    /// Releases a segment. All work that used it has ended on the device, and it is not held.
    ///
    /// # Errors
    /// The allocator records the error and does not try again, so the source remains responsible for the memory.
    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError>;

    /// Returns this source as a source of pages, if it is one. Re-mappable pools need a source of pages.
    fn as_pages(&self) -> Option<&dyn PageSource> {
        None
    }

    /// Returns true if segments of this source can be [exported](Self::export) with at least one kind of handle. Code
    /// that shares memory with other processes checks this.
    fn is_exportable(&self) -> bool {
        false
    }

    /// Returns a handle with which another process can map the memory. The caller must hold a [`Hold`](super::Hold) on
    /// the segment.
    ///
    /// # Errors
    /// [`SourceError::NotExportable`] if the source cannot make handles of this kind.
    fn export(&self, memory: &SegmentMemory, kind: ShareKind) -> Result<ShareHandle, SourceError> {
        Err(SourceError::NotExportable { memory: *memory, kind })
    }

    /// Returns the free and total memory of the device, for errors and reports. The allocator also computes from the
    /// total how much memory is left, and limits the size of new segments by that.
    /// [`Allocator::set_memory_fraction`](super::Allocator::set_memory_fraction) takes its fraction of the total.
    ///
    /// # Errors
    /// The driver's error.
    fn memory_info(&self) -> Result<MemoryInfo, SourceError>;

    /// Returns the limit that a program has set on this source, if there is one. If a request fails because of the
    /// limit, the allocator's error names it. An adapter without a limit returns the limit of the source under it.
    /// An adapter with a limit returns its own limit or that of the source under it, whichever has fewer bytes left.
    fn source_limit(&self) -> Option<SourceLimit> {
        None
    }
}

/// A source of pages: physical memory that can be mapped at any address of a reserved range.
///
/// Each page is a separate piece of physical memory. After a page has moved, it stays mapped at its old addresses for a
/// while, but the allocator uses only the new ones. [`SegmentSource::release`] also accepts a page. The call must
/// unmap the page from the address in `memory`. The page is mapped nowhere else, except where an
/// [`unmap`](Self::unmap) has failed. Sizes and addresses are multiples of
/// [`granularity`](SegmentSource::granularity).
pub trait PageSource: SegmentSource {
    /// Reserves a range of addresses without memory, and returns the first address.
    ///
    /// # Errors
    /// The driver's error.
    fn reserve(&self, bytes: u64) -> Result<u64, SourceError>;

    /// Releases a range of addresses. If pages are still mapped there, the source releases the range after these are
    /// unmapped.
    fn unreserve(&self, address: u64, bytes: u64);

    /// Makes a page of `bytes` and returns its [`SegmentMemory::token`].
    ///
    /// # Errors
    /// [`SourceError::OutOfMemory`] if there is not enough memory, so a smaller page or a later try might succeed.
    fn create(&self, bytes: u64) -> Result<u64, SourceError>;

    /// Releases a page. It is mapped nowhere, except where an [`unmap`](Self::unmap) has failed.
    ///
    /// # Errors
    /// The allocator records the error and does not try again, so the source remains responsible for the memory.
    fn discard(&self, token: u64, bytes: u64) -> Result<(), SourceError>;

    /// Maps a whole page, given by `memory.token`, at `memory.address`. The addresses are reserved, and nothing is
    /// mapped there. The device cannot access the page there before [`enable`](Self::enable).
    ///
    /// # Errors
    /// After an error the page must not be mapped there.
    fn map(&self, memory: &SegmentMemory) -> Result<(), SourceError>;

    /// Gives the device access to the pages that are mapped in a range.
    ///
    /// # Errors
    /// After an error the allocator unmaps the range.
    fn enable(&self, address: u64, bytes: u64) -> Result<(), SourceError>;

    /// Unmaps a range that consists of whole pages. The pages are not released. No work on the device uses these
    /// addresses.
    ///
    /// # Errors
    /// After an error the pages may still be mapped there, so the allocator does not use these addresses any more.
    fn unmap(&self, address: u64, bytes: u64) -> Result<(), SourceError>;
}

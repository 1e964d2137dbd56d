//! A limit on the memory of a source.

use std::sync::atomic::{AtomicU64, Ordering};

use super::pages_of;
use crate::core::{
    MemoryInfo, PageSource, SegmentMemory, SegmentSource, ShareHandle, ShareKind, SourceError, SourceLimit,
};

/// Limits the bytes of the live segments and pages of a source, counted together.
///
/// A request beyond the limit fails with [`SourceError::OutOfMemory`], without a call to the source. The allocator then
/// releases cached segments and tries again. The limit is never exceeded, with any number of threads, allocators and
/// pools that share the adapter. [`Settings::memory_limit`](crate::core::Settings::memory_limit) is for one allocator.
///
/// Bytes are counted before the source allocates them, until after it has released them. Memory that the source failed
/// to release stays counted.
///
/// ```
/// use caching_alloc::core::{SegmentSource, SourceError};
/// use caching_alloc::host::HostSource;
/// use caching_alloc::sources::LimitingSource;
///
/// # fn main() -> Result<(), SourceError> {
/// let source = LimitingSource::new(HostSource::new(1 << 30), 8 << 20);
/// let segment = source.allocate(6 << 20)?;
/// assert!(matches!(source.allocate(4 << 20), Err(SourceError::OutOfMemory { .. })));
/// source.release(&segment)?;
/// source.allocate(8 << 20)?;
/// assert_eq!((source.allocated(), source.limit()), (8 << 20, 8 << 20));
/// # Ok(())
/// # }
/// ```
#[doc(alias = "limiting_resource_adaptor")]
#[derive(Debug)]
pub struct LimitingSource<S> {
    upstream: S,
    limit: u64,
    allocated: AtomicU64,
}

/// Bytes that count against the limit during a call to the source. Dropping this subtracts them, also if the source
/// panics.
struct Counted<'a> {
    allocated: &'a AtomicU64,
    bytes: u64,
}

impl Counted<'_> {
    /// Leaves `given` bytes counted: the size that the source returned, which may differ from the requested one.
    fn keep(mut self, given: u64) {
        if given > self.bytes {
            self.allocated.fetch_add(given - self.bytes, Ordering::AcqRel);
            self.bytes = 0;
        } else {
            self.bytes -= given;
        }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        give_back(self.allocated, self.bytes);
    }
}

/// Subtracts bytes from the count, but not below 0 if a caller releases more than is counted.
fn give_back(allocated: &AtomicU64, bytes: u64) {
    if bytes > 0 {
        let less = |now: u64| Some(now.saturating_sub(bytes));
        // Release ordering: the source has released the memory before another thread can count these bytes for a new
        // allocation.
        let _ = allocated.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }
}

impl<S: SegmentSource> LimitingSource<S> {
    /// Limits `upstream` to `limit` bytes.
    #[must_use]
    pub fn new(upstream: S, limit: u64) -> Self {
        Self { upstream, limit, allocated: AtomicU64::new(0) }
    }

    /// Returns the limit in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the number of bytes that are counted now, including those of calls in progress.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        self.allocated.load(Ordering::Acquire)
    }

    /// Returns the limited source. Memory that is allocated from it directly is not counted.
    #[must_use]
    pub fn upstream(&self) -> &S {
        &self.upstream
    }

    /// Counts bytes before the source allocates them. Returns an error if the limit would be exceeded.
    fn count(&self, bytes: u64) -> Result<Counted<'_>, SourceError> {
        let more = |now: u64| now.checked_add(bytes).filter(|sum| *sum <= self.limit);
        match self.allocated.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => Ok(Counted { allocated: &self.allocated, bytes }),
            Err(_) => Err(SourceError::out_of_memory(bytes)),
        }
    }

    /// Subtracts bytes from the count if `result`, which the release by the source returned, is a success. Returns
    /// `result`.
    fn released(&self, bytes: u64, result: Result<(), SourceError>) -> Result<(), SourceError> {
        if result.is_ok() {
            give_back(&self.allocated, bytes);
        }
        result
    }
}

impl<S: SegmentSource> SegmentSource for LimitingSource<S> {
    fn device(&self) -> u32 {
        self.upstream.device()
    }

    fn granularity(&self) -> u64 {
        self.upstream.granularity()
    }

    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError> {
        let counted = self.count(bytes)?;
        let memory = self.upstream.allocate(bytes)?;
        counted.keep(memory.bytes);
        Ok(memory)
    }

    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        self.released(memory.bytes, self.upstream.release(memory))
    }

    fn as_pages(&self) -> Option<&dyn PageSource> {
        self.upstream.as_pages().map(|_| self as &dyn PageSource)
    }

    fn is_exportable(&self) -> bool {
        self.upstream.is_exportable()
    }

    fn export(&self, memory: &SegmentMemory, kind: ShareKind) -> Result<ShareHandle, SourceError> {
        self.upstream.export(memory, kind)
    }

    /// Returns the source's sizes, with `total` at most the limit, and `free` at most the rest of the limit.
    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        let MemoryInfo { free, total } = self.upstream.memory_info()?;
        let left = self.limit.saturating_sub(self.allocated());
        Ok(MemoryInfo { free: free.min(left), total: total.min(self.limit) })
    }

    fn source_limit(&self) -> Option<SourceLimit> {
        let own = SourceLimit { limit: self.limit, used: self.allocated() };
        let below = self.upstream.source_limit().filter(|below| below.left() < own.left());
        Some(below.unwrap_or(own))
    }
}

/// Pages count from [`create`](PageSource::create) until [`discard`](PageSource::discard) or
/// [`release`](SegmentSource::release); reserved addresses and mappings do not count.
impl<S: SegmentSource> PageSource for LimitingSource<S> {
    fn reserve(&self, bytes: u64) -> Result<u64, SourceError> {
        pages_of(&self.upstream, "reserve")?.reserve(bytes)
    }

    fn unreserve(&self, address: u64, bytes: u64) {
        if let Some(pages) = self.upstream.as_pages() {
            pages.unreserve(address, bytes);
        }
    }

    fn create(&self, bytes: u64) -> Result<u64, SourceError> {
        let pages = pages_of(&self.upstream, "create")?;
        let counted = self.count(bytes)?;
        let token = pages.create(bytes)?;
        counted.keep(bytes);
        Ok(token)
    }

    fn discard(&self, token: u64, bytes: u64) -> Result<(), SourceError> {
        let discarded = pages_of(&self.upstream, "discard")?.discard(token, bytes);
        self.released(bytes, discarded)
    }

    fn map(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        pages_of(&self.upstream, "map")?.map(memory)
    }

    fn enable(&self, address: u64, bytes: u64) -> Result<(), SourceError> {
        pages_of(&self.upstream, "enable")?.enable(address, bytes)
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), SourceError> {
        pages_of(&self.upstream, "unmap")?.unmap(address, bytes)
    }
}

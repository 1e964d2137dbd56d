//! The allocator's upstream on a real device: segment sources, and ordering of streams.
//!
//! | type | implements |
//! | --- | --- |
//! | [`DriverSource`] | [`SegmentSource`](crate::core::SegmentSource) from `cuMemAlloc`: for memory that stays in the process |
//! | [`VirtualMemorySource`] | the same from fixed virtual-memory segments, for memory shared with peers, communicators and other processes; and [`PageSource`](crate::core::PageSource): movable pages, for one device alone |
//! | [`PinnedHostSource`] | [`SegmentSource`](crate::core::SegmentSource) from `cuMemHostAlloc`: pinned memory of the host |
//! | [`PinnedAllocator`] | an allocator over it, with [blocks](PinnedBlock) that the host may access |
//! | [`DriverEvents`] | [`StreamEvents`](crate::core::StreamEvents) from the driver's streams and events |
//!
//! Everything here may be called while a stream captures: the thread's capture mode is relaxed for calls
//! refused during a capture, since memory and events of the allocator are not part of the capture.
//!
//! Invariants: a segment is returned to the driver exactly once, through the source that made it. A failure
//! while making a segment leaks nothing. No lock is held during driver calls, except that of the range in
//! which pages are mapped.

mod events;
mod pages;
mod pinned;
mod plain;
mod virtual_memory;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use cuda_driver::{Context, Error};

pub use self::events::DriverEvents;
pub use self::pinned::{PinnedAllocator, PinnedBlock, PinnedError, PinnedHostSource, PinnedSource};
pub use self::plain::DriverSource;
pub use self::virtual_memory::{Sharing, VirtualMemorySource};
use crate::core::{MemoryInfo, SegmentMemory, SourceError};

/// The size, and the alignment, that segments are multiples of, in bytes: the page size of the devices, and what
/// communication libraries of every release accept.
const SEGMENT_GRANULARITY: u64 = 2 << 20;

/// The segments of a source that are out, by address.
#[derive(Debug)]
struct Segments<T>(Mutex<HashMap<u64, T>>);

impl<T> Default for Segments<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Segments<T> {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, address: u64, segment: T) {
        self.lock().insert(address, segment);
    }

    fn remove(&self, memory: &SegmentMemory) -> Result<T, SourceError> {
        self.lock().remove(&memory.address).ok_or_else(|| not_of_this_source(memory))
    }

    fn with<R>(&self, address: u64, look: impl FnOnce(&T) -> R) -> Option<R> {
        self.lock().get(&address).map(look)
    }
}

/// A segment was given to a source that did not make it, or that has taken it back already.
#[derive(Debug, thiserror::Error)]
#[error("{} bytes at {:#x} are no segment of this source, or have been given back already", .0.bytes, .0.address)]
struct NotOfThisSource(SegmentMemory);

fn not_of_this_source(memory: &SegmentMemory) -> SourceError {
    SourceError::Failed { call: "giving a segment back", source: Box::new(NotOfThisSource(*memory)) }
}

/// Converts a driver's failure to the error of a source; the allocator requested `wanted` bytes.
fn source_error(call: &'static str, wanted: u64, error: Error) -> SourceError {
    if error.is_out_of_memory() {
        SourceError::OutOfMemory { wanted }
    } else {
        SourceError::Failed { call, source: Box::new(error) }
    }
}

fn failed(call: &'static str) -> impl FnOnce(Error) -> SourceError {
    move |error| SourceError::Failed { call, source: Box::new(error) }
}

/// A size of the allocator in the driver's terms.
fn host_size(bytes: u64) -> Result<usize, SourceError> {
    usize::try_from(bytes).map_err(|_| SourceError::OutOfMemory { wanted: bytes })
}

fn memory_info(context: &Context) -> Result<MemoryInfo, SourceError> {
    let (free, total) = context.memory_info().map_err(failed("cuMemGetInfo"))?;
    Ok(MemoryInfo { free: free as u64, total: total as u64 })
}

//! Sources of segments on a real device, and ordering of its streams.
//!
//! | type | implements |
//! | --- | --- |
//! | [`DriverSource`] | [`SegmentSource`](crate::core::SegmentSource) from `cuMemAlloc`, for memory that is not shared with other processes |
//! | [`VirtualMemorySource`] | [`SegmentSource`](crate::core::SegmentSource) from virtual memory, for memory shared with peers, communicators and other processes; [`PageSource`](crate::core::PageSource) of pages for one device |
//! | [`PinnedHostSource`] | [`SegmentSource`](crate::core::SegmentSource) from `cuMemHostAlloc`, for pinned host memory |
//! | [`PinnedAllocator`] | an allocator over a [`PinnedHostSource`], with [blocks](PinnedBlock) that the host may access |
//! | [`DeviceAllocator`] | an allocator over a [`VirtualMemorySource`], with typed [slices](cuda_driver::DeviceSlice) for safe calls |
//! | [`DriverEvents`] | [`StreamEvents`](crate::core::StreamEvents) from the driver's streams and events |
//!
//! Everything here may be called while a stream captures. For calls that the driver would refuse during a capture, the
//! thread's capture mode is relaxed. That is correct because memory and events of the allocator are not part of the
//! capture.
//!
//! Invariants:
//! - A segment is returned to the driver exactly once, through the source that made it.
//! - A failure while making a segment leaks nothing.
//! - No lock is held during driver calls, with two exceptions: the lock of a reserved range while its pages are mapped,
//!   enabled or unmapped, and the lock of a [contiguous row](VirtualMemorySource::in_a_row) while a segment is placed
//!   in it.

mod captured_memory;
mod device;
mod events;
mod pages;
mod pinned;
mod plain;
mod virtual_memory;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, PoisonError};

use cuda_driver::{Context, Error};

pub use self::device::DeviceAllocator;
pub use self::events::DriverEvents;
pub use self::pinned::{PinnedAllocator, PinnedBlock, PinnedError, PinnedHostSource, PinnedSource};
pub use self::plain::DriverSource;
pub use self::virtual_memory::{Sharing, VirtualMemorySource};
use crate::core::{MemoryInfo, SegmentMemory, SourceError};

/// The granularity of segments in bytes: their sizes are multiples of it, and virtual memory is aligned to it. It is
/// the page size of the devices, and all releases of the communication libraries accept it.
const SEGMENT_GRANULARITY: u64 = 2 << 20;

/// The live segments of a source, keyed by address, each with its [`SegmentMemory::token`]. The driver may return the
/// address of a released segment again. A source with unique tokens does not mistake the new segment for the old one.
#[derive(Debug)]
struct Segments<T>(Mutex<HashMap<u64, (u64, T)>>);

impl<T> Default for Segments<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Segments<T> {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, (u64, T)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, memory: &SegmentMemory, segment: T) {
        self.lock().insert(memory.address, (memory.token, segment));
    }

    /// Removes the segment with the address and the token of `memory`.
    fn remove(&self, memory: &SegmentMemory) -> Result<T, SourceError> {
        match self.lock().entry(memory.address) {
            Entry::Occupied(found) if found.get().0 == memory.token => Ok(found.remove().1),
            _ => Err(not_of_this_source(memory)),
        }
    }

    /// Calls `look` with the token of the segment at `address`, and the segment.
    fn with<R>(&self, address: u64, look: impl FnOnce(u64, &T) -> R) -> Option<R> {
        self.lock().get(&address).map(|(token, segment)| look(*token, segment))
    }
}

/// A segment was released to a source that did not make it, or that has released it already.
#[derive(Debug, thiserror::Error)]
#[error("{} bytes at {:#x} are not a segment of this source, or have been released already", .0.bytes, .0.address)]
struct NotOfThisSource(SegmentMemory);

fn not_of_this_source(memory: &SegmentMemory) -> SourceError {
    SourceError::Failed { call: "releasing a segment", source: Box::new(NotOfThisSource(*memory)) }
}

/// Converts an error of the driver to one of a source. `wanted` is the number of bytes requested.
fn source_error(call: &'static str, wanted: u64, error: Error) -> SourceError {
    if error.is_out_of_memory() {
        SourceError::out_of_memory(wanted)
    } else {
        SourceError::Failed { call, source: Box::new(error) }
    }
}

fn failed(call: &'static str) -> impl FnOnce(Error) -> SourceError {
    move |error| SourceError::Failed { call, source: Box::new(error) }
}

/// Converts a size in bytes to `usize`. A size that does not fit is an out-of-memory error.
fn host_size(bytes: u64) -> Result<usize, SourceError> {
    usize::try_from(bytes).map_err(|_| SourceError::out_of_memory(bytes))
}

fn memory_info(context: &Context) -> Result<MemoryInfo, SourceError> {
    let (free, total) = context.memory_info().map_err(failed("cuMemGetInfo"))?;
    Ok(MemoryInfo { free: free as u64, total: total as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_segment_is_not_taken_for_a_new_one_at_its_address() {
        let segments = Segments::default();
        let old = SegmentMemory { address: 512, bytes: 512, token: 0 };
        let new = SegmentMemory { token: 1, ..old };
        segments.insert(&old, "old");
        assert_eq!(segments.remove(&old).unwrap(), "old");
        segments.insert(&new, "new");
        assert_eq!(segments.with(512, |token, segment| (token, *segment)), Some((1, "new")));
        segments.remove(&old).expect_err("it was released already");
        assert_eq!(segments.remove(&new).unwrap(), "new");
    }
}

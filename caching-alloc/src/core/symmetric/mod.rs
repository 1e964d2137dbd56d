//! Placement that is the same on every rank.
//!
//! Ranks that ask an arena for the same things in the same order get the same places, as (segment's ordinal,
//! offset), whatever their addresses: no address, time, event, lending or trimming takes part. The arena keeps a
//! log of what it was asked, as a rolling hash; every segment carries the hash at its creation, so that two
//! segments of the same size with different pasts are not taken for the same.
//!
//! The arena is not for use from several threads at a time: their order would be an accident. It does not agree
//! anything with other ranks; it gives them what they need to compare.
//!
//! ```
//! use std::sync::Arc;
//! use caching_alloc::core::symmetric::{Geometry, SymmetricArena};
//! use caching_alloc::host::HostSource;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut here = SymmetricArena::new(Arc::new(HostSource::at(0x10_0000_0000, 1 << 30)), Geometry::default())?;
//! let mut there = SymmetricArena::new(Arc::new(HostSource::at(0x70_0000_0000, 1 << 30)), Geometry::default())?;
//! let a = here.allocate(100 << 20)?;
//! let b = there.allocate(100 << 20)?;
//! assert_eq!(a.placement, b.placement);
//! assert_ne!(a.address, b.address);
//! assert_eq!(here.segments()[0].log, there.segments()[0].log);
//! # Ok(())
//! # }
//! ```

mod arena;
#[cfg(test)]
mod growth_tests;
mod journal;
mod log;
#[cfg(test)]
mod tests;

pub use arena::{Placed, SymmetricArena, SymmetricError};
pub(super) use journal::Journal;
pub use journal::SymmetricSegment;
pub use log::{Log, LogState, Operation, OperationKind};
use serde::{Deserialize, Serialize};

use super::size::MAX_BLOCK;

/// Segments of symmetric pools are multiples of this: 2 MiB.
pub const SEGMENT_STEP: u64 = 2 << 20;

/// By how much more than it should a segment may be, for one more request to fit into it.
const TOLERANCE: u64 = 4 * SEGMENT_STEP;

/// A place in a symmetric pool, the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// Ordinal of the segment: 0, 1, 2… in order of creation.
    pub ordinal: u32,
    /// Bytes from the segment's begin.
    pub offset: u64,
}

/// How a symmetric pool's segments grow. Sizes in bytes, the same on every rank (the log's hash begins with them).
///
/// Windows cost by number and not by size, so that segments are few and large, and yet little is idle. The first
/// segment is [`first_segment`](Self::first_segment), exactly a number of requests if these are large. A further one is
/// as large as may be idle:
/// - as much as is in use, so that no more than twice that is reserved;
/// - no more than two thirds of [`largest_segment`](Self::largest_segment), or a third of what is in use.
///
/// A request of at least all that was in use before it has a segment of its own, or of two of its kind: what is left
/// over would be too small for the next.
///
/// # What this keeps
/// Of every sequence of requests that frees nothing, with the default geometry and to within 8 MiB and the rounding of segments to 2 MiB: after
/// the first segment, reserved is at most twice what is in use; from 8 GiB in use on, at most 4/3 of it (10.7 GiB at 8
/// GiB). A request alone may bring more about, if it fits into no hole.
///
/// 8 GiB take at most 8 segments if no request is larger than 64 MiB, and in all but about one of 10,000 random mixtures
/// of requests up to 1 GiB. A rule that does not know what will be asked cannot keep that for every sequence: whoever asks each
/// time for a little more than the largest hole `h` has each segment take in one request. Let `2u - r` be what may be
/// reserved further: a segment of just the request adds `h` to it and leaves the holes as they are, one that is longer
/// takes as much from it as the new hole is larger than `h`. So holes at best triple in three segments; here, such a sequence takes 33
/// for 8 GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Geometry {
    /// The first segment.
    pub first_segment: u64,
    /// No segment is larger, unless a single request is.
    pub largest_segment: u64,
}

impl Default for Geometry {
    /// From 512 MiB to 4 GiB.
    fn default() -> Self {
        Self { first_segment: 512 << 20, largest_segment: 4 << 30 }
    }
}

impl Geometry {
    /// Size of the next segment if it must hold `bytes`, in a pool that has `reserved` bytes in segments, of which
    /// `in_use` are blocks; a multiple of [`SEGMENT_STEP`].
    #[must_use]
    pub fn segment_bytes(&self, reserved: u64, in_use: u64, bytes: u64) -> u64 {
        let bytes = bytes.max(1);
        let largest = self.largest_segment.min(MAX_BLOCK);
        let generous = if reserved == 0 {
            let first = self.first_segment.min(largest);
            match first / bytes {
                times @ 1..8 => (times * bytes).next_multiple_of(SEGMENT_STEP).min(first),
                _ => first,
            }
        } else {
            let after = in_use.saturating_add(bytes);
            let idle = after.min((largest / 3 * 2).max(after / 3));
            let most = after.saturating_add(idle).saturating_sub(reserved).min(largest);
            // Where requests are all alike, their rounding must not cost the last of them its place.
            let tolerance = if bytes >= 4 * TOLERANCE { TOLERANCE } else { 0 };
            let times = most.saturating_add(tolerance) / bytes;
            let whole = times.saturating_mul(bytes).next_multiple_of(SEGMENT_STEP);
            match times {
                1..=2 if bytes >= in_use => whole,
                _ => most.max(whole.min(largest)),
            }
        };
        (generous / SEGMENT_STEP * SEGMENT_STEP).max(bytes.next_multiple_of(SEGMENT_STEP))
    }
}

//! Placement that is the same on every rank.
//!
//! Ranks that make the same requests to an arena in the same order get the same places, as (segment's
//! ordinal, offset), even if their addresses differ: no address, time, event, lending or trimming affects
//! placement. The arena keeps a log of its requests as a rolling hash. Every segment carries the hash at its
//! creation, so two segments of the same size with different histories are distinguishable.
//!
//! An arena must not be used from several threads at the same time, since the order of their requests would
//! be arbitrary. It does not communicate with other ranks; it provides the data for comparing them.
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
pub use journal::SymmetricSegment;
pub use log::{Log, LogState, Operation, OperationKind};

use super::size::MAX_BLOCK;
pub use super::size::SEGMENT_STEP;

/// The excess over its target size that a segment may have so that one more request fits.
const TOLERANCE: u64 = 4 * SEGMENT_STEP;

/// A place in a symmetric pool, the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Placement {
    /// Ordinal of the segment: 0, 1, 2… in order of creation.
    pub ordinal: u32,
    /// Offset in the segment, in bytes.
    pub offset: u64,
}

/// The rule for the size of a symmetric pool's segments. Sizes in bytes, the same on every rank (the log's
/// hash begins with them).
///
/// The cost of windows depends on their number and not on their size. So segments are few and large, and yet
/// little memory is idle. The first segment is [`first_segment`](Self::first_segment), or a whole number of
/// requests if these are large. The size of a further segment is the memory that may be idle:
/// - as much as is in use, so at most twice the memory in use is reserved;
/// - at most two thirds of [`largest_segment`](Self::largest_segment), or a third of the memory in use.
///
/// A request of at least all the memory in use before it gets a segment for one or two such requests: the
/// rest of a larger segment would be too small for the next one.
///
/// # Guarantees
/// For every sequence of requests that frees nothing, with the default geometry and to within 8 MiB and the
/// rounding of segments to 2 MiB: after the first segment, at most twice the memory in use is reserved; from
/// 8 GiB in use on, at most 4/3 of it (10.7 GiB at 8 GiB). A single request may exceed this if it fits into
/// no hole.
///
/// 8 GiB take at most 8 segments if no request is larger than 64 MiB, and in all but about one of 10,000
/// random mixtures of requests up to 1 GiB. A rule that does not know the future requests cannot guarantee
/// that for every sequence. If each request is a little larger than the largest hole `h`, each segment serves
/// one request. Let `2u - r` be the memory that may still be reserved. A segment for just the request adds
/// `h` to it and leaves the holes unchanged. A longer segment reduces it by the length by which its new hole
/// exceeds `h`. So holes at best triple in three segments; here, such a sequence takes 33 segments for 8 GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Geometry {
    /// The first segment.
    pub first_segment: u64,
    /// The largest segment, unless a single request is larger.
    pub largest_segment: u64,
}

impl Default for Geometry {
    /// From 512 MiB to 4 GiB.
    fn default() -> Self {
        Self { first_segment: 512 << 20, largest_segment: 4 << 30 }
    }
}

impl Geometry {
    /// The size of the next segment if it must hold `bytes`, in a pool with `reserved` bytes in segments, of
    /// which `in_use` are in blocks; a multiple of [`SEGMENT_STEP`].
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
            // For requests of equal size, rounding must not leave the last one without a place.
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

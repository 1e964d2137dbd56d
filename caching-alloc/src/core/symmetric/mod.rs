//! Placement that is the same on every rank.
//!
//! A *symmetric pool* is memory whose blocks have the same places on every rank. On each rank, the pool has a
//! [`SymmetricArena`], which places the blocks.
//!
//! Ranks that make the same requests to an arena in the same order get the same places, as segment ordinal and offset,
//! even if their addresses differ. Placement depends on the requests alone, and not on addresses, times or events. The
//! arena keeps a log of its requests with a rolling hash. Every segment has the hash at its creation, so two segments
//! of the same size with different histories can be distinguished.
//!
//! An arena must not be used by several threads without an agreed order, because the order of requests must be the same
//! on every rank. The arena does not communicate with other ranks, but its log has the data with which ranks can
//! compare their requests.
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

pub use arena::{Placed, RESERVED, SymmetricArena, SymmetricError};
pub use journal::SymmetricSegment;
pub use log::{Log, LogState, Operation, OperationKind};

use super::size::MAX_BLOCK;
pub use super::size::SEGMENT_STEP;

/// The most bytes by which a segment may exceed its target size so that one more request fits.
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

/// The rule for the size of a symmetric pool's segments. Sizes are in bytes, and must be the same on every rank. The
/// hash of the log includes them, so a difference is detected.
///
/// Registering segments as windows has a cost for each segment, but not for each byte. So segments are few and large,
/// while the idle memory is limited. Idle memory is the memory in segments that is not in blocks.
///
/// The first segment has [`first_segment`](Self::first_segment) bytes. If its request is larger than an eighth of that,
/// the segment has the length of a whole number of such requests instead: as many as fit, and at least one.
///
/// A further segment is as large as a limit on the idle memory of all segments together permits, and has room for at
/// least its request. The memory in use includes this request. The limit is the smaller of these two:
/// - the memory in use, or 8 times [`first_segment`](Self::first_segment) if that is more;
/// - two thirds of [`largest_segment`](Self::largest_segment), or a third of the memory in use if that is more.
///
/// There is one exception: the request is at least as large as all memory that was in use before it, and the limit
/// permits fewer than three such requests. The segment then has the length of one or two of them. The rest of a longer
/// segment would be too small for the next such request.
///
/// # Guarantees
/// These hold with the default geometry, for every sequence of requests that frees nothing. They hold to within 8 MiB
/// and the rounding of segments to 2 MiB.
/// - After the first segment, at most twice the memory in use is reserved, or the memory in use plus 512 MiB if that is
///   more.
/// - From 8 GiB in use on, at most 4/3 of the memory in use is reserved (10.7 GiB at 8 GiB).
///
/// Blocks with 8 GiB in total take at most 8 segments if no request is larger than 64 MiB. The same holds for all but
/// about one of 10,000 random mixtures of requests up to 1 GiB.
///
/// With these limits on idle memory, a rule that does not know future requests cannot guarantee 8 segments for every
/// sequence. In the worst case, each request is a little larger than the largest hole, so each segment serves one
/// request. The largest hole can then at most triple in three segments. With this rule, such a sequence takes up to 45
/// segments for 8 GiB, depending on its first request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Geometry {
    /// Size of the first segment.
    pub first_segment: u64,
    /// Size of the largest segment, unless a single request is larger.
    pub largest_segment: u64,
}

impl Default for Geometry {
    /// A first segment of 64 MiB, and segments of up to 4 GiB.
    fn default() -> Self {
        Self { first_segment: 64 << 20, largest_segment: 4 << 30 }
    }
}

impl Geometry {
    /// Returns the size of the next segment if it must have room for `bytes`, in a pool with `reserved` bytes in
    /// segments, of which `in_use` are in blocks. The result is a multiple of [`SEGMENT_STEP`].
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
            let small = self.first_segment.saturating_mul(8);
            let idle = after.max(small).min((largest / 3 * 2).max(after / 3));
            let most = after.saturating_add(idle).saturating_sub(reserved).min(largest);
            // With requests of equal size, rounding must not make the segment a little too short for the last one.
            let tolerance = if bytes >= 4 * TOLERANCE { TOLERANCE } else { 0 };
            let times = most.saturating_add(tolerance) / bytes;
            let whole = times.saturating_mul(bytes).next_multiple_of(SEGMENT_STEP).min(MAX_BLOCK);
            match times {
                1..=2 if bytes >= in_use => whole,
                _ => most.max(whole.min(largest)),
            }
        };
        (generous / SEGMENT_STEP * SEGMENT_STEP).max(bytes.next_multiple_of(SEGMENT_STEP))
    }
}

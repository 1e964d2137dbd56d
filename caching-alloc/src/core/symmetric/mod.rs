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
/// A new segment doubles the pool, until that would make one of more than `largest_segment`; from there on it is a
/// third of the pool, and no more than that. It never makes the pool larger than twice what is in use, unless the
/// request alone does. So windows, which cost by number and not by size, stay few, and so does idle memory: by
/// default, a pool of blocks up to 32 MiB reaches 8 GiB in at most 8 segments, with at most 10.7 GiB reserved then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Geometry {
    /// The first segment.
    pub first_segment: u64,
    /// No segment is larger, unless a single request is.
    pub largest_segment: u64,
}

impl Default for Geometry {
    /// From 128 MiB to 4 GiB.
    fn default() -> Self {
        Self { first_segment: 128 << 20, largest_segment: 4 << 30 }
    }
}

impl Geometry {
    /// Size of the next segment if it must hold `bytes`, in a pool that has `reserved` bytes in segments, of which
    /// `in_use` are blocks; a multiple of [`SEGMENT_STEP`].
    #[must_use]
    pub fn segment_bytes(&self, reserved: u64, in_use: u64, bytes: u64) -> u64 {
        let wanted = match reserved {
            0 => self.first_segment.min(self.largest_segment),
            held if held <= self.largest_segment => held,
            held => (held / 3).min(self.largest_segment),
        };
        let twice = in_use.saturating_add(bytes).saturating_mul(2);
        let most = if reserved == 0 { MAX_BLOCK } else { twice.saturating_sub(reserved).min(MAX_BLOCK) };
        let generous = wanted.min(most) / SEGMENT_STEP * SEGMENT_STEP;
        generous.max(bytes.max(1).next_multiple_of(SEGMENT_STEP))
    }
}

//! Reasons why a [`Descriptor`](super::Descriptor), a pair of ranges to copy between two regions, is invalid.

use std::fmt;

/// A side of a transfer between regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The rank that copies.
    Local,
    /// Its peer.
    Remote,
}

impl fmt::Display for Side {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Local => "local",
            Self::Remote => "remote",
        })
    }
}

/// Reason why a [`Descriptor`](super::Descriptor) is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptorError {
    /// The rank on this side shares no region with this index.
    #[error("{side} region {region} of a rank that shares {regions}")]
    NoSuchRegion {
        /// The side of the region.
        side: Side,
        /// The index asked for.
        region: usize,
        /// Number of regions of that rank.
        regions: usize,
    },
    /// The range leaves the region.
    #[error("{bytes} bytes at byte {offset} leave {side} region {region} of {whole} bytes")]
    OutOfBounds {
        /// The side of the region.
        side: Side,
        /// Index of the region.
        region: usize,
        /// First byte of the range.
        offset: usize,
        /// Length of the range in bytes.
        bytes: usize,
        /// Length of the region in bytes.
        whole: usize,
    },
    /// The descriptor has no bytes.
    #[error("0 bytes, expected at least 1")]
    Empty,
    /// The destinations of two descriptors overlap. The copies of one transfer run in any order, so the result would be
    /// undefined.
    #[error("its destination overlaps that of descriptor {other}: transfer them one after the other")]
    Overlap {
        /// Index of the other descriptor, which comes before this one in the list.
        other: usize,
    },
}

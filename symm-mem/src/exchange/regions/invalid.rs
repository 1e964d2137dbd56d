//! Reasons why a [`Descriptor`](super::Descriptor) (the source and the destination of a copy between two regions) or a
//! [prepared range](super::PreparedRanges) is invalid.

use std::fmt;

/// A side of a transfer between [regions](super::Regions).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The rank that makes the call, and copies.
    Local,
    /// The peer of that rank.
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

/// Reason why one of these is invalid: a [`Descriptor`](super::Descriptor), a range passed to
/// [`prepare`](super::Regions::prepare), or a pair of selected [prepared ranges](super::PreparedRanges).
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
    /// The range extends beyond the region.
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
    /// A transfer of [prepared ranges](super::PreparedRanges) selects an index that the list on this side lacks.
    #[error("index {index} of a {side} list of {ranges} prepared ranges")]
    NoSuchRange {
        /// The side of the list.
        side: Side,
        /// The index asked for.
        index: usize,
        /// Number of ranges of the list.
        ranges: usize,
    },
    /// The two prepared ranges of a pair, one of each side, have different lengths.
    #[error("a local range of {local} bytes with a remote range of {remote}, expected equal lengths")]
    Lengths {
        /// Length of this rank's range in bytes.
        local: usize,
        /// Length of the peer's range in bytes.
        remote: usize,
    },
    /// The descriptor or the range has no bytes.
    #[error("0 bytes, expected at least 1")]
    Empty,
    /// The destinations of two descriptors, or of two pairs of prepared ranges, overlap. The copies of one transfer run
    /// in any order, so the result would be undefined.
    #[error("its destination overlaps that of descriptor {other}: transfer them one after the other")]
    Overlap {
        /// The lower index of the two descriptors or pairs. [`TransferError::Descriptor`](super::super::TransferError)
        /// has the higher one.
        other: usize,
    },
}

//! The error of a view of a rank's memory.

/// The reason why a view of a rank's memory cannot be created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// The rank is not in the group.
    #[error("rank {rank} in a group of {world}")]
    NoSuchRank {
        /// The rank.
        rank: usize,
        /// The number of ranks in the group.
        world: usize,
    },
    /// The view exceeds the buffer, or the part of the signal pad that programs may use.
    #[error("a view of {needed:?} bytes at byte {offset:?} leaves the {what} of {bytes} bytes")]
    OutOfBounds {
        /// The memory that the view exceeds: `buffer` or `signal pad`.
        what: &'static str,
        /// The offset of the view in bytes, or `None` on overflow.
        offset: Option<usize>,
        /// The size of the view in bytes, or `None` on overflow.
        needed: Option<usize>,
        /// The size of the buffer, or of the part of the pad that programs may use, in bytes.
        bytes: usize,
    },
}

//! What things cost in memory beside their own bytes.
//!
//! The constants are upper bounds with the allocator's headers and rounding, with maps and vectors that have just
//! doubled, and with the old half that is there while they do.

/// An allocation: the allocator's header, and what it rounds up.
pub(super) const ALLOCATION: usize = 32;

/// A key in a map with its value: two allocations, and its place in a map that is at least a quarter full.
pub(super) const ENTRY: usize = 384;

/// A string in a list: an allocation, and its place in a vector that doubles.
pub(super) const PART: usize = ALLOCATION + 3 * size_of::<Vec<u8>>();

/// A connection: its places in all maps, its buffers as long as they are small.
pub(super) const CLIENT: usize = 4096;

/// Whether a collection has so much more room than it needs that it should give some back.
pub(super) fn is_sparse(capacity: usize, length: usize) -> bool {
    capacity > 64 && capacity / 4 > length
}

//! What things cost in memory beside their own bytes.
//!
//! The constants are upper bounds with the allocator's headers and rounding, with trees whose nodes are half empty, and
//! with vectors that have just doubled.

/// An allocation: the allocator's header, and what it rounds up.
pub(super) const ALLOCATION: usize = 32;

/// A key in a map with its value: two allocations, and its place in the map.
pub(super) const ENTRY: usize = 384;

/// A string in a list: an allocation, and its place in a vector that doubles.
pub(super) const PART: usize = ALLOCATION + 3 * size_of::<Vec<u8>>();

/// An element of a queue: its allocation, and that of its place in a linked list.
pub(super) const ELEMENT: usize = 2 * ALLOCATION + 2 * size_of::<usize>() + size_of::<Vec<u8>>();

/// A connection: its places in all maps, its buffers as long as they are small.
pub(super) const CLIENT: usize = 4096;

/// Whether a collection has so much more room than it needs that it should give some back.
pub(super) fn is_sparse(capacity: usize, length: usize) -> bool {
    capacity > 64 && capacity / 4 > length
}

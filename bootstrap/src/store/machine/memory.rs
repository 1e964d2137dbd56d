//! Memory costs of objects in addition to their own bytes.
//!
//! The constants are upper bounds. They include the allocator's headers and rounding, trees with half-empty
//! nodes, and vectors that have just doubled.

/// An allocation: the allocator's header and rounding.
pub(super) const ALLOCATION: usize = 32;

/// A key in a map with its value: the overhead of two allocations, and an entry of the map.
pub(super) const ENTRY: usize = 384;

/// A string in a list: the overhead of an allocation, and an element of a vector that doubles.
pub(super) const PART: usize = ALLOCATION + 3 * size_of::<Vec<u8>>();

/// An element of a queue: the overhead of its allocation, and its node in a linked list.
pub(super) const ELEMENT: usize = 2 * ALLOCATION + 2 * size_of::<usize>() + size_of::<Vec<u8>>();

/// A connection: its entries in all maps, and its buffers while they are small.
pub(super) const CLIENT: usize = 4096;

/// Returns true if a collection's capacity is so much greater than its length that it should shrink.
pub(super) fn is_sparse(capacity: usize, length: usize) -> bool {
    capacity > 64 && capacity / 4 > length
}

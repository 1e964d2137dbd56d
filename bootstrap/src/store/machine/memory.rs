//! Memory overhead of objects, in bytes: the memory that they take in addition to their contents.
//!
//! The constants are upper bounds. They allow for the allocator's headers and rounding, half-empty nodes of trees, and
//! vectors that have just doubled their capacity.

/// An allocation: the allocator's header and rounding.
pub(super) const ALLOCATION: usize = 32;

/// An entry of a map with a key and a value: the overhead of two allocations, and the entry in the map's node.
pub(super) const ENTRY: usize = 384;

/// A string in a vector: the overhead of its allocation, and its element in the vector, which may have spare capacity.
pub(super) const PART: usize = ALLOCATION + 3 * size_of::<Vec<u8>>();

/// An element of a queue: the overhead of two allocations (its bytes, and its node in a linked list), and the node.
pub(super) const ELEMENT: usize = 2 * ALLOCATION + 2 * size_of::<usize>() + size_of::<Vec<u8>>();

/// A connection: its entries in all maps, and the overhead of its buffers.
pub(super) const CLIENT: usize = 4096;

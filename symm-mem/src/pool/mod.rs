//! The memory of a [`SymmetricPool`](crate::SymmetricPool): segments (allocations of device memory), the blocks that
//! the program allocates in them, and pins. A pin keeps blocks and their segments allocated for a captured graph. The
//! placement of blocks depends only on the sequence of requests (allocations, reservations and frees).
//!
//! | file | subject |
//! |---|---|
//! | `memory` | the pins, and the segments; a segment is freed only once nothing can access it |
//! | `block`, `capture` | blocks; captures that the program declares to the pool, and the pins of their graphs |
//! | `attachments` | values that other modules attach to the segments, for example mappings of peers' segments |
//! | `slice` | device slices over blocks; each is bound to a stream |
//! | `dropped` | the streams of dropped slices, until their work on the slices' memory has ended |
//!
//! This module does not depend on groups and communicators, with one exception:
//! [`process_group::group::places_changed`] makes groups drop their cached look-ups of buffers.

mod attachments;
mod block;
mod capture;
mod dropped;
mod memory;
mod slice;

pub use self::memory::{GraphHold, PoolMemory};
pub(crate) use self::{
    attachments::{Attachments, Owner},
    memory::Arena,
    slice::{block_of, check_stream, into_slice},
};
pub use self::{
    block::SymmetricBlock,
    capture::{GraphPin, PoolCapture},
    slice::SliceError,
};

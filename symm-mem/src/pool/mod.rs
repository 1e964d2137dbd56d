//! The memory of a symmetric pool: segments, blocks, and the pins of captures and graphs. Placement is a function of
//! the sequence of requests alone.
//!
//! | file | subject |
//! |---|---|
//! | `memory` | the segments, which stay allocated until nothing can access them |
//! | `block`, `capture` | the owners of memory |
//! | `attachments` | values that other modules keep with the segments |
//! | `slice` | device slices over blocks |
//! | `dropped` | the streams of dropped slices |
//!
//! This floor knows no groups and no communicators. Two parts of `process_group` serve it nevertheless, because groups
//! are their other side: the hook by which captured work pins memory ([`process_group::graph_memory`]), and the notice
//! to drop cached places ([`process_group::group::places_changed`]).

mod attachments;
mod block;
mod capture;
mod dropped;
mod memory;
mod slice;

#[cfg(any(test, feature = "simulation"))]
pub(crate) use self::memory::GraphHold;
pub(crate) use self::{
    attachments::{Attachments, Owner},
    memory::{Arena, Memory},
    slice::{check_stream, into_slice},
};
pub use self::{
    block::SymmetricBlock,
    capture::{GraphPin, PoolCapture},
    slice::SliceError,
};

//! Memory with physical pages that move. It is one growing range of addresses with best fit over all of it.
//! Idle pages are mapped again at addresses where a block fits.
//!
//! - `arena`: blocks, pages and addresses; is_registered neither driver nor clock
//! - `plan`: placement of a block without a fitting free block, and the pages to map there
//!
//! The engine carries a plan out, in the order that streams and trackers need.
//!
//! Invariants:
//! - A page never moves while it is under a block that is handed out or that another stream may still use, or
//!   while it is held.
//! - A page moves to unmapped addresses, after the stream that needs it was ordered behind all streams that
//!   used it. Its old addresses are unmapped and reused only once the host has seen the end of those uses.
//!   They are unmapped when pages are to be mapped there, or when a page is to return to the source, with one
//!   call for all neighbouring addresses.
//! - The driver is called under the structure lock alone.
//! - While any page may move (nobody holds it, no stream captures, the streams may wait for each other), the
//!   reserved memory of a pool is bounded by its peak, plus the larger of 8 MiB and a 64th of the peak, plus
//!   two of its longest pages for each block that is handed out at a time. It grows beyond its need only when
//!   each of its pages has a block in it. Mostly it reserves far less (see `plan`).

mod arena;
mod plan;

pub(super) use arena::{Arena, FreeSpan, Remains};
pub(super) use plan::{Budget, Plan};

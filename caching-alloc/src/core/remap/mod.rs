//! Placement of blocks in a re-mappable pool, whose physical pages can move to other addresses.
//!
//! The pool reserves large ranges of addresses and maps pages there as they are needed. A block may span pages. It
//! is placed best fit in the free memory of its stream. If it fits nowhere, idle or new pages are mapped at addresses
//! where it fits. A page is idle if no block is in it and nobody holds it.
//!
//! - `arena`: the blocks, pages and addresses. It calls no driver and reads no clock.
//! - `plan`: decides where to place a block that no free block fits, and which pages to map there.
//!
//! The engine carries a plan out. It orders the streams, makes the driver calls and notifies the trackers.
//!
//! Invariants:
//! - A page does not move while it is held, or while it is under a block that is handed out or that another stream may
//!   still use.
//! - A page moves only to addresses where nothing is mapped. Before it moves, the stream that needs it is ordered
//!   behind all streams that used it.
//! - The old addresses of a moved page stay mapped until the host has seen the end of the uses there. After that, one
//!   call unmaps all neighbouring old addresses: when pages are to be mapped there, when a page is to return to the
//!   source, or when there are more bytes of old addresses than reserved memory.
//! - While the driver is called, the structure lock is held and no other lock.
//! - A pool's reserved memory has an upper bound while all pages may move: nobody holds a page, no stream is being
//!   captured, and the streams may wait for each other. The bound is the sum of the peak use, a slack, and two of the
//!   longest pages for each block that is handed out at the same time. The slack is the larger of 8 MiB and 1/64 of the
//!   peak. The pool grows beyond peak and slack only when each of its pages has a block in it. It usually reserves far
//!   less (see `plan`).

mod arena;
mod plan;

pub(super) use arena::{Arena, FreeSpan, Remains};
pub(super) use plan::{Budget, Plan};

//! Placement of blocks in a re-mappable pool, whose physical pages can move to other addresses.
//!
//! The pool reserves large ranges of addresses and maps pages there as they are needed. A block may span pages. It is
//! placed best fit in the free memory of its stream. If it fits nowhere, idle or new pages are mapped at addresses
//! where it fits. A page is idle if no block is in it and no [`Hold`](super::Hold) keeps it. The *reserved memory* of a
//! pool is the bytes of all its pages, not its reserved addresses.
//!
//! - `arena`: the blocks, pages and addresses. It calls no driver and reads no clock.
//! - `plan`: selects the place of a block for which free memory has no room, and the pages to map there.
//!
//! The engine carries a plan out. It orders the streams, makes the driver calls and notifies the trackers.
//!
//! Invariants:
//! - A page does not move while it is held. Nor does it move while a block in it is handed out, or may still be used by
//!   another stream.
//! - A page moves only to addresses where nothing is mapped. Before it moves, the stream that needs it is ordered after
//!   all streams that used it.
//! - A page can be mapped at its old and its new addresses at once. The old addresses stay mapped at least until the
//!   host has seen the end of the uses there. They are unmapped when pages are to be mapped there, when a page is to
//!   return to the source, or when there are more bytes of old addresses than reserved memory. One call unmaps all
//!   neighbouring old addresses.
//! - While the source is called to create, map, unmap or release pages, the structure lock of the
//!   [registry](super::registry) is held, and no other lock.
//!
//! # Bound of the reserved memory
//!
//! A block is *in use* if it is handed out, or if it was freed but another stream may still use it. For a pool, let:
//! - `P` be the peak: the largest number of bytes that were in use at one time,
//! - `n` be the largest number of blocks that were in use at one time,
//! - `L` be the length of its longest page in bytes,
//! - `S` be the slack: the memory that the pool may reserve beyond the peak before it moves idle pages. It is at most
//!   the maximum of 8 MiB, the length of the pool's smallest page, and `P / 64`.
//!
//! While all pages of the pool may move, its reserved memory is at most `P + S + 2 * n * L`. All pages may move while
//! no page is held, no stream is being captured, and the streams may wait for each other. The reason for the bound is
//! that the pool grows beyond `P + S` only when every page has a block in it. A block fills all its pages except
//! perhaps the first and the last, so at most `2 * n` pages are partly empty. The pool usually reserves far less (see
//! `plan`).

mod arena;
mod plan;

pub(super) use arena::{Arena, ArenaList, FreeSpan, Remains};
pub(super) use plan::{Budget, Plan};

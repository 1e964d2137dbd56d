//! Memory whose physical pages move: one growing range of addresses, best fit over all of it, and pages that lie idle
//! where no block fits are mapped again where one does.
//!
//! - `arena`: blocks, pages and addresses; knows neither driver nor clock
//! - `plan`: where a block that fits nowhere goes, and which pages go there
//! - `grow`: carries a plan out, in the order that streams and trackers need
//!
//! Invariants:
//! - A page under a block that is handed out, or that another stream may still use, never moves; nor does a page that
//!   somebody holds.
//! - A page moves to addresses at which nothing is mapped, after the stream that wants it has been ordered behind all
//!   that used it. What was mapped at its old addresses is unmapped, and these are used again, only once the host has
//!   seen the end of that. It is unmapped when pages are to be mapped there, or one is to go back to the source: all
//!   that lies together then by one call.
//! - The driver is called under the growth lock alone.
//! - As long as any page may move (nobody holds it, no stream captures, the streams may wait for each other), a pool
//!   never reserves more than its peak, and 8 MiB or a 64th of that, and two of its longest pages for each block that
//!   is handed out at a time: it grows beyond its need only when each of its pages has a block in it. Mostly it is far
//!   less (see `plan`).

mod arena;
mod grow;
mod plan;

pub(super) use arena::{Arena, Remains};

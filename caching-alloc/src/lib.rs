//! A stream-ordered caching allocator for GPU memory, with pools and trace hooks.
//!
//! - [`core`]: the allocator itself, pure safe code over [`SegmentSource`](core::SegmentSource) and
//!   [`StreamEvents`](core::StreamEvents); [`core::symmetric`]: placement that is the same on every rank.
//! - [`driver`]: sources and streams of real devices.
//! - [`host`]: a source and streams without a device.
//! - `cudarc` (the feature of that name): blocks as that crate's memory, its streams as the allocator's.
//!
//! | in [`core`] | what it is |
//! | --- | --- |
//! | `Allocator`, `Pool`, `Block` | the handles: a device's memory, a part kept apart, memory of one owner |
//! | `heap`, `front` | placement without addresses: best fit over merged blocks; freed blocks kept whole |
//! | `fixed`, `remap` | what lies under the blocks: segments of one stream that stay; pages that all streams share and that move |
//! | `shard`, `slot` | front and leases of one stream of one pool, behind the one lock that a hit takes; where they lie |
//! | `table`, `recent` | a pool's shards, of which idle ones are retired; those that a thread has used last |
//! | `miss`, `pending`, `release`, `collect` | what a request does that finds nothing; blocks in use by other streams; giving back; by age |
//! | `TorchConf`, `Rounding` | settings, as PyTorch's users write them; requests rounded so that near sizes share blocks |
//! | `observer`, `raw`, `export` | who is told of want of memory; blocks by address; blocks for other processes |
//! | `device` | what all pools share: segments, trackers, the order of structural entries |
//! | `route`, `graph` | which pool a request goes to; pools whose memory is baked into graphs |
//! | `Tracker`, `Entry`, `Snapshot`, `Since` | what happened, told exactly once and in order; and to readers that come late |
//! | [`symmetric`](core::symmetric) | placement that is a function of the requests alone |
//!
//! It is not for host memory, and knows nothing of collectives: registrars follow it as trackers.
//!
//! Invariants:
//! - Memory is handed out again only after everything that used it, in stream order, as the host has seen, or as the
//!   device waits for it.
//! - A segment keeps its address and its memory until no block of it is handed out, no work on it is left, and nobody
//!   holds it; trackers are told before its first block is handed out and before it goes. A re-mappable pool's
//!   segments are pages: one that moves is a new segment, and the old one is never under a block again.
//! - Neither source, streams nor trackers are called with a lock held that a hit takes; a hit calls none of them
//!   (block trackers get their batches after it, on the same thread; while a stream captures, a hit asks whether it is
//!   its own), and after warm-up allocates nothing.
//! - A capture and the release of memory never overlap. A stream that captures gets only memory that stays.
//! - No lock that a hit takes is held for longer than a bounded piece of work. Snapshots copy a shard piece by piece, and a
//!   free gives a few blocks to the heap.
//! - Memory and time a call do not grow with the streams and segments that there ever were.
//! - Which block serves a request never depends on an address.

pub mod core;
#[cfg(feature = "cudarc")]
pub mod cudarc;
pub mod driver;
pub mod host;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
extern crate self as caching_alloc;
#[cfg(all(test, not(any(loom, shuttle))))]
#[path = "../tests/main.rs"]
mod end_to_end;

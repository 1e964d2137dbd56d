//! A stream-ordered caching allocator for GPU memory, with pools and trace hooks.
//!
//! - [`core`]: the allocator itself, pure safe code over [`SegmentSource`](core::SegmentSource) and
//!   [`StreamEvents`](core::StreamEvents); [`core::symmetric`]: placement that is the same on every rank.
//! - [`driver`]: sources and streams of real devices, and pinned memory of the host.
//! - [`host`]: a source and streams without a device.
//! - [`sources`]: adapters over a source: a limit on its memory, a log of its calls.
//! - `cudarc` (the feature of that name): blocks as that crate's memory, its streams as the allocator's.
//!
//! | in [`core`] | purpose |
//! | --- | --- |
//! | `Allocator`, `Pool`, `Block` | handles of a device's memory, of a separate part, of memory with one owner |
//! | `heap`, `front` | placement without addresses: best fit over merged blocks; cache of freed blocks |
//! | `fixed`, `remap` | memory under the blocks: segments of one stream at fixed addresses; movable pages shared by all streams |
//! | `shard`, `slot` | front and leases of one stream of one pool, behind the one lock of a hit; storage of shards |
//! | `table`, `recent` | a pool's shards, with retirement of idle ones; per-thread cache of recent shards |
//! | `miss`, `pending`, `release`, `collect` | attempts of a request without a free block; blocks in use by other streams; release of memory; collection by age |
//! | `TorchConf`, `Rounding` | settings in PyTorch's syntax; rounding of requests, so similar sizes share blocks |
//! | `observer`, `raw`, `export` | out-of-memory observers; blocks by address; blocks for other processes |
//! | `device` | state shared by all pools: segments, trackers, the order of structural entries |
//! | `route`, `graph` | selection of the pool for a request; pools for graphs |
//! | `Tracker`, `Entry`, `Snapshot`, `Since` | events, delivered exactly once and in order; also to late readers |
//! | [`symmetric`](core::symmetric) | placement as a function of the requests alone |
//!
//! It is not for pageable host memory, and has no notion of collectives: registrars follow it as trackers.
//!
//! Invariants:
//! - Memory is handed out again only after all its uses, by stream order, because the host has seen them end,
//!   or because the device waits for them.
//! - A segment keeps its address and its memory until no block of it is handed out, no work on it is left,
//!   and nobody holds it. Trackers are notified before its first block is handed out and before it is
//!   released. A re-mappable pool's segments are pages: one that moves is a new segment, and the old one is
//!   never under a block again.
//! - Source, streams and trackers are never called with a lock held by hits. A hit calls none of them, and
//!   after warm-up allocates no host memory. There are two exceptions: block trackers get their batches after
//!   the hit, on the same thread; and while a stream captures, a hit asks whether it is its own.
//! - A capture and the release of memory never overlap. A stream that captures gets only memory that stays.
//! - No lock that a hit takes is held for longer than a bounded piece of work. Snapshots copy a shard piece
//!   by piece, and a free moves a few blocks to the heap.
//! - Memory and time per call do not grow with the number of streams and segments that ever existed.
//! - The choice of a block for a request never depends on an address.

pub mod core;
#[cfg(feature = "cudarc")]
pub mod cudarc;
pub mod driver;
pub mod host;
pub mod sources;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

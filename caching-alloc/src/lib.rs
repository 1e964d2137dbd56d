//! A stream-ordered caching allocator for GPU memory, with pools and trace hooks.
//!
//! - [`core`]: the allocator itself, pure safe code over [`SegmentSource`](core::SegmentSource) and
//!   [`StreamEvents`](core::StreamEvents); [`core::symmetric`]: placement that is the same on every rank.
//! - [`driver`]: sources and streams of real devices, and pinned memory of the host.
//! - [`host`]: a source and streams without a device.
//! - [`sources`]: adapters over a source: a limit on its memory, a log of its calls.
//! - `cudarc` (the feature of that name): blocks as that crate's memory, its streams as the allocator's.
//!
//! Modules of [`core`], lowest first; a module uses those above it in this table only:
//!
//! | module | purpose |
//! | --- | --- |
//! | `size`, `stream`, `rounding`, `lock`, `sync` | units and size classes; streams and events; rounding of requests; locks with an order |
//! | `source`, `segment`, `request` | memory's source; a segment and its holds; a request and who made it |
//! | `heap`, `fixed`, `remap` | placement: best fit over merged blocks; segments at fixed addresses; pages that move |
//! | `entry`, `stats`, `settings`, `snapshot`, `error`, `tracker` | trace entries, counters, settings, states, errors; delivery to trackers |
//! | `block_meta`, `quick_list`, `ring`, `pending` | records of blocks; freed blocks for the next request; recent entries; blocks in use by other streams |
//! | `registry` | what all pools share: live segments, trackers and the order of structural entries, limits, deferred releases |
//! | `pool_info`, `slot`, `block`, `stream_cache` | a pool's settings and guards; the state behind the one lock of a hit; a block; the cache of one stream |
//! | `pool_core`, `route`, `observer` | a pool's stream caches; selection of the pool; out-of-memory observers |
//! | `engine` | attempts of a request that misses (a state machine without I/O) and their effects; release; snapshots |
//! | `pool`, `graph`, `allocator`, `export` | the public handles |
//! | [`symmetric`](core::symmetric) | placement as a function of the requests alone, for `symm-mem` |
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
//! - No lock that a hit takes is held for longer than a bounded piece of work. Snapshots copy a cache piece by piece, and a free moves a few blocks to the heap.
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

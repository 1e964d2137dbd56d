//! A stream-ordered caching allocator for GPU memory, with pools and trackers.
//!
//! - [`core`]: the allocator itself. It is safe code that gets memory from a [`SegmentSource`](core::SegmentSource) and
//!   orders streams by [`StreamEvents`](core::StreamEvents). [`core::symmetric`] computes placements that are the same
//!   on every rank.
//! - [`driver`]: sources and streams of real devices, and pinned host memory.
//! - [`host`]: a source and streams without a device, for tests, replays and examples.
//! - [`sources`]: adapters that limit the memory of a source, or log its calls.
//! - `cudarc` (with the feature `cudarc`): use of blocks as memory of the `cudarc` crate, on streams of that crate.
//!
//! A *hit* is a request that cached memory serves.
//!
//! Below these modules is the private module `sync`: the locks of the standard library, a spin lock for hits, and the
//! types of model checkers that replace them in models.
//!
//! Modules of [`core`], lowest first. A module uses only modules in its own row and in earlier rows of this table:
//!
//! | module | purpose |
//! | --- | --- |
//! | `size`, `graph_use`, `stream`, `rounding`, `lock` | units and size classes; graphs as users of blocks; streams and events; rounding of requests; locks with a fixed order |
//! | `source`, `segment`, `request` | the source of memory; a segment and its holds; a request and its caller |
//! | `heap`, `fixed` | placement: best fit over merged blocks; segments at fixed addresses |
//! | `entry`, `stats`, `settings`, `snapshot`, `error`, `tracker` | trace entries, counters, settings, snapshots, errors; delivery to trackers |
//! | `block_meta`, `quick_list`, `ring`, `pending` | metadata of blocks; freed blocks for the next request; recent trace entries; freed blocks that other streams or graphs still use |
//! | `remap` | placement in pages that move |
//! | `registry` | the state that all pools share: live segments, trackers and the order of structural entries, limits, deferred releases |
//! | `key`, `pool_info`, `slot`, `block`, `stream_cache` | the key of a cache: its pool and stream; a pool's settings and guards; a cache's state, under the lock that every hit takes; a block; the cache of one stream |
//! | `pool_core`, `recent`, `route`, `observer` | a pool's stream caches; the caches that a thread used last; selection of the pool; out-of-memory observers |
//! | `engine` | attempts to serve a request that misses (a state machine without I/O) and their effects; release; snapshots |
//! | `pool`, `graph`, `allocator`, `export`, `conf` | the public handles; export of blocks to other processes; settings from PyTorch's configuration strings |
//! | [`symmetric`](core::symmetric) | placement as a function of the requests alone, for `symm-mem` |
//!
//! The allocator does not serve pageable host memory. It registers no memory with communication libraries: code that
//! does so attaches as a tracker.
//!
//! Invariants:
//! - Memory is handed out again only after all its uses. Either stream order ensures that, or the host has seen the
//!   uses end, or the device waits for them.
//! - A segment keeps its address and its memory as long as a block of it is handed out, work uses it, or a
//!   [`Hold`](core::Hold) keeps it. Trackers are notified before its first block is handed out and before it is
//!   released. The segments of a re-mappable pool are pages. A page that moves becomes a new segment, and no block ever
//!   lies in the old one again.
//! - No source or stream is called under a lock that a hit takes. No tracker is called under a lock that a request
//!   takes, except the delivery lock of a cache. A request takes that lock to deliver a full batch of block entries,
//!   and before it removes or moves a segment of the cache. Trackers get structural entries (see
//!   [`Entry`](core::Entry)) one after another. An entry about memory is delivered before the memory is handed out or
//!   released. So a request that adds memory waits for trackers that are still busy with earlier entries.
//! - A hit calls no source, stream or tracker, and after warm-up allocates no host memory. There are two exceptions.
//!   Block trackers get their batches after the hit, on the same thread. While any stream captures, a hit queries the
//!   capture status of its own stream.
//! - Memory of a stream that captures is not released. Such a stream gets memory only from a pool that releases no
//!   memory: a graph pool or a frozen pool.
//! - A block that captured work uses goes to no other block while the graph exists. With
//!   [`DriverEvents`](crate::driver::DriverEvents), captured calls of process-group and symm-mem are seen without a
//!   call of the program. Otherwise, the program calls
//!   [`Allocator::used_by_graph`](crate::core::Allocator::used_by_graph).
//! - A lock that a hit takes is held only for a bounded amount of work: a snapshot copies a cache piece by piece, and a
//!   free moves only a few blocks to the heap. There are two exceptions. When a [`Checkpoint`](core::Checkpoint) is
//!   made or restored, the time under this lock grows with the number of blocks. When a request misses or memory is
//!   released, the time under this lock can grow with the number of segments, pages and free blocks.
//! - The time of a call, and the host memory of the allocator, do not grow with the number of former streams and
//!   segments.
//! - The choice of a block for a request never depends on addresses.

pub mod core;
#[cfg(feature = "cudarc")]
pub mod cudarc;
pub mod driver;
pub mod host;
pub mod sources;
mod sync;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

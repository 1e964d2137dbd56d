//! Settings of allocators and pools.

use std::sync::Arc;

use super::rounding::{Fraction, Rounding};
use super::source::SegmentSource;

/// An allocator's settings. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The limit on all segments together; `None`: the source's limit.
    pub memory_limit: Option<u64>,
    /// Bytes of freed blocks that each pool and stream caches whole for the next request of the same size.
    /// Blocks longer than a sixteenth of it are not cached. Re-mappable pools cache less, a 4096th of their
    /// peak need, since cached blocks do not merge.
    pub quick_list_bytes: u64,
    /// Smallest segment for requests of up to 1 MiB.
    pub small_segment: u64,
    /// Smallest segment for larger requests.
    pub large_segment: u64,
    /// A new segment for larger requests is at least this fraction of the memory that its pool and stream
    /// already have: 1/`growth_divisor`; a segment for requests of up to 1 MiB, four times that. A segment
    /// holds whole blocks of the requested length. When memory is scarce it holds ever fewer, down to one,
    /// and never more than a quarter of the remaining memory. Larger divisors waste less, smaller ones make
    /// fewer segments.
    pub growth_divisor: u64,
    /// Before a segment for larger requests is made, idle segments of its pool and stream that are too short
    /// are released, up to as many bytes, so little memory is reserved that large requests cannot use. The
    /// host waits for the stream then, which becomes rare as the short segments are gone.
    pub replace_idle: bool,
    /// While more than this part of the memory limit is reserved, segments that have been idle longer than
    /// average are released before more is reserved. `None`, or no limit: never. Re-mappable memory has no
    /// age: above that part, idle pages are moved before new ones are made for their pool.
    #[doc(alias = "garbage_collection_threshold")]
    pub collect_above: Option<Fraction>,
    /// The rounding of requests in pools that split blocks.
    #[doc(alias = "roundup_power2_divisions")]
    pub rounding: Rounding,
    /// Blocks longer than this (rounded up to the segments' step) are not split. They serve only requests
    /// that are also longer, and only whole, so that short requests do not use up long blocks. Applies to
    /// [`PoolKind::Cached`] pools.
    #[doc(alias = "max_split_size_mb")]
    pub max_split: Option<u64>,
    /// The most bytes that a request longer than [`max_split`](Self::max_split) may waste of a block; it does
    /// not use a block that exceeds it by more.
    #[doc(alias = "max_non_split_rounding_mb")]
    pub max_unsplit_waste: u64,
    /// Use of other streams' memory before a new segment is made.
    pub reuse: Reuse,
    /// Trace entries kept per pool and stream (rounded up to a power of two, at most 2^24).
    pub ring_entries: usize,
    /// Structural entries kept, for snapshots and for [`Allocator::since`](super::Allocator::since).
    pub structural_entries: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            memory_limit: None,
            quick_list_bytes: 16 << 20,
            small_segment: 2 << 20,
            large_segment: 32 << 20,
            growth_divisor: 16,
            replace_idle: true,
            collect_above: None,
            rounding: Rounding::none(),
            max_split: None,
            max_unsplit_waste: 20 << 20,
            reuse: Reuse::DeviceWait,
            ring_entries: 1 << 14,
            structural_entries: 1 << 14,
        }
    }
}

/// The memory that a request may take from other streams of its pool before it misses. A stream that carries
/// collectives, or is being captured, gives and takes memory only after the host has seen the end of its
/// uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reuse {
    /// None.
    OwnStream,
    /// Memory that the other stream has finished using, as far as the host has seen.
    HostSeen,
    /// Also memory that the other stream is still using: the new stream waits for it on the device.
    DeviceWait,
}

/// A private pool's settings.
#[derive(Debug, Clone, Default)]
pub struct PoolSettings {
    /// A name for reports.
    pub name: String,
    /// The source of its segments; `None`: the allocator's source.
    pub source: Option<Arc<dyn SegmentSource>>,
    /// The kind of the pool.
    pub kind: PoolKind,
    /// True if the default pool may use its free blocks before a request there is out of memory.
    #[doc(alias = "use_on_oom")]
    pub lends: bool,
    /// True if it may use free blocks of the default pool before a request of it is out of memory. Those
    /// blocks do not come from its own source. Only a re-mappable pool borrows re-mappable memory.
    pub borrows: bool,
}

impl PoolSettings {
    /// Describes a contradiction in the settings, if there is one.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        match self.kind {
            PoolKind::NoSplit if self.borrows => {
                Some("a pool that does not split cannot borrow blocks: they are parts of segments")
            }
            _ => None,
        }
    }
}

/// The way in which a pool manages its segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PoolKind {
    /// Splits, merges and reuses blocks, like the default pool.
    #[default]
    Cached,
    /// Like [`Cached`](Self::Cached), over pages that are mapped where they are needed: the reserved memory
    /// of all its streams stays within a few per cent of the memory in use. For memory used by its own device
    /// alone, since peers, other processes and communicators need memory that stays in place. Needs a source
    /// of pages ([`SegmentSource::as_pages`]).
    Remappable,
    /// One block per segment: never splits, so each block can be registered, exported or mapped by itself.
    NoSplit,
}

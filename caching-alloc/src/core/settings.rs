//! Settings of allocators and pools.

use std::sync::Arc;

use super::rounding::{Fraction, Rounding};
use super::source::SegmentSource;

/// An allocator's settings. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The limit on the bytes in all segments. With `None`, only the source limits them.
    pub memory_limit: Option<u64>,
    /// The limit on the bytes of short freed blocks that each stream of a pool keeps in its quick list. Such a block is
    /// not merged with its neighbours, so the next request of the same length can take it as it is. A block is short if
    /// it has at most a sixteenth of this limit. Of the longer blocks, the list keeps only the one that was freed last;
    /// it does not count towards the limit. In a re-mappable pool, the limit is at most 1/4096 of the pool's peak use,
    /// and no long block is kept, because free memory must be visible to all streams. A [`PoolKind::NoSplit`] pool
    /// keeps no blocks in quick lists.
    pub quick_list_bytes: u64,
    /// In [`PoolKind::Cached`] pools, the length of the first segment of a pool and stream for requests of up to 1 MiB,
    /// before the adjustments that [`growth_divisor`](Self::growth_divisor) describes.
    pub small_segment: u64,
    /// Like [`small_segment`](Self::small_segment), but for larger requests.
    pub large_segment: u64,
    /// Determines the length of a new segment in [`PoolKind::Cached`] pools. For requests larger than 1 MiB, the length
    /// is 1/`growth_divisor` of the memory that the pool and stream already have for such requests, but not less than
    /// [`large_segment`](Self::large_segment). For smaller requests, it is four times that fraction, but not less than
    /// [`small_segment`](Self::small_segment). The length is then limited to a quarter of the remaining memory, and
    /// adjusted to a whole number of blocks of the requested length, at least one. If there is not enough memory for
    /// that length, half as many blocks are tried each time, down to one. Large divisors waste less memory, and small
    /// ones make fewer segments.
    pub growth_divisor: u64,
    /// If true, idle segments that are too short for a request are released before a new segment is allocated for it.
    /// This applies to requests larger than 1 MiB in [`PoolKind::Cached`] pools, on streams that do not carry
    /// collectives. Short idle segments of the same pool and stream are released, newest first, until the total length
    /// of the released segments is at least the length of the new segment, or none are left. As a result, little memory
    /// stays reserved that large requests cannot use. Each release blocks the host until the stream's work has ended.
    /// Releases become rare when no short segments are left.
    pub replace_idle: bool,
    /// The part of the memory limit above which idle memory is collected. While more is reserved, segments whose idle
    /// time is at least average are released before new memory is requested, and a re-mappable pool moves idle pages
    /// before it makes new ones. Nothing is collected with `None`, or without a memory limit.
    #[doc(alias = "garbage_collection_threshold")]
    pub collect_above: Option<Fraction>,
    /// The rounding of requests in pools that split blocks.
    #[doc(alias = "roundup_power2_divisions")]
    pub rounding: Rounding,
    /// Blocks longer than this are not split. They serve only requests that are also longer than this, and are handed
    /// out whole. So short requests do not use up long blocks. The value is rounded up to the granularity of segments.
    /// It applies to [`PoolKind::Cached`] pools.
    #[doc(alias = "max_split_size_mb")]
    pub max_split: Option<u64>,
    /// The most bytes by which a block may be longer than its request, for requests longer than
    /// [`max_split`](Self::max_split). The value is rounded up to the granularity of segments.
    #[doc(alias = "max_non_split_rounding_mb")]
    pub max_unsplit_waste: u64,
    /// The memory of other streams that a request may use in its own pool.
    pub reuse: Reuse,
    /// The number of block entries (see [`Entry`](super::Entry)) that are kept for each stream of each pool. It is
    /// rounded up to a power of two, and is at most 2^24.
    pub ring_entries: usize,
    /// The number of structural entries (see [`Entry`](super::Entry)) that are kept for snapshots and for
    /// [`Allocator::since`](super::Allocator::since).
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

/// The memory of other streams that a request may use in its own pool. `DeviceWait` has the effect of `HostSeen` if the
/// stream of the request carries collectives or is being captured, or if the other stream carries collectives. While a
/// stream is being captured, no other stream uses its memory. For blocks of other pools, this setting only decides
/// whether the request may wait on the device: it may with `DeviceWait`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reuse {
    /// No memory of other streams.
    OwnStream,
    /// Memory that the other stream no longer uses, as far as the host has seen.
    HostSeen,
    /// Also memory that the other stream may still use. The requesting stream waits on the device for the end of that
    /// use.
    DeviceWait,
}

/// The settings of a private pool.
#[derive(Debug, Clone, Default)]
pub struct PoolSettings {
    /// A name for reports.
    pub name: String,
    /// The source of the pool's segments. `None` means the allocator's source.
    pub source: Option<Arc<dyn SegmentSource>>,
    /// The kind of the pool.
    pub kind: PoolKind,
    /// True if a request in the default pool may use free blocks of this pool when no segment can be allocated for it.
    #[doc(alias = "use_on_oom")]
    pub lends: bool,
    /// True if a request in this pool may use free blocks of the default pool when no segment can be allocated for it.
    /// These blocks come from the default pool's source, even if this pool has a source of its own. A pool that is not
    /// re-mappable borrows no re-mappable memory.
    pub borrows: bool,
}

impl PoolSettings {
    /// Returns a description of a contradiction in the settings, if there is one.
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
    /// Splits, merges and reuses blocks, like the default pool of [`Allocator::new`](super::Allocator::new).
    #[default]
    Cached,
    /// Like [`Cached`](Self::Cached), but the memory consists of pages, which the pool maps at the addresses where they
    /// are needed. The reserved memory of all its streams usually stays within a few per cent of the peak of the memory
    /// in use. Only the pool's own device can access the pages; peers cannot. Do not register the memory with
    /// communicators, because pages move. An [exported](super::Block::export) block keeps its pages in place until the
    /// export is dropped. Needs a source of pages ([`SegmentSource::as_pages`]).
    Remappable,
    /// Gives each block a segment of its own, so each block can be registered, exported or mapped by itself.
    NoSplit,
}

//! Settings of allocators and pools.

use std::sync::Arc;

use super::rounding::{Fraction, Rounding};
use super::source::SegmentSource;

/// An allocator's settings. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The limit on the bytes in all segments. With `None`, only the source limits them.
    pub memory_limit: Option<u64>,
    /// The limit on the bytes of freed blocks that each stream of a pool caches. A cached block is not merged with its
    /// neighbours, so the next request of the same length can take it as it is. Of blocks longer than a sixteenth of
    /// the limit, only the one freed last is cached. Re-mappable pools cache only up to 1/4096 of their peak need, and
    /// none of the long blocks, because their free memory must be visible to all streams.
    pub quick_list_bytes: u64,
    /// The length of the first segment of a pool and stream for requests of up to 1 MiB, before the adjustments that
    /// [`growth_divisor`](Self::growth_divisor) describes.
    pub small_segment: u64,
    /// Like [`small_segment`](Self::small_segment), but for larger requests.
    pub large_segment: u64,
    /// Determines the length of a new segment. For requests larger than 1 MiB, it is 1/`growth_divisor` of the memory
    /// that the pool and stream already have for such requests, but not less than
    /// [`large_segment`](Self::large_segment). For smaller requests, it is four times that fraction, but not less
    /// than [`small_segment`](Self::small_segment). The length is then limited to a quarter of the remaining memory,
    /// and adjusted to a whole number of blocks of the requested length, at least one. If the source fails to
    /// allocate the segment, segments of ever fewer blocks are tried, down to one. Large divisors waste less memory,
    /// and small ones make fewer segments.
    pub growth_divisor: u64,
    /// If true, idle segments that are too short for a request are replaced. Before a segment for a request larger than
    /// 1 MiB is made, short idle segments of the same pool and stream are released, until they have about as many
    /// bytes. So little memory stays reserved that large requests cannot use. The release blocks the host until the
    /// stream's work has ended. It becomes rare once the short segments are gone.
    pub replace_idle: bool,
    /// The part of the memory limit above which idle memory is collected. While more is reserved, segments whose idle
    /// time is at least average are released before new memory is requested. In a re-mappable pool, idle pages are
    /// moved before new ones are made. Nothing is collected with `None`, or without a memory limit.
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
    /// Block entries kept per pool and stream (rounded up to a power of two, at most 2^24).
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

/// The memory of other streams that a request may use in its own pool. If one of the two streams carries collectives
/// or is being captured, `DeviceWait` permits no more than `HostSeen`. Memory of a stream that is being captured is
/// never used by other streams.
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
    /// These blocks do not come from this pool's source. A pool that is not re-mappable borrows no re-mappable memory.
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
    /// Like [`Cached`](Self::Cached), but the memory consists of pages, which the pool maps at the addresses where
    /// they are needed. The reserved memory of all its streams usually stays within a few per cent of the peak of the
    /// memory in use. Because pages move, the memory must be used by its own device alone, and not by peers, other
    /// processes or communicators. Needs a source of pages ([`SegmentSource::as_pages`]).
    Remappable,
    /// Gives each block a segment of its own, so each block can be registered, exported or mapped by itself.
    NoSplit,
}

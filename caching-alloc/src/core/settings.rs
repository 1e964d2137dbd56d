//! What can be set.

use std::sync::Arc;

use super::rounding::{Fraction, Rounding};
use super::source::SegmentSource;
use super::stream::StreamId;
use super::symmetric::Geometry;

/// An allocator's settings. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The most that all segments together may have; `None`: what the source gives.
    pub memory_limit: Option<u64>,
    /// Freed blocks of a pool and stream that are kept whole for the next request of the same size, at most so many
    /// bytes, and of blocks of up to a sixteenth of that.
    /// Re-mappable pools keep less, a 4096th of the most that they have needed: what is kept does not merge.
    pub front_bytes: u64,
    /// Least size of a segment for requests of up to 1 MiB.
    pub small_segment: u64,
    /// Least size of a segment for larger requests.
    pub large_segment: u64,
    /// A new segment for larger requests is at least this fraction of what its pool and stream have already:
    /// 1/`growth_divisor`; one for requests of up to 1 MiB four times that. A segment holds whole blocks of the length
    /// that is asked for; when memory is scarce, ever fewer, down to one, and never more than a quarter of what is left.
    /// Larger divisors waste less, smaller ones make fewer segments.
    pub growth_divisor: u64,
    /// Before a segment for larger requests is made, segments of its pool and stream that are idle but too short
    /// go back, up to as many bytes: little is reserved that large requests cannot use. The host waits for the
    /// stream then, which becomes rare as the short ones have gone.
    pub replace_idle: bool,
    /// Before more is reserved, while it is above this part of the memory limit, segments that have been idle longer than
    /// the average go. `None`, or no limit: none does. Re-mappable memory has no age: above that part, what is idle is
    /// moved before more is made for its pool.
    #[doc(alias = "garbage_collection_threshold")]
    pub collect_above: Option<Fraction>,
    /// How requests of splitting pools are rounded up.
    #[doc(alias = "roundup_power2_divisions")]
    pub rounding: Rounding,
    /// Blocks longer than this (rounded up to the segments' steps) are not split, and serve requests that are longer too,
    /// and only whole: so that long ones are not eaten up by short ones. Of pools that are [`PoolKind::Cached`].
    #[doc(alias = "max_split_size_mb")]
    pub max_split: Option<u64>,
    /// A request that is longer than [`max_split`](Self::max_split) leaves a block alone of which it would waste more.
    #[doc(alias = "max_non_split_rounding_mb")]
    pub max_unsplit_waste: u64,
    /// Whether memory of other streams is used before a new segment is made.
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
            front_bytes: 16 << 20,
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

/// What a request that would miss may take from other streams of its pool. Never is memory taken from or for a
/// stream that carries collectives or is being captured unless the host has seen the end of its uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reuse {
    /// Nothing.
    OwnStream,
    /// What the host has seen the other stream finish with.
    HostSeen,
    /// Also what the other stream has still to finish with: the new stream waits for it on the device.
    DeviceWait,
}

/// A private pool's settings.
#[derive(Debug, Clone, Default)]
pub struct PoolSettings {
    /// A name for reports.
    pub name: String,
    /// Where its segments come from; `None`: from the allocator's source.
    pub source: Option<Arc<dyn SegmentSource>>,
    /// What it is for.
    pub kind: PoolKind,
    /// Whether the default pool may have free blocks of it before a request there is out of memory.
    #[doc(alias = "use_on_oom")]
    pub lends: bool,
    /// Whether it may have free blocks of the default pool before a request of it is out of memory. Its own source made
    /// none of those; of re-mappable memory only a re-mappable pool borrows.
    pub borrows: bool,
}

impl PoolSettings {
    /// What in it cannot be.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        match self.kind {
            PoolKind::Symmetric { .. } if self.lends || self.borrows => Some(
                "a symmetric pool neither lends nor borrows: its placement is a function of its own requests",
            ),
            PoolKind::NoSplit if self.borrows => {
                Some("a pool that does not split cannot borrow blocks: they are parts of segments")
            }
            _ => None,
        }
    }
}

/// What a pool does with its segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PoolKind {
    /// Splits, merges and reuses, as the default pool does.
    #[default]
    Cached,
    /// As [`Cached`](Self::Cached), over pages that are mapped where they are needed: what all streams of the pool
    /// reserve stays within a few parts in a hundred of what they use. For memory of its own device alone: peers,
    /// other processes and communicators want memory that stays. Needs a source of pages
    /// ([`SegmentSource::as_pages`]).
    Remappable,
    /// One block a segment: never splits, so that each block can be registered, exported or mapped by itself.
    NoSplit,
    /// Places by the sequence of requests alone (see [`symmetric`](super::symmetric)), on one stream. It is never
    /// trimmed, lends nothing and takes nothing from other streams, and a free takes effect at once: its caller
    /// orders every other stream's use before it.
    Symmetric {
        /// The one stream.
        stream: StreamId,
        /// How its segments grow; the same on every rank.
        geometry: Geometry,
    },
}

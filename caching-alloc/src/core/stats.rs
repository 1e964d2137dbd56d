//! Statistics, always on: plain counters beside what they count.

/// A quantity over time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Gauge {
    /// Now.
    pub current: u64,
    /// The most it ever was.
    pub peak: u64,
    /// All that was ever added.
    pub total: u64,
}

impl Gauge {
    pub(super) fn add(&mut self, amount: u64) {
        self.current += amount;
        self.total += amount;
        self.peak = self.peak.max(self.current);
    }

    pub(super) fn sub(&mut self, amount: u64) {
        self.current -= amount;
    }

    fn merge(&mut self, other: &Self) {
        self.current += other.current;
        self.peak += other.peak;
        self.total += other.total;
    }
}

/// What blocks are used for. Bytes, but for `blocks`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Usages {
    /// Number of blocks that are handed out.
    pub blocks: Gauge,
    /// In blocks that are handed out.
    pub allocated: Gauge,
    /// What the owners of those asked for.
    pub requested: Gauge,
    /// In blocks that are handed out or that other streams may still use.
    pub active: Gauge,
}

impl Usages {
    pub(super) fn merge(&mut self, other: &Self) {
        self.blocks.merge(&other.blocks);
        self.allocated.merge(&other.allocated);
        self.requested.merge(&other.requested);
        self.active.merge(&other.active);
    }
}

/// An allocator's or a pool's statistics.
///
/// What is summed over streams is counted for each stream by itself: a peak of the sum is therefore an upper bound,
/// exact as long as one stream is used. `reserved` and `segments` are exact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// All blocks.
    pub all: Usages,
    /// Those of up to 1 MiB.
    pub small: Usages,
    /// The others.
    pub large: Usages,
    /// Bytes of segments, quarantined ones included.
    pub reserved: Gauge,
    /// Number of segments.
    pub segments: Gauge,
    /// Bytes of segments that should have gone back but are held.
    pub quarantined: u64,
    /// Times that the source was asked for a segment.
    pub source_allocations: u64,
    /// Times that a segment was given back.
    pub source_releases: u64,
    /// Times that cached segments were released to serve a request.
    pub retries: u64,
    /// Requests that failed for want of memory.
    pub out_of_memory: u64,
    /// Blocks taken from other streams' memory.
    pub borrowed: u64,
}

//! Statistics, always on: plain counters beside what they count.

use super::segment::SizeClass;

/// A quantity over time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Gauge {
    /// Now.
    pub current: u64,
    /// The most it ever was, or since it was reset.
    pub peak: u64,
    /// All that was ever added, or since it was reset.
    pub total: u64,
}

impl Gauge {
    #[inline]
    pub(super) fn add(&mut self, amount: u64) {
        self.current += amount;
        self.total += amount;
        self.peak = self.peak.max(self.current);
    }

    #[inline]
    pub(super) fn sub(&mut self, amount: u64) {
        self.current -= amount;
    }

    /// The peak begins anew, at what there is now.
    pub(super) fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    /// The total begins anew, at what there is now.
    pub(super) fn reset_total(&mut self) {
        self.total = self.current;
    }

    fn merge(&mut self, other: &Self) {
        self.current += other.current;
        self.peak += other.peak;
        self.total += other.total;
    }

    /// The same with the peak of something that is counted elsewhere.
    fn peaking(self, peak: u64) -> Self {
        Self { peak, ..self }
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

/// What a shard counts, on every hit: each class for itself, and of their sums only the peaks, which cannot be had
/// later. Few stores: the next lock waits for them.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    classes: [Tally; 2],
    peaks: Peaks,
}

#[derive(Debug, Default)]
struct Tally {
    blocks: Flow,
    allocated: Flow,
    requested: Flow,
    /// Bytes of blocks that were let go but not taken back.
    pending: u64,
    peaks: Peaks,
}

/// What came and what went.
#[derive(Debug, Default)]
struct Flow {
    added: u64,
    removed: u64,
}

impl Flow {
    #[inline]
    fn current(&self) -> u64 {
        self.added - self.removed
    }

    fn gauge(&self, peak: u64) -> Gauge {
        Gauge { current: self.current(), peak, total: self.added }
    }
}

#[derive(Debug, Default)]
struct Peaks {
    blocks: u64,
    allocated: u64,
    requested: u64,
    active: u64,
}

impl Peaks {
    #[inline]
    fn raise(&mut self, [blocks, allocated, requested, active]: [u64; 4]) {
        let raise = |peak: &mut u64, now: u64| {
            if now > *peak {
                *peak = now;
            }
        };
        raise(&mut self.blocks, blocks);
        raise(&mut self.allocated, allocated);
        raise(&mut self.requested, requested);
        raise(&mut self.active, active);
    }
}

impl Tally {
    /// Blocks, bytes allocated, requested and active.
    #[inline]
    fn now(&self) -> [u64; 4] {
        let allocated = self.allocated.current();
        [self.blocks.current(), allocated, self.requested.current(), allocated + self.pending]
    }
}

impl Tallies {
    /// A block is handed out.
    #[inline]
    pub(super) fn hand_out(&mut self, class: SizeClass, bytes: u64, requested: u64) {
        let [small, large] = &mut self.classes;
        let (tally, other) = if class == SizeClass::Small { (small, large) } else { (large, small) };
        tally.blocks.added += 1;
        tally.allocated.added += bytes;
        tally.requested.added += requested;
        let (mut now, others) = (tally.now(), other.now());
        tally.peaks.raise(now);
        now.iter_mut().zip(others).for_each(|(sum, other)| *sum += other);
        self.peaks.raise(now);
    }

    /// Its owner lets go.
    #[inline]
    pub(super) fn let_go(&mut self, class: SizeClass, bytes: u64, requested: u64) {
        let tally = &mut self.classes[class as usize];
        tally.blocks.removed += 1;
        tally.allocated.removed += bytes;
        tally.requested.removed += requested;
    }

    /// It stays in use elsewhere, or does so no longer.
    pub(super) fn set_pending(&mut self, class: SizeClass, bytes: u64, pending: bool) {
        let sum = &mut self.classes[class as usize].pending;
        *sum = if pending { *sum + bytes } else { *sum - bytes };
    }

    /// Blocks that are handed out.
    pub(super) fn live(&self) -> u64 {
        self.classes.iter().map(|tally| tally.blocks.current()).sum()
    }

    /// Bytes of blocks that are handed out or that other streams still use.
    pub(super) fn active(&self) -> u64 {
        self.classes.iter().map(|tally| tally.allocated.current() + tally.pending).sum()
    }

    /// Every peak begins anew, at what there is now.
    pub(super) fn reset_peaks(&mut self) {
        let mut sum = [0; 4];
        for tally in &mut self.classes {
            let now = tally.now();
            tally.peaks = Peaks::default();
            tally.peaks.raise(now);
            sum.iter_mut().zip(now).for_each(|(sum, now)| *sum += now);
        }
        self.peaks = Peaks::default();
        self.peaks.raise(sum);
    }

    /// Every total begins anew, at what there is now.
    pub(super) fn reset_totals(&mut self) {
        for tally in &mut self.classes {
            let Tally { blocks, allocated, requested, .. } = tally;
            for flow in [blocks, allocated, requested] {
                *flow = Flow { added: flow.current(), removed: 0 };
            }
        }
    }

    /// The sum, and of which small and large.
    pub(super) fn usages(&self) -> PoolUsages {
        let [small, large] = self.classes.each_ref().map(|tally| {
            let [.., active] = tally.now();
            Usages {
                blocks: tally.blocks.gauge(tally.peaks.blocks),
                allocated: tally.allocated.gauge(tally.peaks.allocated),
                requested: tally.requested.gauge(tally.peaks.requested),
                active: Gauge { current: active, peak: tally.peaks.active, total: tally.allocated.added },
            }
        });
        let mut all = small;
        all.merge(&large);
        let peaks = &self.peaks;
        let all = Usages {
            blocks: all.blocks.peaking(peaks.blocks),
            allocated: all.allocated.peaking(peaks.allocated),
            requested: all.requested.peaking(peaks.requested),
            active: all.active.peaking(peaks.active),
        };
        PoolUsages { all, small, large }
    }
}

/// What blocks are used for: all, and of which small and large.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PoolUsages {
    pub(super) all: Usages,
    pub(super) small: Usages,
    pub(super) large: Usages,
}

impl PoolUsages {
    pub(super) fn merge(&mut self, other: &Self) {
        self.all.merge(&other.all);
        self.small.merge(&other.small);
        self.large.merge(&other.large);
    }

    fn gauges(&mut self) -> impl Iterator<Item = &mut Gauge> {
        let usages = [&mut self.all, &mut self.small, &mut self.large];
        usages.into_iter().flat_map(|usages| {
            let Usages { blocks, allocated, requested, active } = usages;
            [blocks, allocated, requested, active]
        })
    }
}

/// What shards of a pool have counted that are retired: their totals, and the most that all shards that there were at
/// a time can have had together. Nothing of it is current.
#[derive(Debug, Default)]
pub(super) struct PastUsages(PoolUsages);

impl PastUsages {
    /// Adds what shards have counted that are retired; `live`: what all others have counted until then.
    pub(super) fn add(&mut self, mut retired: PoolUsages, mut live: PoolUsages) {
        for ((past, retired), live) in self.0.gauges().zip(retired.gauges()).zip(live.gauges()) {
            past.total += retired.total;
            past.peak = past.peak.max(live.peak + retired.peak);
        }
    }

    /// The sums with those of the shards that there are.
    pub(super) fn with(&mut self, mut live: PoolUsages) -> PoolUsages {
        for (live, past) in live.gauges().zip(self.0.gauges()) {
            live.total += past.total;
            live.peak = live.peak.max(past.peak);
        }
        live
    }

    pub(super) fn reset(&mut self, reset: fn(&mut Gauge)) {
        self.0.gauges().for_each(reset);
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
    /// Bytes of pages that were mapped where they were needed.
    pub remapped: u64,
    /// Calls of sources, by kind.
    pub calls: SourceCalls,
}

/// How often sources were called, whether or not they did what they were asked. On a device each is a call of the
/// driver, or few.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct SourceCalls {
    /// Segments asked for.
    pub allocate: u64,
    /// Segments given back.
    pub release: u64,
    /// Ranges of addresses reserved.
    pub reserve: u64,
    /// Ranges of addresses given back.
    pub unreserve: u64,
    /// Pages made.
    pub create: u64,
    /// Pages given back.
    pub discard: u64,
    /// Pages mapped.
    pub map: u64,
    /// Ranges that the device was let use.
    pub enable: u64,
    /// Ranges unmapped.
    pub unmap: u64,
}

impl Stats {
    /// The part of what is reserved that no block has, and so no request: from 0, nothing is wasted, to 1. 0 if nothing
    /// is reserved.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        if self.reserved.current == 0 {
            return 0.0;
        }
        1.0 - self.all.active.current as f64 / self.reserved.current as f64
    }

    pub(super) fn reset_totals(&mut self) {
        self.reserved.reset_total();
        self.segments.reset_total();
        *self = Self {
            reserved: self.reserved,
            segments: self.segments,
            quarantined: self.quarantined,
            ..Self::default()
        };
    }
}

/// A device's memory, and whose it is. All in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct MemoryReport {
    /// All of it.
    pub total: u64,
    /// Nobody's.
    pub free: u64,
    /// This allocator's segments, of all pools.
    pub reserved: u64,
    /// Of those, what is in blocks.
    pub active: u64,
    /// Neither free nor this allocator's: other processes', the driver's, communicators'.
    pub foreign: u64,
}

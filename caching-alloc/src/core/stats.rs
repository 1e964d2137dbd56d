//! Statistics, always on: plain counters beside the data that they count.

use super::size::SizeClass;

/// A quantity over time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Gauge {
    /// The current value.
    pub current: u64,
    /// The highest value, ever or since it was reset.
    pub peak: u64,
    /// The sum of all additions, ever or since it was reset.
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

    /// Resets the peak to the current value.
    pub(super) fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    /// Resets the total to the current value.
    pub(super) fn reset_total(&mut self) {
        self.total = self.current;
    }

    fn merge(&mut self, other: &Self) {
        self.current += other.current;
        self.peak += other.peak;
        self.total += other.total;
    }

    /// The same gauge with a peak that was counted elsewhere.
    fn peaking(self, peak: u64) -> Self {
        Self { peak, ..self }
    }
}

/// Usage of blocks. In bytes, except for `blocks`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Usages {
    /// Number of blocks that are handed out.
    pub blocks: Gauge,
    /// In blocks that are handed out.
    pub allocated: Gauge,
    /// Requested sizes of blocks that are handed out.
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

/// Counters that a cache updates on every hit: one set for each class. For the sums of both classes only the
/// peaks are stored, since they cannot be computed later. There are few stores, because they delay the next
/// lock operation.
#[derive(Debug, Default)]
pub(super) struct Counters {
    classes: [ClassCounters; 2],
    peaks: Peaks,
}

#[derive(Debug, Default)]
struct ClassCounters {
    blocks: Flow,
    allocated: Flow,
    requested: Flow,
    /// Bytes of blocks that were freed but are not yet reusable.
    pending: u64,
    peaks: Peaks,
}

/// Sums of additions and of removals.
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

impl ClassCounters {
    /// Blocks, bytes allocated, requested and active.
    #[inline]
    fn now(&self) -> [u64; 4] {
        let allocated = self.allocated.current();
        [self.blocks.current(), allocated, self.requested.current(), allocated + self.pending]
    }
}

impl Counters {
    /// Counts a block that is handed out.
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

    /// Counts a block that its owner freed.
    #[inline]
    pub(super) fn request_free(&mut self, class: SizeClass, bytes: u64, requested: u64) {
        let tally = &mut self.classes[class as usize];
        tally.blocks.removed += 1;
        tally.allocated.removed += bytes;
        tally.requested.removed += requested;
    }

    /// Counts a block that stays in use by other streams, or no longer does.
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

    /// Resets every peak to the current value.
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

    /// Resets every total to the current value.
    pub(super) fn reset_totals(&mut self) {
        for tally in &mut self.classes {
            let ClassCounters { blocks, allocated, requested, .. } = tally;
            for flow in [blocks, allocated, requested] {
                *flow = Flow { added: flow.current(), removed: 0 };
            }
        }
    }

    /// The sum, and the parts of small and of large blocks.
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

/// Usage of blocks: all, small and large.
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

/// Usage counted by retired caches of a pool: their totals, and an upper bound of the peak over all caches
/// that existed at the same time. It has no current values.
#[derive(Debug, Default)]
pub(super) struct PastUsages(PoolUsages);

impl PastUsages {
    /// Adds the counts of retired caches; `live` is the sum of all others at that moment.
    pub(super) fn add(&mut self, mut retired: PoolUsages, mut live: PoolUsages) {
        for ((past, retired), live) in self.0.gauges().zip(retired.gauges()).zip(live.gauges()) {
            past.total += retired.total;
            past.peak = past.peak.max(live.peak + retired.peak);
        }
    }

    /// The sums, with those of the existing caches.
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
/// Sums over streams are computed from counts per stream. So a peak of a sum is an upper bound, exact while
/// only one stream is used. `reserved` and `segments` are exact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Stats {
    /// All blocks.
    pub all: Usages,
    /// Blocks of up to 1 MiB.
    pub small: Usages,
    /// Larger blocks.
    pub large: Usages,
    /// Bytes of segments, quarantined ones included.
    pub reserved: Gauge,
    /// Number of segments.
    pub segments: Gauge,
    /// Bytes of segments that should have been released but are held.
    pub quarantined: u64,
    /// Number of segments requested from the source.
    pub source_allocations: u64,
    /// Number of segments released.
    pub source_releases: u64,
    /// Number of times that cached segments were released to serve a request.
    pub retries: u64,
    /// Requests that failed for lack of memory.
    pub out_of_memory: u64,
    /// Blocks taken from other streams' memory.
    pub borrowed: u64,
    /// Bytes of pages that were moved to where they were needed.
    pub remapped: u64,
    /// Calls of sources, by kind.
    pub calls: SourceCalls,
}

/// Number of calls of sources, successful or not. On a device each is one driver call, or a few.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SourceCalls {
    /// Segments requested.
    pub allocate: u64,
    /// Segments released.
    pub release: u64,
    /// Ranges of addresses reserved.
    pub reserve: u64,
    /// Ranges of addresses released.
    pub unreserve: u64,
    /// Pages made.
    pub create: u64,
    /// Pages released.
    pub discard: u64,
    /// Pages mapped.
    pub map: u64,
    /// Ranges to which the device was given access.
    pub enable: u64,
    /// Ranges unmapped.
    pub unmap: u64,
}

impl Stats {
    /// The fraction of reserved memory that is in no block, from 0 (nothing is wasted) to 1. 0 if nothing is
    /// reserved.
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

/// A device's memory, by owner. All in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct MemoryReport {
    /// Total memory of the device.
    pub total: u64,
    /// Free memory.
    pub free: u64,
    /// This allocator's segments, of all pools.
    pub reserved: u64,
    /// The part of `reserved` that is in blocks.
    pub active: u64,
    /// Neither free nor this allocator's: memory of other processes, of the driver, of communicators.
    pub foreign: u64,
}

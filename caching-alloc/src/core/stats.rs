//! Statistics. They are always collected. The counters are plain integers, guarded by the locks of the data that they
//! count.

use super::size::SizeClass;

/// A quantity that changes over time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Gauge {
    /// The current value.
    pub current: u64,
    /// The highest value since creation, or since the last `reset_peaks` of the allocator or the pool.
    pub peak: u64,
    /// The sum of all additions since creation. `reset_totals` of the allocator or the pool sets it to the current
    /// value.
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

    /// Returns this gauge with another peak.
    fn peaking(self, peak: u64) -> Self {
        Self { peak, ..self }
    }
}

/// The use of blocks. Values are in bytes, except for `blocks`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Usages {
    /// Number of blocks that are handed out.
    pub blocks: Gauge,
    /// Bytes in blocks that are handed out.
    pub allocated: Gauge,
    /// Bytes that were requested for the blocks that are handed out.
    pub requested: Gauge,
    /// Bytes in blocks that are handed out, and in freed blocks that other streams may still use.
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

/// The counters of a cache: one set for each size class. Every hit updates them, and each store delays the next lock
/// operation, so few values are stored. The sums over both classes are computed when they are read. Only their peaks
/// are stored.
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
    /// Bytes in freed blocks that other streams may still use.
    pending: u64,
    /// The value of `pending` when the totals were last reset.
    pending_at_reset: u64,
    peaks: Peaks,
}

/// A quantity, as the sum of all additions and the sum of all removals.
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
    /// Returns the current number of blocks, and the bytes allocated, requested and active.
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

    /// With `pending`, counts a freed block that other streams may still use. Otherwise removes a block from that
    /// count.
    pub(super) fn set_pending(&mut self, class: SizeClass, bytes: u64, pending: bool) {
        let sum = &mut self.classes[class as usize].pending;
        *sum = if pending { *sum + bytes } else { *sum - bytes };
    }

    /// Returns the number of blocks that are handed out.
    pub(super) fn live(&self) -> u64 {
        self.classes.iter().map(|tally| tally.blocks.current()).sum()
    }

    /// Returns the bytes in blocks that are handed out, and in freed blocks that other streams may still use.
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
            let ClassCounters { blocks, allocated, requested, pending, pending_at_reset, .. } = tally;
            *pending_at_reset = *pending;
            for flow in [blocks, allocated, requested] {
                *flow = Flow { added: flow.current(), removed: 0 };
            }
        }
    }

    /// Returns the usage of all blocks, of small blocks and of large blocks.
    pub(super) fn usages(&self) -> PoolUsages {
        let [small, large] = self.classes.each_ref().map(|tally| {
            let [.., active] = tally.now();
            Usages {
                blocks: tally.blocks.gauge(tally.peaks.blocks),
                allocated: tally.allocated.gauge(tally.peaks.allocated),
                requested: tally.requested.gauge(tally.peaks.requested),
                active: Gauge {
                    current: active,
                    peak: tally.peaks.active,
                    total: tally.allocated.added + tally.pending_at_reset,
                },
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

/// The usage of all blocks, of small blocks and of large blocks.
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

/// The usage that the retired caches of a pool have counted. A retired cache was removed from its pool because it was
/// empty. Each total is the sum of the caches' totals. Each peak is an upper bound of the pool's peak up to the last
/// retirement. The current values are 0, because retired caches have no blocks.
#[derive(Debug, Default)]
pub(super) struct PastUsages(PoolUsages);

impl PastUsages {
    /// Adds the counts of caches that are being retired. `live` is the usage of the remaining caches.
    pub(super) fn add(&mut self, mut retired: PoolUsages, mut live: PoolUsages) {
        for ((past, retired), live) in self.0.gauges().zip(retired.gauges()).zip(live.gauges()) {
            past.total += retired.total;
            past.peak = past.peak.max(live.peak + retired.peak);
        }
    }

    /// Returns the usage of the pool. `live` is the usage of its existing caches.
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

/// An allocator's or a pool's statistics. In a pool's statistics, only `all`, `small`, `large` and `reserved` are
/// filled in, and the other values are 0.
///
/// The usage of blocks is counted for each stream of each pool, and summed when it is read. The peaks are summed as
/// well, so a peak is an upper bound. It is exact if only one stream of one pool is used. The usage that dropped pools
/// have counted is not included. `reserved` and `segments` are exact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Stats {
    /// All blocks.
    pub all: Usages,
    /// Blocks of up to 1 MiB.
    pub small: Usages,
    /// Larger blocks.
    pub large: Usages,
    /// Bytes in segments, including quarantined ones.
    pub reserved: Gauge,
    /// Number of segments.
    pub segments: Gauge,
    /// Bytes in segments that should have been released but are held (see [`Hold`](super::Hold)).
    pub quarantined: u64,
    /// Number of segments that were requested from sources, successfully or not, and of new pages that were mapped.
    pub source_allocations: u64,
    /// Number of segments and pages released.
    pub source_releases: u64,
    /// Number of times that no memory could be allocated for a request, so that cached memory was released before
    /// another try.
    pub retries: u64,
    /// Number of requests that failed for lack of memory.
    pub out_of_memory: u64,
    /// Number of blocks taken from the memory of another stream or pool.
    pub borrowed: u64,
    /// Bytes in pages that were moved to other addresses.
    pub remapped: u64,
    /// Number of calls to sources, by method.
    pub calls: SourceCalls,
}

/// Number of calls to sources, successful or not. A source of device memory makes one or a few driver calls for each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SourceCalls {
    /// Calls of [`SegmentSource::allocate`](super::SegmentSource::allocate).
    pub allocate: u64,
    /// Calls of [`SegmentSource::release`](super::SegmentSource::release).
    pub release: u64,
    /// Calls of [`PageSource::reserve`](super::PageSource::reserve).
    pub reserve: u64,
    /// Calls of [`PageSource::unreserve`](super::PageSource::unreserve).
    pub unreserve: u64,
    /// Calls of [`PageSource::create`](super::PageSource::create).
    pub create: u64,
    /// Calls of [`PageSource::discard`](super::PageSource::discard).
    pub discard: u64,
    /// Calls of [`PageSource::map`](super::PageSource::map).
    pub map: u64,
    /// Calls of [`PageSource::enable`](super::PageSource::enable).
    pub enable: u64,
    /// Calls of [`PageSource::unmap`](super::PageSource::unmap).
    pub unmap: u64,
}

impl Stats {
    /// Returns the fraction of reserved memory that is not [active](Usages::active), from 0 to 1. Returns 0 if nothing
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

/// The memory of a device, by owner, from [`Allocator::memory_report`](super::Allocator::memory_report). All values are
/// in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct MemoryReport {
    /// Total memory of the device.
    pub total: u64,
    /// Free memory.
    pub free: u64,
    /// Memory in this allocator's segments, of all pools. It includes the pinned host memory of pools whose source
    /// allocates such memory.
    pub reserved: u64,
    /// The part of `reserved` that is [active](Usages::active).
    pub active: u64,
    /// Memory that is neither free nor this allocator's: that of other allocators and processes, of the driver, and of
    /// communicators. It is `total` less `free` and `reserved`, but at least 0.
    pub foreign: u64,
}

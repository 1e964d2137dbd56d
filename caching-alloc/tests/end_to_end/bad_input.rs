//! Invalid requests, arguments and sources: each gives a typed error, and the allocator goes on as before.

use std::sync::Arc;

use super::common::hooked::{HookedStreams, StreamHook};
use super::common::{Bench, MIB, bench, check_tiling, s, tight};
use caching_alloc::core::{
    AllocError, Allocator, Block, Filter, Fraction, MAX_BLOCK, MemoryInfo, PageSource, Pool, PoolKind,
    PoolSettings, RawError, Rounding, SegmentMemory, SegmentSource, Settings, SizeError, SourceError,
    StreamId, Tracker, TrackerError,
};
use caching_alloc::host::{HostSource, HostStreams};
use proptest::prelude::*;

const KINDS: [PoolKind; 3] = [PoolKind::Cached, PoolKind::Remappable, PoolKind::NoSplit];

/// A pool of each kind.
fn pools(allocator: &Allocator) -> [Pool; 3] {
    KINDS.map(|kind| allocator.pool(PoolSettings { kind, ..PoolSettings::default() }).unwrap())
}

#[test]
fn a_size_that_no_block_can_have_is_refused_everywhere() {
    let roundings = [1, 8, 1 << 20, u64::MAX].into_iter().filter_map(Rounding::divisions);
    let roundings = roundings.chain(Rounding::none().from_power(63, 2)).chain(Rounding::divisions(4));
    for rounding in roundings {
        let Bench { allocator, source, .. } = bench(u64::MAX, Settings { rounding, ..tight() });
        let pools = pools(&allocator);
        for bytes in [0, MAX_BLOCK + 1, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, u64::MAX - 511, u64::MAX] {
            let refused = |error: AllocError| match error {
                AllocError::Size(SizeError::Zero) => assert_eq!(bytes, 0),
                AllocError::Size(SizeError::TooLarge { bytes: named, .. }) => assert!(named >= bytes),
                error => panic!("{bytes} bytes: {error}"),
            };
            pools.iter().for_each(|pool| refused(pool.allocate(bytes, s(1)).unwrap_err()));
            refused(allocator.allocate(bytes, s(1)).unwrap_err());
            refused(allocator.allocate_raw(bytes, s(1)).unwrap_err());
        }
        assert_eq!((source.calls().live_bytes, allocator.stats().out_of_memory), (0, 0));
    }
}

#[test]
fn the_longest_blocks_come_and_go() {
    let Bench { allocator, source, .. } = bench(u64::MAX, tight());
    for pool in pools(&allocator) {
        let blocks: Vec<Block> = (0..3).map(|_| pool.allocate(MAX_BLOCK, s(1)).unwrap()).collect();
        assert!(blocks.iter().all(|block| block.bytes() == MAX_BLOCK));
        drop(blocks);
        drop(pool.allocate(MAX_BLOCK - 1, s(1)).unwrap());
        drop(pool.allocate(1, s(1)).unwrap());
    }
    allocator.empty_cache().unwrap();
    assert_eq!(source.calls().live_bytes, 0);
}

#[test]
fn settings_at_their_ends_panic_nobody() {
    let ends = [0, 1, 511, u64::MAX - 1, u64::MAX];
    let mut all: Vec<Settings> = Vec::new();
    for end in ends {
        all.extend([
            Settings { quick_list_bytes: end, ..tight() },
            Settings { small_segment: end, ..tight() },
            Settings { large_segment: end, ..tight() },
            Settings { growth_divisor: end, ..tight() },
            Settings { max_split: Some(end), ..tight() },
            Settings { max_split: Some(MIB), max_unsplit_waste: end, ..tight() },
            Settings { memory_limit: Some(end), collect_above: Fraction::new(0.01), ..tight() },
        ]);
    }
    all.extend([0, 1, 3].map(|ring_entries| Settings { ring_entries, ..tight() }));
    all.extend([0, usize::MAX].map(|structural_entries| Settings { structural_entries, ..tight() }));
    for settings in all {
        let Bench { allocator, .. } = bench(u64::MAX, settings.clone());
        for pool in pools(&allocator) {
            for bytes in [1, MIB, 5 * MIB, 40 * MIB, 3] {
                match pool.allocate(bytes, s(1)) {
                    Ok(block) => assert!(block.bytes() >= bytes),
                    Err(AllocError::OutOfMemory(_)) => {}
                    Err(error) => panic!("{bytes} bytes under {settings:?}: {error}"),
                }
            }
        }
        check_tiling(&allocator.snapshot().unwrap());
        allocator.trim_to(u64::MAX).unwrap();
        allocator.empty_cache().unwrap();
    }
    // A ring with the maximum capacity.
    let settings = Settings { ring_entries: usize::MAX, ..tight() };
    drop(bench(u64::MAX, settings).allocator.allocate(1, s(1)).unwrap());
    for part in [f64::NAN, f64::INFINITY, -0.1, 1e300] {
        assert!(Fraction::new(part).is_none(), "{part}");
    }
}

/// A source that misreports its properties.
#[derive(Debug)]
struct Odd {
    host: HostSource,
    granularity: u64,
}

impl SegmentSource for Odd {
    fn device(&self) -> u32 {
        self.host.device()
    }
    fn granularity(&self) -> u64 {
        self.granularity
    }
    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError> {
        self.host.allocate(bytes)
    }
    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        self.host.release(memory)
    }
    fn as_pages(&self) -> Option<&dyn PageSource> {
        Some(&self.host)
    }
    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        self.host.memory_info()
    }
}

#[test]
fn a_source_with_an_odd_granularity_panics_nobody() {
    for granularity in [0, 1, 511, 513, 3 * MIB, MAX_BLOCK, 2 * MAX_BLOCK, 1 << 63, u64::MAX] {
        let source = Arc::new(Odd { host: HostSource::new(u64::MAX), granularity });
        let allocator = Allocator::new(source, Arc::new(HostStreams::new()), tight());
        for pool in pools(&allocator) {
            for bytes in [1, MIB, 5 * MIB] {
                let block = pool.allocate(bytes, s(1)).unwrap();
                assert!(block.bytes() >= bytes, "{granularity}: {block:?}");
            }
        }
        check_tiling(&allocator.snapshot().unwrap());
    }
}

/// Knows only the streams below 10.
#[derive(Debug, Default)]
struct Few;

impl StreamHook for Few {
    fn is_registered(&self, stream: StreamId) -> bool {
        stream.0 < 10
    }
}

#[test]
fn a_stream_that_nobody_knows_is_named() {
    let source = Arc::new(HostSource::new(u64::MAX));
    let allocator = Allocator::new(source.clone(), Arc::new(HookedStreams::<Few>::default()), tight());
    let unknown = s(u64::MAX);
    let named = |error| assert!(matches!(error, AllocError::UnknownStream { stream } if stream == unknown));
    let [cached, moving, whole] = pools(&allocator);
    for pool in [&cached, &moving, &whole] {
        named(pool.allocate(1, unknown).unwrap_err());
        let block = pool.allocate(1, s(1)).unwrap();
        named(block.record_stream(unknown).unwrap_err());
        block.record_stream(s(2)).unwrap();
    }
    named(allocator.allocate_raw(1, unknown).unwrap_err());
    let graphs = allocator.graph_pool(PoolSettings::default()).unwrap();
    let capture = graphs.capture(&[unknown]);
    named(allocator.allocate(1, unknown).unwrap_err());
    drop(capture.end());
    // An unknown stream does no harm in calls that do not use it.
    allocator.mark_collective(unknown);
    drop((cached, moving, whole, graphs));
    allocator.empty_cache().unwrap();
    assert_eq!(source.calls().live_bytes, 0);
}

#[test]
fn an_address_that_is_no_raw_block_is_named() {
    for remapping in [false, true] {
        let Bench { source, streams, allocator: fixed } = bench(u64::MAX, tight());
        let allocator = match remapping {
            true => Allocator::remapping(source.clone(), streams, tight()).unwrap(),
            false => fixed.clone(),
        };
        let raw = allocator.allocate_raw(3 * MIB, s(1)).unwrap();
        let owned = allocator.allocate(MIB, s(1)).unwrap();
        let elsewhere = Allocator::new(source.clone(), Arc::new(HostStreams::new()), tight());
        let theirs = elsewhere.allocate_raw(MIB, s(1)).unwrap();
        for address in [0, 1, u64::MAX, raw - 512 * MIB, theirs] {
            assert_eq!(allocator.release_raw(address), Err(RawError::Foreign { address }), "{address:#x}");
            assert!(allocator.with_raw(address, |_| ()).is_err());
        }
        for inside in [1, 512, 3 * MIB - 1] {
            let address = raw + inside;
            assert_eq!(allocator.release_raw(address), Err(RawError::Inside { address, begin: raw }));
        }
        for inside in [0, 1, MIB - 1] {
            let address = owned.address() + inside;
            assert_eq!(allocator.release_raw(address), Err(RawError::Owned { address }));
        }
        allocator.release_raw(raw).unwrap();
        assert_eq!(allocator.release_raw(raw), Err(RawError::Free { address: raw }), "freed twice");
        // The memory now belongs to another block.
        let again = allocator.allocate(3 * MIB, s(1)).unwrap();
        assert_eq!(again.address(), raw);
        assert_eq!(allocator.release_raw(raw), Err(RawError::Owned { address: raw }));
        drop((again, owned));
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.release_raw(raw), Err(RawError::Foreign { address: raw }));
        elsewhere.release_raw(theirs).unwrap();
        assert_eq!(allocator.stats().all.allocated.current, 0);
    }
}

#[test]
fn a_hold_on_what_has_gone_is_refused_and_a_late_one_harms_nobody() {
    for kind in KINDS {
        let Bench { source, streams, allocator } = bench(u64::MAX, tight());
        let pool = allocator.pool(PoolSettings { kind, ..PoolSettings::default() }).unwrap();
        let block = pool.allocate(3 * MIB, s(1)).unwrap();
        let segments = block.segments();
        let holds: Vec<_> =
            segments.iter().flat_map(|segment| [segment.hold("a"), segment.hold("b")]).collect();
        let holds: Vec<_> = holds.into_iter().map(Result::unwrap).collect();
        drop((block, pool));
        allocator.empty_cache().unwrap();
        let held: u64 = segments.iter().map(|segment| segment.bytes()).sum();
        assert_eq!(source.calls().live_bytes, held, "{kind:?}");
        drop(allocator);
        // The allocator is gone, so it can no longer release the memory after the last hold.
        drop(holds);
        drop(streams);
        let gone = Allocator::new(source.clone(), Arc::new(HostStreams::new()), tight());
        let block = gone.allocate(MIB, s(1)).unwrap();
        let segment = block.segment();
        drop(block);
        gone.empty_cache().unwrap();
        let late = segment.hold("late").unwrap_err();
        assert_eq!((late.id, late.address), (segment.id(), segment.address()));
        assert!(late.to_string().contains("late"), "{late}");
    }
}

#[test]
fn a_pool_over_another_devices_source_is_refused() {
    let Bench { allocator, .. } = bench(u64::MAX, tight());
    let source: Arc<dyn SegmentSource> = Arc::new(HostSource::new(u64::MAX).on_device(1));
    for kind in KINDS {
        let settings = PoolSettings { source: Some(source.clone()), kind, ..PoolSettings::default() };
        match allocator.pool(settings).unwrap_err() {
            AllocError::OtherDevice { wanted: 0, found: 1, .. } => {}
            error => panic!("{error}"),
        }
    }
    let settings = PoolSettings { source: Some(source), ..PoolSettings::default() };
    assert!(matches!(allocator.graph_pool(settings), Err(AllocError::OtherDevice { .. })));
}

#[test]
fn captures_that_cross_each_other_end_in_any_order() {
    let Bench { source, streams, allocator } = bench(u64::MAX, tight());
    let [first, second] = [(); 2].map(|()| allocator.graph_pool(PoolSettings::default()).unwrap());
    let outer = first.capture(&[s(1), s(1)]);
    let inner = second.capture(&[s(1), s(2)]);
    inner.add_stream(s(1));
    assert_eq!(allocator.allocate(MIB, s(1)).unwrap().pool(), second.id());
    let again = second.capture(&[]);
    again.add_stream(s(3));
    // The outer capture ends first.
    let memory = outer.end();
    assert_eq!(memory.segments().count(), 0);
    assert_eq!(allocator.allocate(MIB, s(1)).unwrap().pool(), second.id());
    drop(inner);
    assert_eq!(allocator.allocate(MIB, s(1)).unwrap().pool(), allocator.default_pool().id());
    let block = allocator.allocate(MIB, s(3)).unwrap();
    assert_eq!(block.pool(), second.id());
    let kept = again.end();
    let frozen = second.freeze();
    let capture = second.capture(&[s(3)]);
    let error = allocator.allocate(64 * MIB, s(3)).unwrap_err();
    assert!(matches!(error, AllocError::PoolWouldGrowDuringCapture { .. }), "{error}");
    drop((frozen, capture, first, second, allocator));
    // A graph's memory outlives all handles of its pool and of the allocator.
    assert!(source.calls().live_bytes > 0);
    drop((memory, block));
    assert!(kept.segments().count() > 0 && source.calls().live_bytes > 0);
    drop(kept);
    assert_eq!((source.calls().live_bytes, streams.live_events()), (0, 0));
}

/// A tracker that ignores all entries.
struct Deaf;

impl Tracker for Deaf {
    fn name(&self) -> &str {
        "deaf"
    }
    fn observe(&self, _: &[caching_alloc::core::Entry]) -> Result<(), TrackerError> {
        Ok(())
    }
}

/// Makes one object of each kind that an allocator returns.
fn everything(remapping: bool) -> (Arc<HostSource>, Arc<HostStreams>, Vec<Box<dyn std::any::Any>>) {
    let Bench { source, streams, allocator: fixed } = bench(u64::MAX, tight());
    let allocator = match remapping {
        true => Allocator::remapping(source.clone(), streams.clone(), tight()).unwrap(),
        false => fixed.clone(),
    };
    let mut things: Vec<Box<dyn std::any::Any>> = Vec::new();
    for pool in pools(&allocator) {
        for bytes in [1, MIB, 5 * MIB] {
            let block = pool.allocate(bytes, s(1)).unwrap();
            streams.enqueue(s(2));
            let _ = block.record_stream(s(2));
            things.push(Box::new(block));
        }
        things.push(Box::new(pool.allocate(2 * MIB, s(1)).unwrap().segment().hold("test").unwrap()));
        things.push(Box::new(pool.freeze()));
        things.push(Box::new(pool.use_on_this_thread()));
        things.push(Box::new(pool));
    }
    let graphs = allocator.graph_pool(PoolSettings::default()).unwrap();
    let capture = graphs.capture(&[s(4)]);
    things.push(Box::new(allocator.allocate(MIB, s(4)).unwrap()));
    things.push(Box::new(capture.end()));
    things.push(Box::new(graphs.capture(&[s(5)])));
    things.push(Box::new(graphs));
    things.push(Box::new(allocator.attach(Arc::new(Deaf), Filter::all()).unwrap()));
    things.push(Box::new(allocator.snapshot().unwrap()));
    things.push(Box::new(allocator));
    (source, streams, things)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn things_are_dropped_in_any_order(
        order in prop::collection::vec(any::<prop::sample::Index>(), 64),
        remapping in any::<bool>(),
        complete in any::<prop::sample::Index>(),
    ) {
        let (source, streams, mut things) = everything(remapping);
        let when = complete.index(things.len());
        for index in order {
            if things.len() == when {
                (0..6).for_each(|stream| streams.complete(s(stream)));
            }
            if !things.is_empty() {
                drop(things.swap_remove(index.index(things.len())));
            }
        }
        prop_assert!(things.is_empty());
        prop_assert_eq!(streams.live_events(), 0);
        let calls = source.calls();
        prop_assert_eq!((calls.live_bytes, calls.ranges, calls.broken), (0, 0, 0));
    }
}

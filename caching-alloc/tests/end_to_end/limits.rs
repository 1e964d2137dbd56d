//! `LimitingSource`: the count agrees with the source under it, whatever fails, and the limit holds exactly.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use caching_alloc::core::{
    AllocError, Allocator, MemoryInfo, PageSource, PoolSettings, SegmentMemory, SegmentSource, Settings,
    SourceError,
};
use caching_alloc::host::{Failing, HostSource, HostStreams, SourceCall};
use caching_alloc::sources::LimitingSource;
use proptest::prelude::*;
use proptest::sample::Index;

use super::common::{MIB, check_tiling, s, tight};

const LIMIT: u64 = 24 * MIB;

#[derive(Debug, Clone)]
enum Step {
    Allocate(u64),
    Release(Index),
    Create(u64),
    Discard(Index),
    Map(Index),
    /// Releases a mapped page with its mapping.
    ReleasePage(Index),
    Fail(SourceCall, bool),
    Capacity(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || (1..8u64).prop_map(|pages| pages * 2 * MIB);
    let call = prop::sample::select(SourceCall::ALL.to_vec());
    prop_oneof![
        4 => bytes().prop_map(Step::Allocate),
        3 => any::<Index>().prop_map(Step::Release),
        4 => bytes().prop_map(Step::Create),
        2 => any::<Index>().prop_map(Step::Discard),
        2 => any::<Index>().prop_map(Step::Map),
        2 => any::<Index>().prop_map(Step::ReleasePage),
        1 => (call, any::<bool>()).prop_map(|(call, scarce)| Step::Fail(call, scarce)),
        1 => (0..40u64).prop_map(|mib| Step::Capacity(mib * MIB)),
    ]
}

fn taken<T>(list: &mut Vec<T>, at: Index) -> Option<T> {
    (!list.is_empty()).then(|| list.swap_remove(at.index(list.len())))
}

/// Checks the result of a request for `bytes` that found `before` bytes counted. `made` is the number of requests
/// that the source under the adapter had received before.
fn check_request<T>(
    result: &Result<T, SourceError>,
    before: u64,
    bytes: u64,
    source: &HostSource,
    made: u64,
) {
    let asked = source.calls();
    let asked = asked.allocate + asked.create - made;
    if before + bytes > LIMIT {
        assert!(matches!(result, Err(SourceError::OutOfMemory { wanted, .. }) if *wanted == bytes));
        assert_eq!(asked, 0, "the source is not asked for what is over the limit");
    } else {
        assert_eq!(asked, 1, "the source decides on what is within the limit");
    }
}

proptest! {
    #[test]
    fn the_count_is_that_of_the_source(steps in prop::collection::vec(step(), 1..60)) {
        let host = Arc::new(HostSource::new(64 * MIB));
        let source = LimitingSource::new(host.clone(), LIMIT);
        let (mut segments, mut pages, mut mapped) = (Vec::new(), Vec::new(), Vec::new());
        let mut capacity = 64 * MIB;
        for step in steps {
            let before = source.allocated();
            let made = host.calls().allocate + host.calls().create;
            match step {
                Step::Allocate(bytes) => {
                    let result = source.allocate(bytes);
                    check_request(&result, before, bytes, &host, made);
                    segments.extend(result);
                }
                Step::Release(at) => _ = taken(&mut segments, at).map(|memory| source.release(&memory)),
                Step::Create(bytes) => {
                    let result = source.create(bytes);
                    check_request(&result, before, bytes, &host, made);
                    pages.extend(result.map(|token| (token, bytes)));
                }
                Step::Discard(at) => {
                    _ = taken(&mut pages, at).map(|(token, bytes)| source.discard(token, bytes));
                }
                Step::Map(at) => {
                    if let Some((token, bytes)) = taken(&mut pages, at) {
                        let place = source.reserve(bytes);
                        let memory = place.map(|address| SegmentMemory { address, bytes, token });
                        match memory.and_then(|memory| source.map(&memory).map(|()| memory)) {
                            Ok(memory) => {
                                let _ = source.enable(memory.address, bytes);
                                mapped.push(memory);
                            }
                            Err(_) => pages.push((token, bytes)),
                        }
                    }
                }
                Step::ReleasePage(at) => _ = taken(&mut mapped, at).map(|memory| source.release(&memory)),
                Step::Fail(call, scarce) => {
                    let failing = Failing::once(0);
                    host.fail(call, if scarce { failing.for_want_of_memory() } else { failing });
                }
                Step::Capacity(bytes) => {
                    capacity = bytes;
                    host.set_capacity(bytes);
                }
            }
            // Memory that the source failed to release stays counted.
            prop_assert_eq!(source.allocated(), host.calls().live_bytes);
            prop_assert!(source.allocated() <= LIMIT);
        }
        prop_assert_eq!(host.calls().broken, 0);
        host.heal();
        let MemoryInfo { free, total } = source.memory_info().unwrap();
        let used = source.allocated();
        let expected = capacity.saturating_sub(used).min(LIMIT - used);
        prop_assert_eq!((free, total), (expected, capacity.min(LIMIT)));
        prop_assert!(free <= total);
    }
}

#[test]
fn the_limit_is_exact_when_threads_ask_at_once() {
    const THREADS: u64 = 8;
    const FIT: u64 = 5;
    let source = LimitingSource::new(HostSource::new(1 << 40), FIT * 2 * MIB);
    let (barrier, granted) = (Barrier::new(8), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for round in 0..300 {
                    barrier.wait();
                    let segment = source.allocate(2 * MIB);
                    if segment.is_ok() {
                        granted.fetch_add(1, Ordering::Relaxed);
                    }
                    barrier.wait();
                    assert_eq!(granted.load(Ordering::Relaxed), FIT * (round + 1));
                    // Released memory is subtracted from the count before the next round.
                    segment.iter().for_each(|segment| source.release(segment).unwrap());
                }
            });
        }
    });
    let calls = source.upstream().calls();
    assert_eq!((source.allocated(), calls.live_bytes, calls.peak_bytes), (0, 0, FIT * 2 * MIB));
}

/// A source that only counts bytes. It is fast enough for threads to meet inside the adapter.
#[derive(Debug, Default)]
struct Counting {
    live: AtomicU64,
    peak: AtomicU64,
}

impl SegmentSource for Counting {
    fn device(&self) -> u32 {
        0
    }
    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError> {
        let live = self.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(live, Ordering::Relaxed);
        Ok(SegmentMemory { address: 2 * MIB, bytes, token: 0 })
    }
    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        self.live.fetch_sub(memory.bytes, Ordering::Relaxed);
        Ok(())
    }
    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        Ok(MemoryInfo { free: 0, total: 0 })
    }
}

#[test]
fn threads_never_share_the_last_bytes() {
    let source = LimitingSource::new(Counting::default(), 2 * MIB);
    let (refused, start) = (AtomicU64::new(0), Barrier::new(4));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                start.wait();
                for round in 0..50_000_000 {
                    // On a busy machine, the threads may run one after another at first.
                    if round >= 200_000 && refused.load(Ordering::Relaxed) > 0 {
                        break;
                    }
                    match source.allocate(2 * MIB) {
                        Ok(segment) => source.release(&segment).unwrap(),
                        Err(_) => _ = refused.fetch_add(1, Ordering::Relaxed),
                    }
                }
            });
        }
    });
    assert!(refused.into_inner() > 0, "the threads meet");
    let Counting { live, peak } = source.upstream();
    assert_eq!((live.load(Ordering::Relaxed), source.allocated()), (0, 0));
    assert_eq!(peak.load(Ordering::Relaxed), source.limit());
}

#[test]
fn an_allocator_over_the_limit_is_out_of_memory_until_memory_is_free() {
    let source = Arc::new(LimitingSource::new(HostSource::new(1 << 30), 16 * MIB));
    let allocator = Allocator::new(source.clone(), Arc::new(HostStreams::new()), tight());
    let block = allocator.allocate(10 * MIB, s(1)).unwrap();
    match allocator.allocate(10 * MIB, s(1)) {
        Err(AllocError::OutOfMemory(figures)) => {
            let info = figures.info.expect("the source reports its memory");
            assert_eq!((info.total, info.free), (16 * MIB, 16 * MIB - source.allocated()));
        }
        other => panic!("{other:?}"),
    }
    drop(block);
    // The cached segment is too short for the request. It is released, and subtracted from the count, before the
    // request could fail.
    let block = allocator.allocate(15 * MIB, s(1)).unwrap();
    assert_eq!(source.allocated(), 16 * MIB);
    drop(block);
    allocator.empty_cache().unwrap();
    assert_eq!(source.allocated(), 0);
}

#[test]
fn pools_and_allocators_share_a_limit() {
    let source = Arc::new(LimitingSource::new(HostSource::new(1 << 30), 16 * MIB));
    let streams = Arc::new(HostStreams::new());
    let [own, other] =
        [(); 2].map(|()| Allocator::new(Arc::new(HostSource::new(1 << 30)), streams.clone(), tight()));
    let limited = |allocator: &Allocator| {
        let settings = PoolSettings { source: Some(source.clone()), ..PoolSettings::default() };
        allocator.pool(settings).unwrap()
    };
    let (first, second) = (limited(&own), limited(&other));
    let block = first.allocate(12 * MIB, s(1)).unwrap();
    assert!(matches!(second.allocate(12 * MIB, s(1)), Err(AllocError::OutOfMemory(_))));
    own.allocate(100 * MIB, s(1)).expect("other pools have no limit");
    drop(block);
    own.empty_cache().unwrap();
    second.allocate(12 * MIB, s(1)).unwrap();
}

#[test]
fn a_remappable_pool_moves_pages_within_the_limit() {
    let source = Arc::new(LimitingSource::new(HostSource::new(1 << 30), 16 * MIB));
    let settings = Settings { quick_list_bytes: 0, ..tight() };
    let allocator = Allocator::remapping(source.clone(), Arc::new(HostStreams::new()), settings).unwrap();
    let mut blocks: Vec<_> = (0..8).map(|_| allocator.allocate(2 * MIB, s(1)).unwrap()).collect();
    assert!(matches!(allocator.allocate(2 * MIB, s(1)), Err(AllocError::OutOfMemory(_))));
    // Every other page is free: a block of four pages needs them moved, and no new ones.
    let mut place = 0;
    blocks.retain(|_| {
        place += 1;
        place % 2 == 0
    });
    let block = allocator.allocate(8 * MIB, s(1)).unwrap();
    assert_eq!(source.allocated(), 16 * MIB);
    check_tiling(&allocator.snapshot().unwrap());
    drop((block, blocks));
    allocator.empty_cache().unwrap();
    assert_eq!(source.allocated(), 0);
    drop(allocator);
    assert_eq!(source.upstream().calls().ranges, 0);
}

/// A source with faults of its own: it panics, or returns less than was asked for.
#[derive(Debug)]
struct Faulty {
    panics: bool,
}

impl SegmentSource for Faulty {
    fn device(&self) -> u32 {
        0
    }
    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError> {
        assert!(!self.panics, "told to panic");
        Ok(SegmentMemory { address: 2 * MIB, bytes: bytes / 2, token: 0 })
    }
    fn release(&self, _memory: &SegmentMemory) -> Result<(), SourceError> {
        Ok(())
    }
    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        Ok(MemoryInfo { free: 0, total: 0 })
    }
}

#[test]
fn a_source_that_panics_or_returns_less_keeps_the_count_right() {
    let source = LimitingSource::new(Faulty { panics: true }, LIMIT);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| source.allocate(4 * MIB)));
    panicked.expect_err("the source panics");
    assert_eq!(source.allocated(), 0);

    let source = LimitingSource::new(Faulty { panics: false }, LIMIT);
    let memory = source.allocate(4 * MIB).unwrap();
    assert_eq!(source.allocated(), 2 * MIB);
    source.release(&memory).unwrap();
    source.release(&memory).unwrap();
    assert_eq!(source.allocated(), 0, "a second release takes nothing off");
    assert!(source.as_pages().is_none());
    assert!(matches!(source.create(2 * MIB), Err(SourceError::Failed { .. })));
    assert_eq!(source.allocated(), 0);
}

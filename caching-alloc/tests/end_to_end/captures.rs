//! Captures beside other operations: no memory that a graph uses is released or moved.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::common::hooked::{Call, HookedStreams, StreamHook};
use super::common::pause::Pause;
use super::common::{MIB, bench, remapping_bench, s, tight};
use caching_alloc::core::{
    ActionKind, AllocError, Allocator, Entry, Filter, Freeze, GraphPool, GraphUse, MemoryInfo, Pool,
    PoolKind, PoolSettings, Segment, SegmentMemory, SegmentSource, SourceError, Tracker, TrackerError,
};
use caching_alloc::host::{HostSource, StreamCall};

/// A source that stops a thread inside an allocation.
#[derive(Debug)]
struct PausedSource {
    host: HostSource,
    in_allocate: Pause,
}

impl SegmentSource for PausedSource {
    fn device(&self) -> u32 {
        0
    }
    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError> {
        self.in_allocate.pass();
        self.host.allocate(bytes)
    }
    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        self.host.release(memory)
    }
    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        self.host.memory_info()
    }
}

/// Stops a thread inside a call of streams.
#[derive(Debug, Default)]
struct StreamPauses {
    in_is_capturing: Pause,
    in_record: Pause,
}

impl StreamHook for StreamPauses {
    fn before(&self, call: Call) {
        if matches!(call, Call::Record(_)) {
            self.in_record.pass();
        }
    }
    fn after_is_capturing(&self) {
        self.in_is_capturing.pass();
    }
}

fn paused() -> (Arc<PausedSource>, Arc<HookedStreams<StreamPauses>>, Allocator) {
    let source = Arc::new(PausedSource { host: HostSource::new(1 << 30), in_allocate: Pause::default() });
    let streams = Arc::new(HookedStreams::default());
    let allocator = Allocator::new(source.clone(), streams.clone(), tight());
    (source, streams, allocator)
}

fn graph_pool(allocator: &Allocator) -> GraphPool {
    allocator.graph_pool(PoolSettings { name: "graphs".into(), ..PoolSettings::default() }).unwrap()
}

fn private_pool(allocator: &Allocator) -> Pool {
    allocator.pool(PoolSettings { name: "private".into(), ..PoolSettings::default() }).unwrap()
}

#[test]
fn a_capture_begins_after_a_trim_that_is_under_way() {
    let (source, streams, allocator) = paused();
    let graphs = graph_pool(&allocator);
    let warm = graphs.capture(&[s(7)]);
    drop(allocator.allocate(3 * MIB, s(7)).unwrap());
    drop(warm);
    streams.hook.in_is_capturing.arm();
    streams.hook.in_record.arm();
    std::thread::scope(|scope| {
        let trim = scope.spawn(|| {
            allocator.empty_cache().unwrap();
            streams.hook.in_record.open();
        });
        // The trim has checked that no guard keeps the pool's memory.
        streams.hook.in_is_capturing.wait_until_reached();
        let graph = scope.spawn(|| {
            let capture = graphs.capture(&[s(7)]);
            streams.host.set_capturing(s(7), true);
            let baked = allocator.allocate(3 * MIB, s(7)).unwrap().address();
            streams.host.set_capturing(s(7), false);
            streams.hook.in_record.wait_until_reached();
            (capture.end(), baked)
        });
        streams.hook.in_is_capturing.release_after(&graph);
        // The trim has taken the memory out of the pool, and is about to wait for the stream.
        streams.hook.in_record.wait_until_reached();
        streams.hook.in_record.release_after(&graph);
        trim.join().unwrap();
        let (graph, baked) = graph.join().unwrap();
        let held = |address| {
            graph
                .segments()
                .any(|segment| (segment.address()..segment.address() + segment.bytes()).contains(&address))
        };
        assert!(held(baked) && source.host.physical(baked).is_some(), "the graph's memory is there");
    });
}

#[test]
fn an_event_that_a_capture_has_recorded_is_not_queried() {
    let (_, streams, allocator) = paused();
    let block = allocator.allocate(3 * MIB, s(1)).unwrap();
    let address = block.address();
    block.record_stream(s(2)).unwrap();
    streams.hook.in_record.arm();
    std::thread::scope(|scope| {
        let free = scope.spawn(|| drop(block));
        // The free has seen that the stream does not capture, and is about to record an event there.
        streams.hook.in_record.wait_until_reached();
        streams.host.set_capturing(s(2), true);
        streams.hook.in_record.open();
        free.join().unwrap();
    });
    let other = allocator.allocate(3 * MIB, s(1)).unwrap();
    assert_ne!(other.address(), address, "the capture may still use the block");
    assert_eq!(streams.host.invalidated(), 0, "the capture is still valid");
    streams.host.set_capturing(s(2), false);
    assert_eq!(allocator.allocate(3 * MIB, s(1)).unwrap().address(), address);
}

/// Freezes a pool and makes a request to it, while another request keeps the structure lock. `freeze_first` tells
/// which of the two waits for the lock first. The frozen pool must not grow.
fn freeze_beside_a_request(freeze_first: bool) {
    let (source, _, allocator) = paused();
    let pool = private_pool(&allocator);
    drop(pool.allocate(MIB, s(1)).unwrap());
    source.in_allocate.arm();
    std::thread::scope(|scope| {
        // Keeps the structure lock until the pause ends.
        let slow = scope.spawn(|| allocator.allocate(30 * MIB, s(2)).unwrap());
        source.in_allocate.wait_until_reached();
        let freeze = || {
            let freeze = pool.freeze();
            (freeze, pool.stats().reserved.current)
        };
        let request = || pool.allocate(20 * MIB, s(1));
        // Gives a thread time to wait for the lock. A lock mostly goes to the thread that has waited longest.
        let turn = || std::thread::sleep(Duration::from_millis(200));
        let (frozen, waiting) = if freeze_first {
            let frozen = scope.spawn(freeze);
            turn();
            (frozen, scope.spawn(request))
        } else {
            let waiting = scope.spawn(request);
            turn();
            (scope.spawn(freeze), waiting)
        };
        source.in_allocate.release_after(&frozen);
        let ((freeze, before), served) = (frozen.join().unwrap(), waiting.join().unwrap());
        assert_eq!(pool.stats().reserved.current, before, "{served:?} came while the pool was frozen");
        drop((slow.join().unwrap(), freeze));
    });
}

#[test]
fn a_pool_that_was_frozen_while_a_request_waited_does_not_grow() {
    [false, true].into_iter().for_each(freeze_beside_a_request);
}

#[test]
fn a_stream_that_is_to_capture_is_not_waited_for() {
    let bench = bench(1 << 30, tight());
    let graphs = graph_pool(&bench.allocator);
    drop(bench.allocator.allocate(3 * MIB, s(1)).unwrap());
    let capture = graphs.capture(&[s(1)]);
    let before = bench.streams.made(StreamCall::Record);
    assert_eq!(bench.allocator.empty_cache().unwrap(), 0);
    assert_eq!(bench.streams.made(StreamCall::Record), before, "the driver's capture may begin at any time");
    drop(capture);
    assert!(bench.allocator.empty_cache().unwrap() > 0);
}

#[test]
fn a_use_on_a_stream_that_is_to_capture_is_marked_afterwards() {
    let bench = bench(8 * MIB, tight());
    let graphs = graph_pool(&bench.allocator);
    let block = bench.allocator.allocate(6 * MIB, s(2)).unwrap();
    block.record_stream(s(1)).unwrap();
    bench.streams.enqueue(s(1));
    let capture = graphs.capture(&[s(1)]);
    let calls = || [StreamCall::Record, StreamCall::Synchronize].map(|call| bench.streams.made(call));
    let before = calls();
    drop(block);
    let refused = bench.allocator.allocate(6 * MIB, s(2));
    assert!(matches!(refused, Err(AllocError::OutOfMemory(_))), "the block is pending");
    assert_eq!(calls(), before, "the driver's capture may begin at any time");
    drop(capture);
    bench.allocator.allocate(6 * MIB, s(2)).expect("the allocator waits for the use");
    assert!(calls()[0] > before[0]);
}

#[test]
fn a_stream_that_captures_gets_no_memory_that_may_move_or_go() {
    for bench in [bench(16 * MIB, tight()), remapping_bench(16 * MIB, tight())] {
        let refused = |result| matches!(result, Err(AllocError::CaptureOutsideGraphPool { stream, .. }) if stream == s(1));
        let _before = bench.allocator.allocate(2 * MIB, s(1)).unwrap();
        let cached = bench.allocator.allocate(1000, s(1)).unwrap();
        drop(cached);
        bench.streams.set_capturing(s(1), true);
        assert!(refused(bench.allocator.allocate(6 * MIB, s(1))), "a miss");
        assert!(refused(bench.allocator.allocate(1000, s(1))), "a hit");
        bench.allocator.allocate(1000, s(2)).expect("another stream does not capture");
        let pool = private_pool(&bench.allocator);
        assert!(refused(pool.allocate(1000, s(1))), "nothing keeps the pool");
        // A frozen pool keeps its memory, so the capture may use it.
        bench.streams.set_capturing(s(1), false);
        let address = pool.allocate(MIB, s(1)).unwrap().address();
        let freeze = pool.freeze();
        bench.streams.set_capturing(s(1), true);
        assert_eq!(pool.allocate(MIB, s(1)).unwrap().address(), address);
        bench.streams.set_capturing(s(1), false);
        drop(freeze);
    }
}

/// Stops a thread that calls `is_capturing` for stream 7. The first `passing` calls are not stopped.
#[derive(Debug, Default)]
struct PausedQuestion {
    passing: AtomicUsize,
    pause: Pause,
}

impl StreamHook for PausedQuestion {
    fn before(&self, call: Call) {
        let less = |left: usize| left.checked_sub(1);
        if call == Call::IsCapturing(s(7))
            && self.passing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err()
        {
            self.pause.pass();
        }
    }
}

/// A tracker that freezes a pool at its first entry, and keeps it frozen.
struct StaysFrozen(Pool, Mutex<Option<Freeze>>);

impl Tracker for StaysFrozen {
    fn name(&self) -> &str {
        "stays frozen"
    }
    fn observe(&self, _: &[Entry]) -> Result<(), TrackerError> {
        self.1.lock().unwrap().get_or_insert_with(|| self.0.freeze());
        Ok(())
    }
}

/// Freezes a pool inside a tracker, while a trim calls `is_capturing` for the pool's stream. The trim has already
/// checked that no guard keeps the pool's memory. `passing` is the number of calls for that stream that come before.
fn freeze_beside_a_trim(kind: PoolKind, passing: usize) {
    let source = Arc::new(HostSource::new(1 << 30));
    let streams = Arc::new(HookedStreams::<PausedQuestion>::default());
    let allocator = Allocator::new(source, streams.clone(), tight());
    let pool = allocator.pool(PoolSettings { kind, ..PoolSettings::default() }).unwrap();
    drop(pool.allocate(3 * MIB, s(7)).unwrap());
    let reserved = pool.stats().reserved.current;
    let tracker = Arc::new(StaysFrozen(pool.clone(), Mutex::default()));
    let _attachment = allocator.attach(tracker.clone(), Filter::only(&[ActionKind::Alloc])).unwrap();
    let other = allocator.pool(PoolSettings::default()).unwrap();
    let _stays = other.allocate(1000, s(1)).unwrap();
    streams.hook.passing.store(passing, Ordering::SeqCst);
    streams.hook.pause.arm();
    std::thread::scope(|scope| {
        let trim = scope.spawn(|| allocator.empty_cache().unwrap());
        streams.hook.pause.wait_until_reached();
        // The tracker gets the entries of these hits on this thread.
        (0..200).for_each(|_| drop(other.allocate(1000, s(1)).unwrap()));
        assert!(tracker.1.lock().unwrap().is_some(), "the pool is frozen");
        streams.hook.pause.open();
        trim.join().unwrap();
    });
    assert_eq!(pool.stats().reserved.current, reserved, "a frozen pool releases nothing");
    *tracker.1.lock().unwrap() = None;
}

#[test]
fn a_trim_sees_a_freeze_that_did_not_wait_for_it() {
    freeze_beside_a_trim(PoolKind::Cached, 0);
    // The first call is made for the release of the stream's segments, of which there are none.
    freeze_beside_a_trim(PoolKind::Remappable, 1);
}

/// A tracker that freezes a pool at each delivery, and thaws it at once.
struct Freezes(Pool);

impl Tracker for Freezes {
    fn name(&self) -> &str {
        "freezes"
    }
    fn observe(&self, _: &[Entry]) -> Result<(), TrackerError> {
        drop(self.0.freeze());
        Ok(())
    }
}

#[test]
fn a_tracker_may_freeze_a_pool() {
    let bench = remapping_bench(1 << 30, tight());
    for pool in [private_pool(&bench.allocator), bench.allocator.default_pool().clone()] {
        let attachment = bench.allocator.attach(Arc::new(Freezes(pool.clone())), Filter::all()).unwrap();
        (0..200).for_each(|_| drop(pool.allocate(3 * MIB, s(1)).unwrap()));
        bench.allocator.empty_cache().unwrap();
        attachment.detach().unwrap();
        assert!(bench.allocator.faults().is_empty(), "{:?}", bench.allocator.faults());
    }
}

#[test]
fn a_trim_does_not_wait_for_an_event_that_a_capture_has_recorded() {
    let (_, streams, allocator) = paused();
    drop(allocator.allocate(3 * MIB, s(2)).unwrap());
    streams.hook.in_record.arm();
    std::thread::scope(|scope| {
        let trim = scope.spawn(|| allocator.empty_cache().unwrap());
        // The trim has seen that the stream does not capture, and is about to record an event there.
        streams.hook.in_record.wait_until_reached();
        streams.host.set_capturing(s(2), true);
        streams.hook.in_record.open();
        assert_eq!(trim.join().unwrap(), 0);
    });
    assert_eq!(streams.host.invalidated(), 0, "the capture is still valid");
    streams.host.set_capturing(s(2), false);
    assert!(allocator.empty_cache().unwrap() > 0);
}

/// Allocates on stream 1. Returns the addresses of two further blocks if the first one is freed: one that is requested
/// while `graph` exists, and one that is requested after its end.
fn addresses_of_next(pool: &Pool, allocator: &Allocator, users: &[u64]) -> (u64, u64, u64) {
    let graph = GraphUse::default();
    let block = pool.allocate(3 * MIB, s(1)).unwrap();
    let first = block.address();
    users.iter().for_each(|user| block.record_stream(s(*user)).unwrap());
    assert!(allocator.used_by_graph(first + 512, 512, &graph.clone()), "the block contains it");
    drop(block);
    let during = pool.allocate(3 * MIB, s(1)).unwrap();
    drop(graph);
    let after = pool.allocate(3 * MIB, s(1)).unwrap();
    (first, during.address(), after.address())
}

#[test]
fn a_block_that_a_graph_uses_goes_to_no_other_while_the_graph_exists() {
    for users in [&[][..], &[2]] {
        for remaps in [false, true] {
            let make = if remaps { remapping_bench } else { bench };
            let bench = make(1 << 30, tight());
            let pool = bench.allocator.default_pool();
            let (first, during, after) = addresses_of_next(pool, &bench.allocator, users);
            assert_ne!(during, first, "the graph uses it");
            assert_eq!(after, first, "nobody uses it any more");
        }
    }
}

#[test]
fn the_segment_of_a_block_that_a_graph_uses_is_released_after_the_graph() {
    for remaps in [false, true] {
        let make = if remaps { remapping_bench } else { bench };
        let bench = make(1 << 30, tight());
        let graph = GraphUse::default();
        let block = bench.allocator.allocate(3 * MIB, s(1)).unwrap();
        let address = block.address();
        assert!(bench.allocator.used_by_graph(address, 3 * MIB, &graph));
        drop(block);
        bench.allocator.empty_cache().unwrap();
        assert!(bench.source.physical(address).is_some(), "the graph uses it");
        drop(graph);
        bench.allocator.empty_cache().unwrap();
        assert_eq!(bench.source.calls().live_bytes, 0);
    }
}

#[test]
fn a_graph_keeps_memory_of_an_allocator_that_is_dropped() {
    for frees_first in [true, false] {
        let bench = bench(1 << 30, tight());
        let graph = GraphUse::default();
        let mut block = Some(bench.allocator.allocate(3 * MIB, s(1)).unwrap());
        let address = block.as_ref().unwrap().address();
        assert!(bench.allocator.used_by_graph(address, 3 * MIB, &graph));
        if frees_first {
            block = None;
        }
        drop(bench.allocator);
        drop(block);
        assert!(bench.source.physical(address).is_some(), "the graph uses it: {frees_first}");
        drop(graph);
        assert_eq!(bench.source.calls().live_bytes, 0, "{frees_first}");
    }
}

#[test]
fn a_pool_that_is_dropped_beside_a_graph_releases_the_segments_that_the_graph_does_not_use() {
    for kind in [PoolKind::Cached, PoolKind::Remappable] {
        let bench = remapping_bench(1 << 30, tight());
        let reserved = || bench.allocator.stats().reserved.current;
        let pool = bench.allocator.pool(PoolSettings { kind, ..PoolSettings::default() }).unwrap();
        let graph = GraphUse::default();
        let blocks: Vec<_> = (0..5).map(|_| pool.allocate(6 * MIB, s(1)).unwrap()).collect();
        let used = blocks[2].address();
        let segments = blocks[2].segments();
        assert!(bench.allocator.used_by_graph(used, 6 * MIB, &graph));
        drop((blocks, pool));
        bench.allocator.empty_cache().unwrap();
        assert_eq!(reserved(), segments.iter().map(Segment::bytes).sum::<u64>(), "{kind:?}");
        for offset in 0..6 {
            assert!(bench.source.physical(used + offset * MIB).is_some(), "the graph uses it: {kind:?}");
        }
        drop(graph);
        bench.allocator.empty_cache().unwrap();
        assert_eq!((reserved(), bench.source.calls().live_bytes), (0, 0), "{kind:?}");
        assert!(bench.allocator.faults().is_empty(), "{:?}", bench.allocator.faults());
    }
}

#[test]
fn a_graph_keeps_the_segments_of_a_graph_pool_and_lets_its_blocks_be_reused() {
    let bench = bench(1 << 30, tight());
    let pool = graph_pool(&bench.allocator);
    let graph = GraphUse::default();
    let capture = pool.capture(&[s(1)]);
    let block = bench.allocator.allocate(3 * MIB, s(1)).unwrap();
    let address = block.address();
    assert!(bench.allocator.used_by_graph(address, 3 * MIB, &graph));
    drop(block);
    let again = bench.allocator.allocate(3 * MIB, s(1)).unwrap();
    assert_eq!(again.address(), address, "the capture's own requests may reuse it");
    drop(again);
    drop((capture, pool));
    bench.allocator.empty_cache().unwrap();
    assert!(bench.source.physical(address).is_some(), "the graph uses it");
    drop(graph);
    bench.allocator.empty_cache().unwrap();
    assert_eq!(bench.source.calls().live_bytes, 0);
}

#[test]
fn a_graph_uses_all_blocks_of_a_range_with_gaps() {
    let bench = bench(1 << 30, tight());
    let blocks: Vec<_> = (0..5).map(|_| bench.allocator.allocate(MIB, s(1)).unwrap()).collect();
    let mut addresses: Vec<_> = blocks.iter().map(caching_alloc::core::Block::address).collect();
    addresses.sort_unstable();
    let gone = addresses[2];
    let blocks: Vec<_> = blocks.into_iter().filter(|block| block.address() != gone).collect();
    let graph = GraphUse::default();
    let (begin, end) = (addresses[0] - 512, addresses[4] + MIB);
    assert!(bench.allocator.used_by_graph(begin, end - begin, &graph));
    drop(blocks);
    let again: Vec<_> = (0..10).map(|_| bench.allocator.allocate(MIB, s(1)).unwrap()).collect();
    let reused: Vec<_> =
        again.iter().map(caching_alloc::core::Block::address).filter(|it| addresses.contains(it)).collect();
    assert_eq!(reused, [gone], "only the block that was free");
}

#[test]
fn addresses_without_a_block_are_used_by_no_graph() {
    let bench = bench(1 << 30, tight());
    let block = bench.allocator.allocate(3 * MIB, s(1)).unwrap();
    let address = block.address();
    drop(block);
    let graph = GraphUse::default();
    assert!(!bench.allocator.used_by_graph(address, 3 * MIB, &graph), "the block is free");
    assert!(!bench.allocator.used_by_graph(512, 512, &graph), "no memory of the allocator");
}

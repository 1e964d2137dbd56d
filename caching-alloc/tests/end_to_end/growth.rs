//! Memory does not grow with the number of streams and segments that have come and gone.

use std::sync::Arc;

use super::common::{Bench, MIB, bench, remapping_bench, s, tight};
use super::hits::held_bytes;
use caching_alloc::core::{
    Action, Block, Entry, Filter, PoolKind, PoolSettings, Reuse, Settings, Tracker, TrackerError,
};

/// Makes `calls` calls, then as many more; returns the bytes of heap memory of this thread that the second
/// half added.
fn held_by(calls: u64, mut call: impl FnMut(u64)) -> i64 {
    (0..calls).for_each(&mut call);
    let before = held_bytes();
    (calls..2 * calls).for_each(&mut call);
    held_bytes() - before
}

#[test]
fn streams_that_come_and_go_leave_nothing() {
    const STREAMS: u64 = 5000;
    // Each segment that changes streams adds a structural entry, so only few entries are kept here.
    let settings = Settings { structural_entries: 16, ..Settings::default() };
    for Bench { allocator, source, .. } in
        [bench(u64::MAX, settings.clone()), remapping_bench(u64::MAX, settings)]
    {
        let grown = held_by(STREAMS, |stream| drop(allocator.allocate(4096, s(1 + stream)).unwrap()));
        // `HostStreams` keeps some data about every stream that another one waited for.
        assert!(grown < 64 * STREAMS as i64, "{grown} bytes of {STREAMS} streams");
        assert!(source.calls().peak_bytes <= 4 * MIB, "later streams have what earlier ones are done with");
        let stats = allocator.stats().all;
        assert_eq!((stats.allocated.total, stats.allocated.peak), (2 * STREAMS * 4096, stats.allocated.peak));
        assert!(stats.allocated.peak <= 256 * 4096, "{:?}", stats.allocated);
    }
}

#[test]
fn streams_that_are_forgotten_leave_nothing() {
    const STREAMS: u64 = 2000;
    let settings = Settings { reuse: Reuse::OwnStream, ..tight() };
    for Bench { allocator, source, streams } in
        [bench(u64::MAX, settings.clone()), remapping_bench(u64::MAX, settings)]
    {
        let grown = held_by(STREAMS, |stream| {
            let stream = s(1 + stream);
            allocator.mark_collective(stream);
            let block = allocator.allocate(4096, stream).unwrap();
            streams.enqueue(stream);
            streams.enqueue(s(0));
            block.record_stream(s(0)).unwrap();
            drop(block);
            allocator.forget_stream(stream).unwrap();
            assert!(streams.comes_after(s(9), stream, 1), "its work has been waited for");
        });
        assert!(grown < 512 * STREAMS as i64, "{grown} bytes of {STREAMS} streams");
        allocator.empty_cache().unwrap();
        assert_eq!(source.calls().live_bytes, 0);
    }
}

#[test]
fn a_stream_with_blocks_is_forgotten_when_they_are_back() {
    let bench = bench(u64::MAX, tight());
    let block = bench.allocator.allocate(MIB, s(1)).unwrap();
    assert_eq!(bench.allocator.forget_stream(s(1)).unwrap(), 0);
    drop(block);
    assert!(bench.allocator.forget_stream(s(1)).unwrap() >= MIB);
    assert_eq!(bench.source.calls().live_bytes, 0);
    let again = bench.allocator.allocate(MIB, s(1)).unwrap();
    assert_eq!(again.stream(), s(1));
    assert_eq!(bench.allocator.stats().all.blocks.total, 2, "totals go on");
}

#[test]
fn a_frozen_pool_forgets_no_stream() {
    let bench = bench(u64::MAX, tight());
    let pool = bench.allocator.pool(PoolSettings::default()).unwrap();
    let address = pool.allocate(MIB, s(1)).unwrap().address();
    let freeze = pool.freeze();
    assert_eq!(bench.allocator.forget_stream(s(1)).unwrap(), 0);
    assert_eq!(pool.allocate(MIB, s(1)).unwrap().address(), address);
    drop(freeze);
    assert!(bench.allocator.forget_stream(s(1)).unwrap() >= MIB);
}

#[test]
fn a_stream_that_comes_back_gets_no_memory_of_those_that_came_after_it() {
    let bench = bench(u64::MAX, tight());
    drop(bench.allocator.allocate(4096, s(1)).unwrap());
    bench.allocator.empty_cache().unwrap();
    // This thread remembers the slot of the first stream's cache. The cache of one of these streams takes over that
    // slot.
    let allocate = || (2..200).map(|stream| bench.allocator.allocate(4096, s(stream)).unwrap()).collect();
    let others: Vec<Block> = std::thread::scope(|scope| scope.spawn(allocate).join().unwrap());
    let again = bench.allocator.allocate(4096, s(1)).unwrap();
    for stream in std::iter::once(&again).chain(&others).map(Block::stream) {
        let usages = bench.allocator.usage_by_stream();
        let blocks = usages.iter().find(|(of, _)| *of == stream).map(|(_, usages)| usages.blocks.current);
        assert_eq!(blocks, Some(1), "{stream}");
    }
}

/// Counts blocks that are handed out and come back.
#[derive(Default)]
struct Count(std::sync::Mutex<[u64; 2]>);

impl Tracker for Count {
    fn name(&self) -> &str {
        "count"
    }
    fn observe(&self, entries: &[Entry]) -> Result<(), TrackerError> {
        let mut counts = self.0.lock().unwrap();
        for entry in entries {
            match entry.action {
                Action::Alloc(_) => counts[0] += 1,
                Action::FreeCompleted(_) => counts[1] += 1,
                _ => {}
            }
        }
        Ok(())
    }
}

#[test]
fn trackers_are_told_of_the_blocks_of_streams_that_are_gone() {
    const STREAMS: u64 = 1000;
    let bench = bench(u64::MAX, Settings::default());
    let count = Arc::new(Count::default());
    let attachment = bench.allocator.attach(count.clone(), Filter::all()).unwrap();
    (0..STREAMS).for_each(|stream| drop(bench.allocator.allocate(1, s(1 + stream)).unwrap()));
    attachment.detach().unwrap();
    assert_eq!(*count.0.lock().unwrap(), [STREAMS; 2]);
}

#[test]
fn many_streams_at_a_time_have_memory_of_their_own() {
    let bench = remapping_bench(u64::MAX, tight());
    let whole = bench.allocator.pool(PoolSettings { kind: PoolKind::NoSplit, ..PoolSettings::default() });
    let pools = [bench.allocator.default_pool().clone(), whole.unwrap()];
    let blocks: Vec<Block> = (0..400u64)
        .flat_map(|stream| pools.iter().map(move |pool| pool.allocate(1 + stream, s(stream)).unwrap()))
        .collect();
    let mut addresses: Vec<u64> = blocks.iter().map(Block::address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), blocks.len());
    for block in &blocks {
        assert_eq!((block.requested(), block.device()), (1 + block.stream().0, 0));
    }
    drop(blocks);
    bench.allocator.empty_cache().unwrap();
    assert_eq!(bench.source.calls().live_bytes, 0);
}

#[test]
fn segments_that_come_and_go_leave_nothing() {
    const SEGMENTS: u64 = 50_000;
    let settings = Settings { structural_entries: 1, ..Settings::default() };
    let bench = bench(u64::MAX, settings);
    let grown = held_by(SEGMENTS, |_| {
        drop(bench.allocator.allocate(4 * MIB, s(1)).unwrap());
        bench.allocator.empty_cache().unwrap();
    });
    assert_eq!(bench.source.calls().allocate, 2 * SEGMENTS);
    assert!(grown < 4096, "{grown} bytes of {SEGMENTS} segments");
}

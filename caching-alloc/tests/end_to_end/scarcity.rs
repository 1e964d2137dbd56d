//! The allocator's behaviour when memory runs out.

use std::sync::Arc;

use super::common::{self, MIB, bench, check_tiling, remapping_bench, s, tight};
use caching_alloc::core::{
    AllocError, Allocator, Block, PoolKind, PoolSettings, Reuse, Settings, Snapshot, SourceLimit, Usage,
};
use caching_alloc::host::{HostSource, HostStreams};
use caching_alloc::sources::{LimitingSource, LoggedCall, LoggingSource};
use proptest::prelude::*;

#[test]
fn out_of_memory_says_what_there_is() {
    let bench = bench(20 * MIB, tight());
    let live = bench.allocator.allocate(6 * MIB, s(1)).unwrap();
    let lent = bench.allocator.allocate(6 * MIB, s(1)).unwrap();
    bench.streams.enqueue(s(2));
    bench.streams.set_capturing(s(2), true);
    lent.record_stream(s(2)).unwrap();
    drop(lent);
    let held = bench.allocator.allocate(2 * MIB, s(1)).unwrap();
    let hold = held.segment().hold("test").unwrap();
    let held_bytes = held.segment().bytes();
    drop(held);
    let before = bench.allocator.generation();
    let AllocError::OutOfMemory(error) = bench.allocator.allocate(15 * MIB + 1, s(1)).unwrap_err() else {
        panic!("it is out of memory")
    };
    assert_eq!((error.wanted, error.segment, error.limit), (15 * MIB + 1, 16 * MIB, None));
    assert_eq!((error.allocated, error.pool_allocated), (6 * MIB, 6 * MIB));
    assert_eq!((error.pending, error.quarantined), (6 * MIB, held_bytes));
    let info = error.info.unwrap();
    assert_eq!((info.total, info.free + error.reserved), (20 * MIB, 20 * MIB));
    let text = error.to_string();
    for part in ["15728641", "default", "quarantine", &(20 * MIB).to_string()] {
        assert!(text.contains(part), "{text}");
    }
    let stats = bench.allocator.stats();
    assert_eq!((stats.out_of_memory, stats.retries), (1, 1));
    assert!(bench.allocator.generation() > before, "trackers are told");
    drop((live, hold));
    bench.streams.set_capturing(s(2), false);
    bench.allocator.allocate(15 * MIB + 1, s(1)).unwrap();
}

/// The device has memory left, so the error names the limit. Adapters pass it on.
#[test]
fn memory_of_another_source_does_not_make_a_source_scarce() {
    let segment = |reserved: u64| {
        let allocator = bench(1 << 30, tight()).allocator;
        let other = allocator.allocate(reserved, s(1)).unwrap();
        let source = Arc::new(HostSource::at(0x1000_0000, 64 * MIB));
        let pool = allocator.pool(PoolSettings { source: Some(source), ..PoolSettings::default() }).unwrap();
        let bytes = pool.allocate(2 * MIB, s(1)).unwrap().segment().bytes();
        drop(other);
        bytes
    };
    assert_eq!(segment(512), 4 * MIB, "a segment for more than one block");
    assert_eq!(segment(100 * MIB), 4 * MIB);
}

#[test]
fn a_limit_of_the_source_is_named_with_its_figures() {
    for remapping in [false, true] {
        let limited = Arc::new(LimitingSource::new(HostSource::new(1 << 40), 8 * MIB));
        let wider = LimitingSource::new(limited.clone(), 1 << 30);
        let source = Arc::new(LoggingSource::new(wider, |_: &LoggedCall| ()));
        let events = Arc::new(HostStreams::new());
        let allocator = match remapping {
            false => Allocator::new(source, events, tight()),
            true => Allocator::remapping(source, events, tight()).unwrap(),
        };
        let live = allocator.allocate(6 * MIB, s(1)).unwrap();
        let error = allocator.allocate(4 * MIB, s(1)).unwrap_err();
        let text = error.to_string();
        let AllocError::OutOfMemory(error) = error else { panic!("{text}") };
        assert_eq!(
            error.source_limit,
            Some(SourceLimit { limit: 8 * MIB, used: limited.allocated() }),
            "{text}"
        );
        assert!(
            text.starts_with("a memory source of device 0 has reached its limit: 4194304 bytes"),
            "{text}"
        );
        let figures =
            format!("{} of the 8388608 bytes that the source may allocate are in use", limited.allocated());
        assert!(
            text.contains(&figures) && text.ends_with("Free blocks, or raise the source's limit"),
            "{text}"
        );
        let text = allocator.allocate(10 * MIB, s(1)).unwrap_err().to_string();
        assert!(text.ends_with("No segment can be larger than the source's limit; raise it"), "{text}");
        drop(live);
    }
}

/// The limit is not at fault when the memory below it is used up.
#[test]
fn a_limit_that_is_not_reached_is_not_named() {
    let source = Arc::new(LimitingSource::new(HostSource::new(8 * MIB), 64 * MIB));
    let allocator = Allocator::new(source, Arc::new(HostStreams::new()), tight());
    let text = allocator.allocate(10 * MIB, s(1)).unwrap_err().to_string();
    assert!(text.starts_with("device 0 is out of memory: 10485760 bytes"), "{text}");
}

#[test]
fn cached_segments_go_before_a_request_fails() {
    let bench = bench(64 * MIB, tight());
    let pool = bench.allocator.pool(PoolSettings { kind: PoolKind::NoSplit, ..Default::default() }).unwrap();
    let cached: Vec<Block> = (0..15).map(|_| pool.allocate(4 * MIB, s(1)).unwrap()).collect();
    drop(cached);
    assert_eq!(bench.source.calls().live_bytes, 60 * MIB);
    let block = bench.allocator.allocate(50 * MIB, s(2)).unwrap();
    assert_eq!(bench.allocator.stats().retries, 1);
    assert_eq!(bench.source.calls().live_bytes, block.segment().bytes());
}

#[test]
fn the_limit_holds_and_can_be_moved() {
    let bench = bench(u64::MAX, Settings { memory_limit: Some(10 * MIB), ..tight() });
    let first = bench.allocator.allocate(8 * MIB, s(1)).unwrap();
    let AllocError::OutOfMemory(error) = bench.allocator.allocate(4 * MIB, s(1)).unwrap_err() else {
        panic!("the limit is 10 MiB")
    };
    assert_eq!(error.limit, Some(10 * MIB));
    assert!(error.to_string().contains("the limit is 10485760"));
    bench.allocator.set_memory_limit(Some(12 * MIB));
    let second = bench.allocator.allocate(4 * MIB, s(1)).unwrap();
    drop(first);
    // This fits into the limit once cached memory was released.
    let third = bench.allocator.allocate(7 * MIB, s(2)).unwrap();
    assert!(bench.allocator.stats().reserved.peak <= 12 * MIB);
    bench.allocator.set_memory_limit(None);
    bench.allocator.allocate(100 * MIB, s(1)).unwrap();
    drop((second, third));
}

#[test]
fn memory_of_an_idle_stream_is_moved_over() {
    let bench = bench(u64::MAX, tight());
    let block = bench.allocator.allocate(8 * MIB, s(1)).unwrap();
    let (segment, address) = (block.segment(), block.address());
    bench.streams.enqueue(s(1));
    drop(block);
    let elsewhere = bench.allocator.allocate(8 * MIB, s(2)).unwrap();
    assert_ne!(elsewhere.segment(), segment, "stream 1 is still at it");
    bench.streams.complete(s(1));
    let moved = bench.allocator.allocate(8 * MIB, s(3)).unwrap();
    assert_eq!((moved.address(), moved.segment().stream()), (address, s(3)));
    assert!(bench.streams.waits().is_empty());
    assert_eq!(bench.allocator.find(address + 5000).unwrap().segment, segment);
    assert!(bench.allocator.find(1).is_none());
}

#[test]
fn when_memory_is_scarce_streams_wait_for_each_other() {
    let bench = bench(16 * MIB, tight());
    let keep = bench.allocator.allocate(6 * MIB, s(1)).unwrap();
    let block = bench.allocator.allocate(8 * MIB, s(1)).unwrap();
    bench.streams.enqueue(s(1));
    drop(block);
    let moved = bench.allocator.allocate(8 * MIB, s(2)).unwrap();
    assert_eq!(bench.streams.waits(), [(s(2), s(1))]);
    drop((moved, keep));

    // A part of a segment that is in use is lent to another stream, and returns to its own stream when it is freed.
    let bench = common::bench(16 * MIB, tight());
    drop(bench.allocator.allocate(16 * MIB, s(1)).unwrap());
    let keep = bench.allocator.allocate(6 * MIB, s(1)).unwrap();
    let lent = bench.allocator.allocate(8 * MIB, s(2)).unwrap();
    assert_eq!((lent.segment(), lent.stream()), (keep.segment(), s(2)));
    assert_eq!(bench.allocator.stats().borrowed, 1);
    bench.streams.enqueue(s(2));
    let address = lent.address();
    drop(lent);
    assert_ne!(bench.allocator.allocate(2 * MIB, s(1)).unwrap().address(), address, "stream 2 still uses it");
    let home = bench.allocator.allocate(8 * MIB, s(1)).unwrap();
    assert_eq!(home.address(), address);
    assert_eq!(bench.streams.waits().last(), Some(&(s(1), s(2))));
}

#[test]
fn blocks_of_one_length_fill_the_memory() {
    // For blocks of 3 MiB, one block is lost to the segments' steps of 2 MiB.
    for (bytes, room, fit) in [
        (20 * MIB, 2, 2),
        (20 * MIB, 4, 4),
        (20 * MIB, 100, 100),
        (64 * MIB, 16, 16),
        (100 * MIB, 64, 64),
        (2 * MIB, 64, 64),
        (12 * MIB, 10, 10),
        (MIB / 2, 64, 64),
        (3 * MIB, 32, 31),
    ] {
        let bench = bench(bytes * room, Settings::default());
        let blocks: Vec<_> = (0..).map_while(|_| bench.allocator.allocate(bytes, s(1)).ok()).collect();
        assert_eq!(blocks.len() as u64, fit, "blocks of {bytes} bytes in room for {room}");
    }
}

#[test]
fn what_a_request_leaves_of_a_small_memory_can_be_had() {
    for [first, second] in [[6, 10], [10, 6], [20, 12], [12, 20]] {
        let bench = bench((first + second) * MIB, Settings::default());
        let _first = bench.allocator.allocate(first * MIB, s(1)).unwrap();
        bench.allocator.allocate(second * MIB, s(2)).unwrap();
    }
}

#[test]
fn collectives_and_captures_wait_for_no_memory() {
    for (collective, capturing) in [(true, false), (false, true)] {
        let bench = bench(12 * MIB, Settings { reuse: Reuse::DeviceWait, ..tight() });
        let block = bench.allocator.allocate(8 * MIB, s(1)).unwrap();
        bench.streams.enqueue(s(1));
        if collective {
            bench.allocator.mark_collective(s(1));
        }
        drop(block);
        bench.streams.set_capturing(s(1), capturing);
        let got = bench.allocator.allocate(8 * MIB, s(2));
        assert!(bench.streams.waits().is_empty());
        // To release memory, the host may wait for a stream that carries collectives, but not for a captured one.
        assert_eq!(got.is_ok(), collective, "{got:?}");
    }
}

#[test]
fn a_stream_waits_for_no_collective_to_reuse_its_own_block() {
    let bench = bench(12 * MIB, Settings { reuse: Reuse::DeviceWait, ..tight() });
    bench.allocator.mark_collective(s(2));
    let block = bench.allocator.allocate(8 * MIB, s(1)).unwrap();
    bench.streams.enqueue(s(2));
    block.record_stream(s(2)).unwrap();
    drop(block);
    bench.allocator.allocate(8 * MIB, s(1)).expect("the host may wait");
    assert!(bench.streams.waits().is_empty());
}

#[test]
fn a_block_is_reused_when_all_its_uses_have_ended() {
    let bench = bench(u64::MAX, Settings { reuse: Reuse::HostSeen, ..tight() });
    let block = bench.allocator.allocate(8 * MIB, s(1)).unwrap();
    let address = block.address();
    for stream in [2, 3] {
        bench.streams.enqueue(s(stream));
        block.record_stream(s(stream)).unwrap();
    }
    drop(block);
    let before = bench.allocator.allocate(8 * MIB, s(1)).unwrap();
    bench.streams.complete(s(2));
    let between = bench.allocator.allocate(8 * MIB, s(1)).unwrap();
    bench.streams.complete(s(3));
    let after = bench.allocator.allocate(8 * MIB, s(1)).unwrap();
    let addresses = [&before, &between, &after].map(Block::address);
    assert!(addresses[..2].iter().all(|other| *other != address), "stream 3 still uses it");
    assert_eq!(addresses[2], address);
}

#[test]
fn a_use_that_cannot_be_queried_has_not_ended() {
    let bench = bench(u64::MAX, tight());
    let block = bench.allocator.allocate(8 * MIB, s(1)).unwrap();
    let address = block.address();
    bench.streams.enqueue(s(2));
    block.record_stream(s(2)).unwrap();
    drop(block);
    bench.streams.set_capturing(s(2), true);
    assert_ne!(bench.allocator.allocate(8 * MIB, s(1)).unwrap().address(), address);
}

#[test]
fn what_is_captured_is_waited_for_after_the_capture() {
    let bench = bench(u64::MAX, tight());
    let block = bench.allocator.allocate(8 * MIB, s(1)).unwrap();
    let address = block.address();
    bench.streams.set_capturing(s(2), true);
    block.record_stream(s(2)).unwrap();
    drop(block);
    assert_ne!(bench.allocator.allocate(8 * MIB, s(1)).unwrap().address(), address);
    bench.streams.set_capturing(s(2), false);
    bench.streams.enqueue(s(2));
    bench.allocator.empty_cache().unwrap();
    assert_eq!((bench.source.calls().live_bytes, bench.streams.live_events()), (0, 0));
}

#[test]
fn an_allocator_that_is_dropped_gives_all_back() {
    let common::Bench { source, streams, allocator } = bench(u64::MAX, tight());
    let blocks: Vec<Block> = (1..9).map(|n| allocator.allocate(n * MIB / 2, s(n % 3)).unwrap()).collect();
    streams.enqueue(s(5));
    blocks[3].record_stream(s(5)).unwrap();
    let (first, rest) = {
        let mut rest = blocks;
        (rest.remove(0), rest)
    };
    drop(rest);
    drop(allocator);
    let live = source.calls().live_bytes;
    assert!(
        live > 0 && live < source.calls().peak_bytes,
        "only what the last block's stream has is left: {live}"
    );
    assert!(Arc::strong_count(&source) > 1);
    drop(first);
    assert_eq!((source.calls().live_bytes, streams.live_events()), (0, 0));
    assert_eq!(Arc::strong_count(&source), 1);
}

#[test]
fn a_long_block_lies_beside_a_short_one_before_memory_runs_out() {
    let bench = remapping_bench(4 * MIB, tight());
    let first = bench.allocator.allocate(1000, s(1)).unwrap();
    let other = bench.allocator.allocate(1000, s(2)).unwrap();
    drop(first);
    let long = bench.allocator.allocate(3 * MIB, s(1)).unwrap();
    check_tiling(&bench.allocator.snapshot().unwrap());
    assert_eq!((other.segment().id(), bench.source.calls().live_bytes), (long.segment().id(), 4 * MIB));
}

#[test]
fn idle_pages_move_to_where_the_rest_of_a_page_makes_up_for_what_is_missing() {
    let bench = remapping_bench(8 * MIB, tight());
    let short = bench.allocator.allocate(1000, s(1)).unwrap();
    drop(bench.allocator.allocate(6 * MIB, s(1)).unwrap());
    // Behind the idle pages there are addresses for another page, but the source has no memory for it.
    let long = bench.allocator.allocate(7 * MIB + MIB / 2, s(1)).unwrap();
    check_tiling(&bench.allocator.snapshot().unwrap());
    assert_eq!(bench.allocator.stats().remapped, 6 * MIB);
    drop((short, long));
    let refused = bench.allocator.allocate(8 * MIB + 1, s(1)).unwrap_err();
    assert!(matches!(refused, AllocError::OutOfMemory(_)), "{refused}");
    bench.allocator.allocate(8 * MIB, s(1)).unwrap();
}

#[test]
fn old_addresses_stay_mapped_until_memory_goes_back() {
    let bench = remapping_bench(16 * MIB, tight());
    let allocate = |mib: u64| bench.allocator.allocate(mib * MIB, s(1)).unwrap();
    let [before, _between, behind] = [6, 2, 8].map(allocate);
    let first = before.address();
    drop((before, behind));
    let long = allocate(14);
    assert_eq!(bench.allocator.stats().remapped, 6 * MIB);
    assert_eq!((bench.source.calls().unmap, bench.source.mapped_bytes()), (0, 22 * MIB));
    drop(long);
    assert_eq!(bench.allocator.empty_cache().unwrap(), 14 * MIB);
    assert_eq!((bench.source.calls().unmap, bench.source.mapped_bytes()), (2, 2 * MIB));
    assert!(!bench.source.is_usable(first, MIB));
    check_tiling(&bench.allocator.snapshot().unwrap());
}

/// A lower bound on the bytes available for a block, from pages of 2 MiB: free memory at the end of the last group of
/// neighbouring pages, idle pages elsewhere, and `unmade` bytes of pages that can still be made.
fn could_have(snapshot: &Snapshot, unmade: u64) -> u64 {
    let mut best = unmade;
    let mut idle = 0;
    let last = snapshot.mapped.iter().max_by_key(|pages| pages.segments[0].address());
    for pages in &snapshot.mapped {
        let mut free: Vec<(u64, u64)> = Vec::new();
        for block in pages.blocks.iter().filter(|block| block.usage == Usage::Inactive) {
            match free.last_mut() {
                Some((_, end)) if *end == block.address => *end += block.bytes,
                _ => free.push((block.address, block.address + block.bytes)),
            }
        }
        let end = pages.segments.last().map_or(0, |page| page.memory().end());
        let is_last = last.is_some_and(|last| std::ptr::eq(last, pages));
        for (from, to) in free {
            if is_last && to == end {
                best += to - from;
                continue;
            }
            let within =
                pages.segments.iter().filter(|page| from <= page.address() && page.memory().end() <= to);
            idle += within.map(|page| page.bytes()).sum::<u64>();
        }
    }
    best + idle
}

proptest! {
    #[test]
    fn memory_runs_out_when_no_placement_is_left(
        steps in prop::collection::vec((prop::bool::weighted(0.6), 0usize..64, 1u64..6 * 1024), 1..80),
    ) {
        let capacity = 16 * MIB;
        let bench = remapping_bench(capacity, tight());
        let mut live: Vec<Block> = Vec::new();
        for (allocates, which, kib) in steps {
            if !allocates && !live.is_empty() {
                live.swap_remove(which % live.len());
                continue;
            }
            // Half of them are short.
            let bytes = if which % 2 == 0 { kib } else { kib * 1024 };
            match bench.allocator.allocate(bytes, s(which as u64 % 3)) {
                Ok(block) => live.push(block),
                Err(refused) => {
                    prop_assert!(matches!(refused, AllocError::OutOfMemory(_)), "{}", refused);
                    let snapshot = bench.allocator.snapshot().unwrap();
                    let unmade = capacity - bench.source.calls().live_bytes;
                    let could = could_have(&snapshot, unmade);
                    prop_assert!(could < bytes.next_multiple_of(512), "{} of {}", bytes, could);
                }
            }
        }
        check_tiling(&bench.allocator.snapshot().unwrap());
    }
}

//! Pools: separate, unsplit, frozen.

use std::sync::Arc;

use super::common::{MIB, bench, check_tiling, s, tight};
use caching_alloc::core::{AllocError, Block, PoolKind, PoolSettings, SizeError};
use caching_alloc::host::HostSource;

#[test]
fn a_private_pool_has_its_own_source_and_gives_all_back() {
    let bench = bench(u64::MAX, tight());
    let own = Arc::new(HostSource::at(0x10_0000_0000, 64 * MIB));
    let settings = PoolSettings { name: "own".into(), source: Some(own.clone()), ..PoolSettings::default() };
    let pool = bench.allocator.pool(settings).unwrap();
    let block = pool.allocate(3 * MIB, s(1)).unwrap();
    assert!(block.address() < 0x20_0000_0000);
    assert_eq!(block.pool(), pool.id());
    assert_ne!(pool.id(), bench.allocator.default_pool().id());
    assert_eq!((own.calls().allocate, bench.source.calls().allocate), (1, 0));
    assert_eq!(pool.stats().reserved.current, own.calls().live_bytes);
    assert_eq!(bench.allocator.default_pool().stats().reserved.current, 0);

    // Free memory of one pool is not used by another.
    let address = block.address();
    drop(block);
    assert_ne!(bench.allocator.allocate(3 * MIB, s(1)).unwrap().address(), address);

    // The pool lives as long as its blocks do.
    let block = pool.allocate(3 * MIB, s(1)).unwrap();
    assert_eq!(block.address(), address);
    drop(pool);
    assert_eq!(block.segment().bytes(), own.calls().live_bytes);
    drop(block);
    assert_eq!(own.calls().live_bytes, 0, "the last block takes the pool's memory with it");
}

#[test]
fn a_pool_that_does_not_split_gives_each_block_a_segment() {
    let bench = bench(u64::MAX, tight());
    let settings = PoolSettings { kind: PoolKind::NoSplit, ..PoolSettings::default() };
    let pool = bench.allocator.pool(settings).unwrap();
    let blocks: Vec<Block> =
        [1, 100, MIB, 3 * MIB].iter().map(|n| pool.allocate(*n, s(1)).unwrap()).collect();
    for block in &blocks {
        let segment = block.segment();
        assert_eq!((block.address(), block.bytes()), (segment.address(), segment.bytes()));
    }
    assert_eq!(bench.source.calls().allocate, 4);
    drop(blocks);
    let again = pool.allocate(3 * MIB, s(1)).unwrap();
    assert_eq!((again.bytes(), bench.source.calls().allocate), (4 * MIB, 4), "the best fit, whole");
}

#[test]
fn pages_of_a_dropped_pool_stay_while_a_stream_that_left_it_uses_them() {
    let bench = bench(u64::MAX, tight());
    let pool = PoolSettings { kind: PoolKind::Remappable, ..PoolSettings::default() };
    let pool = bench.allocator.pool(pool).unwrap();
    let [_keeps, goes] = [1, 2].map(|stream| pool.allocate(2 * MIB, s(stream)).unwrap());
    drop(pool);
    bench.streams.enqueue(s(2));
    drop(goes);
    bench.streams.set_capturing(s(2), true);
    assert_eq!(bench.allocator.empty_cache().unwrap(), 0, "a captured stream cannot be waited for");
    bench.streams.set_capturing(s(2), false);
    assert_eq!(bench.allocator.empty_cache().unwrap(), 2 * MIB);
    assert!(bench.streams.comes_after(s(3), s(2), 1), "what was done there has ended");
}

#[test]
fn memory_of_a_dropped_pool_stays_while_a_captured_stream_uses_it() {
    let bench = bench(u64::MAX, tight());
    let pool = bench.allocator.pool(PoolSettings::default()).unwrap();
    let block = pool.allocate(2 * MIB, s(1)).unwrap();
    bench.streams.set_capturing(s(2), true);
    block.record_stream(s(2)).unwrap();
    drop((block, pool));
    bench.allocator.reap().unwrap();
    assert!(bench.source.calls().live_bytes > 0, "the captured use has not ended");
    bench.streams.set_capturing(s(2), false);
    bench.allocator.reap().unwrap();
    assert_eq!(bench.source.calls().live_bytes, 0);
}

#[test]
fn a_frozen_pool_uses_what_it_has() {
    let bench = bench(u64::MAX, tight());
    let pool =
        bench.allocator.pool(PoolSettings { name: "graph".into(), ..PoolSettings::default() }).unwrap();
    let warm = pool.allocate(3 * MIB, s(1)).unwrap();
    let (address, segment) = (warm.address(), warm.segment());
    drop(warm);
    let freeze = pool.freeze();
    let nested = pool.freeze();
    assert_eq!(pool.allocate(3 * MIB, s(1)).unwrap().address(), address);
    let error = pool.allocate(30 * MIB, s(1)).unwrap_err();
    assert!(
        matches!(error, AllocError::PoolWouldGrowDuringCapture { pool: frozen, wanted, missing }
            if frozen == pool.id() && wanted == 30 * MIB && missing == 30 * MIB),
        "{error}"
    );
    bench.allocator.empty_cache().unwrap();
    assert!(segment.hold("still there").is_ok(), "nothing of it is trimmed");
    bench.allocator.allocate(30 * MIB, s(1)).unwrap();
    drop(nested);
    assert!(pool.allocate(30 * MIB, s(1)).is_err());
    drop(freeze);
    pool.allocate(30 * MIB, s(1)).unwrap();
    bench.allocator.empty_cache().unwrap();
    assert_eq!(bench.source.calls().live_bytes, 0);
}

#[test]
fn what_a_dropped_pool_has_not_given_back_yet_is_in_the_snapshot() {
    let bench = bench(u64::MAX, tight());
    let pool = bench.allocator.pool(PoolSettings::default()).unwrap();
    let segment = pool.allocate(3 * MIB, s(1)).unwrap().segment();
    bench.streams.set_capturing(s(1), true);
    drop(pool);
    let snapshot = bench.allocator.snapshot().unwrap();
    check_tiling(&snapshot);
    let bytes: u64 = snapshot.segments.iter().map(|state| state.segment.bytes()).sum();
    assert_eq!(bytes, bench.allocator.stats().reserved.current);
    assert!(snapshot.segments.iter().any(|state| state.segment == segment));
    bench.streams.set_capturing(s(1), false);
    bench.allocator.reap().unwrap();
    assert!(bench.allocator.snapshot().unwrap().segments.is_empty());
    assert_eq!(bench.source.calls().live_bytes, 0);
}

#[test]
fn sizes_that_no_block_can_have_are_refused() {
    let bench = bench(u64::MAX, tight());
    assert!(matches!(bench.allocator.allocate(0, s(1)), Err(AllocError::Size(SizeError::Zero))));
    let error = bench.allocator.allocate(u64::MAX, s(1)).unwrap_err();
    assert!(matches!(error, AllocError::Size(SizeError::TooLarge { bytes: u64::MAX })), "{error}");
    assert_eq!(bench.source.calls().allocate, 0);
}

//! Tests of the settings for rounding, splitting, the memory limit and the collection of idle memory.

use super::common::{Bench, MIB, bench, s, tight};
use caching_alloc::core::{Block, Fraction, PoolKind, PoolSettings, Reuse, Rounding, Settings};

/// Settings without reuse of other streams' memory.
fn apart() -> Settings {
    Settings { reuse: Reuse::OwnStream, replace_idle: false, ..tight() }
}

#[test]
fn rounded_requests_share_blocks() {
    let rounding = Rounding::divisions(4).unwrap();
    let Bench { allocator, .. } = bench(u64::MAX, Settings { rounding, ..tight() });
    let block = allocator.allocate(MIB + 1, s(1)).unwrap();
    assert_eq!((block.bytes(), block.requested()), (MIB + MIB / 4, MIB + 1));
    let address = block.address();
    drop(block);
    assert_eq!(allocator.allocate(MIB + MIB / 4, s(1)).unwrap().address(), address);
    assert_eq!(allocator.allocate(700, s(1)).unwrap().bytes(), 1024, "too short to have four steps");
    let whole = PoolSettings { kind: PoolKind::NoSplit, ..PoolSettings::default() };
    let whole = allocator.pool(whole).unwrap();
    assert_eq!(whole.allocate(4 * MIB + 1, s(1)).unwrap().bytes(), 6 * MIB, "a segment for itself");
}

#[test]
fn long_blocks_are_for_long_requests() {
    let settings = Settings { max_split: Some(8 * MIB), max_unsplit_waste: 4 * MIB, ..tight() };
    let Bench { source, allocator, .. } = bench(u64::MAX, settings);
    let long = allocator.allocate(16 * MIB, s(1)).unwrap();
    let (segment, address) = (long.segment(), long.address());
    drop(long);
    let short = allocator.allocate(7 * MIB, s(1)).unwrap();
    assert_ne!(short.segment(), segment, "up to 8 MiB it is left alone");
    assert!(short.segment().bytes() <= 8 * MIB);
    let wasteful = allocator.allocate(11 * MIB, s(1)).unwrap();
    assert_ne!(wasteful.segment(), segment, "5 MiB would be wasted");
    let whole = allocator.allocate(13 * MIB, s(1)).unwrap();
    assert_eq!((whole.address(), whole.bytes(), whole.requested()), (address, 16 * MIB, 13 * MIB));
    let calls = source.calls().allocate;
    drop(whole);
    assert_eq!(allocator.allocate(13 * MIB, s(1)).unwrap().address(), address);
    assert_eq!(source.calls().allocate, calls);
}

#[test]
fn segments_that_are_split_stay_below_the_longest() {
    let settings = Settings { max_split: Some(3 * MIB), growth_divisor: 1, ..tight() };
    let Bench { allocator, .. } = bench(u64::MAX, settings);
    let blocks: Vec<Block> = (0..40).map(|_| allocator.allocate(MIB / 2, s(1)).unwrap()).collect();
    assert!(blocks.iter().all(|block| block.segment().bytes() <= 4 * MIB), "3 MiB, in steps of 2");
}

#[test]
fn blocks_that_are_not_split_go_first_when_memory_is_scarce() {
    for max_split in [Some(8 * MIB), None] {
        let settings = Settings { max_split, max_unsplit_waste: MIB, ..apart() };
        let Bench { allocator, .. } = bench(36 * MIB, settings);
        let (long, short) =
            (allocator.allocate(20 * MIB, s(1)).unwrap(), allocator.allocate(8 * MIB, s(2)).unwrap());
        let cached = short.segment();
        drop((long, short));
        let other = PoolSettings { kind: PoolKind::NoSplit, ..PoolSettings::default() };
        let other = allocator.pool(other).unwrap();
        drop(other.allocate(4 * MIB, s(1)).unwrap());
        // No idle segment is long enough: they have 20, 8 and 4 MiB. Another 4 MiB are left to allocate.
        let block = allocator.allocate(22 * MIB, s(1)).unwrap();
        assert_eq!(block.bytes(), 22 * MIB);
        assert_eq!(cached.hold("still there").is_ok(), max_split.is_some());
    }
}

#[test]
fn what_has_been_idle_longest_is_collected_before_the_limit() {
    for part in [Fraction::new(0.5), None] {
        let settings = Settings { memory_limit: Some(100 * MIB), collect_above: part, ..apart() };
        let Bench { allocator, .. } = bench(u64::MAX, settings);
        let old = allocator.allocate(20 * MIB, s(1)).unwrap().segment();
        // While further segments are allocated, this one is used again and again.
        let young = allocator.allocate(22 * MIB, s(2)).unwrap().segment();
        let mut live = Vec::new();
        for _ in 0..3 {
            live.push(allocator.allocate(4 * MIB, s(3)).unwrap());
            assert_eq!(allocator.allocate(22 * MIB, s(2)).unwrap().segment(), young);
        }
        assert!(old.hold("still there").is_ok(), "50 of 100 MiB were reserved before the last structure");
        live.push(allocator.allocate(4 * MIB, s(3)).unwrap());
        assert_eq!(old.hold("still there").is_ok(), part.is_none());
        assert!(young.hold("still there").is_ok());
        assert_eq!(allocator.stats().retries, 0, "long before memory was scarce");
    }
}

#[test]
fn pages_make_way_for_none_but_have_others_collected() {
    let settings = Settings { memory_limit: Some(100 * MIB), collect_above: Fraction::new(0.2), ..apart() };
    let Bench { allocator, .. } = bench(u64::MAX, settings);
    let idle = allocator.allocate(30 * MIB, s(1)).unwrap().segment();
    let pages = PoolSettings { kind: PoolKind::Remappable, ..PoolSettings::default() };
    let pages = allocator.pool(pages).unwrap();
    let _live: Vec<Block> = (0..3).map(|_| pages.allocate(12 * MIB, s(1)).unwrap()).collect();
    assert!(idle.hold("too late").is_err());
    assert_eq!(allocator.stats().retries, 0);
}

#[test]
fn idle_pages_move_before_more_is_reserved_than_is_to_be() {
    let reserved = |part| {
        let settings = Settings { memory_limit: Some(100 * MIB), collect_above: part, ..apart() };
        let Bench { allocator, .. } = bench(u64::MAX, settings);
        let pages = PoolSettings { kind: PoolKind::Remappable, ..PoolSettings::default() };
        let pages = allocator.pool(pages).unwrap();
        let take = |bytes| pages.allocate(bytes, s(1)).unwrap();
        // The pool may grow again to its earlier peak.
        drop([8 * MIB; 4].map(take));
        allocator.empty_cache().unwrap();
        let [_first, idle, _last] = [8 * MIB; 3].map(take);
        drop(idle);
        let _longer = take(10 * MIB);
        pages.stats().reserved.current
    };
    assert_eq!(reserved(None), 34 * MIB);
    assert_eq!(reserved(Fraction::new(0.2)), 26 * MIB);
}

#[test]
fn limits_and_collection_are_set_while_it_runs() {
    let Bench { allocator, .. } = bench(200 * MIB, apart());
    assert_eq!(allocator.set_memory_fraction(Fraction::new(0.5).unwrap()).unwrap(), 100 * MIB);
    assert!(allocator.allocate(101 * MIB, s(1)).is_err());
    let idle = allocator.allocate(60 * MIB, s(1)).unwrap().segment();
    let grow = || allocator.default_pool().allocate(4 * MIB, s(2)).map(drop).unwrap();
    grow();
    assert!(idle.hold("still there").is_ok());
    allocator.set_collect_above(Fraction::new(0.1));
    let keep = allocator.allocate(5 * MIB, s(3)).unwrap();
    let more = allocator.allocate(5 * MIB, s(3)).unwrap();
    assert!(idle.hold("too late").is_err());
    drop((keep, more));
}

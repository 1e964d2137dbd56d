//! Two ranks that make the same requests get the same places.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::core::size::UNIT;
use crate::host::{Failing, HostSource, SourceCall};

fn arena(base: u64, capacity: u64, geometry: Geometry) -> SymmetricArena {
    SymmetricArena::new(Arc::new(HostSource::at(base, capacity)), geometry).unwrap()
}

/// Segments of 2 to 64 MiB, so that a short run makes several.
const NARROW: Geometry = Geometry { first_segment: 2 << 20, largest_segment: 64 << 20 };

/// Segments of 2 MiB, or of the size of the request.
const EVEN: Geometry = Geometry { first_segment: 2 << 20, largest_segment: 2 << 20 };

#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    Free(prop::sample::Index),
    Freeze(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => prop_oneof![1..2048u64, 1..(256u64 << 10), 1..(8u64 << 20)].prop_map(Step::Allocate),
        9 => any::<prop::sample::Index>().prop_map(Step::Free),
        1 => any::<bool>().prop_map(Step::Freeze),
    ]
}

/// The result of a step, without addresses.
type Outcome = Result<Option<Placement>, String>;

fn apply(arena: &mut SymmetricArena, live: &mut Vec<Placed>, step: &Step) -> Outcome {
    match step {
        Step::Allocate(bytes) => match arena.allocate(*bytes) {
            Ok(placed) => {
                live.push(placed);
                Ok(Some(placed.placement))
            }
            Err(error) => Err(error.to_string()),
        },
        Step::Free(index) if !live.is_empty() => {
            let placed = live.swap_remove(index.index(live.len()));
            arena.free(&placed).map(|()| None).map_err(|error| error.to_string())
        }
        Step::Free(_) => Ok(None),
        Step::Freeze(true) => {
            arena.freeze();
            Ok(None)
        }
        Step::Freeze(false) => {
            arena.unfreeze();
            Ok(None)
        }
    }
}

proptest! {
    // 100 cases of 1,000 to 1,999 steps: at least 10^5 steps on each of the two arenas.
    #![proptest_config(ProptestConfig { cases: 100, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn placement_is_a_function_of_the_requests(
        steps in prop::collection::vec(step(), 1000..2000),
        bases in (1..1000u64, 1001..2000u64),
    ) {
        let mut left = arena(bases.0 << 32, u64::MAX, NARROW);
        let mut right = arena(bases.1 << 33, u64::MAX, NARROW);
        let (mut left_live, mut right_live) = (Vec::new(), Vec::new());
        for step in &steps {
            let outcome = apply(&mut left, &mut left_live, step);
            prop_assert_eq!(&outcome, &apply(&mut right, &mut right_live, step));
            prop_assert_eq!(left.log().state(), right.log().state());
        }
        let shape = |arena: &SymmetricArena| -> Vec<_> {
            arena.segments().iter().map(|segment| (segment.ordinal, segment.bytes, segment.log)).collect()
        };
        prop_assert_eq!(shape(&left), shape(&right));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn blocks_do_not_overlap_and_all_comes_back(steps in prop::collection::vec(step(), 1..500)) {
        let mut arena = arena(1 << 40, u64::MAX, NARROW);
        let mut live: Vec<Placed> = Vec::new();
        let mut model: BTreeMap<Placement, u64> = BTreeMap::new();
        for step in &steps {
            let before: Vec<Placement> = live.iter().map(|placed| placed.placement).collect();
            let outcome = apply(&mut arena, &mut live, step);
            if let Ok(Some(at)) = outcome {
                let placed = live.last().copied().unwrap();
                let segment = arena.segments()[at.ordinal as usize];
                prop_assert_eq!(placed.address, segment.memory.address + at.offset);
                prop_assert_eq!(arena.address(at), Some(placed.address));
                prop_assert_eq!((at.offset % UNIT, placed.bytes % UNIT, segment.bytes % SEGMENT_STEP), (0, 0, 0));
                prop_assert!(at.offset + placed.bytes <= segment.bytes);
                let same = |other: &Placement| other.ordinal == at.ordinal;
                if let Some((other, bytes)) = model.range(..=at).next_back().filter(|(other, _)| same(other)) {
                    prop_assert!(other.offset + bytes <= at.offset, "overlap from below");
                }
                if let Some((other, _)) = model.range(at..).next().filter(|(other, _)| same(other)) {
                    prop_assert!(at.offset + placed.bytes <= other.offset, "overlap from above");
                }
                model.insert(at, placed.bytes);
            } else {
                let now: Vec<Placement> = live.iter().map(|placed| placed.placement).collect();
                before.iter().filter(|at| !now.contains(at)).for_each(|at| { model.remove(at); });
            }
            let placed: Vec<Placement> = arena.blocks().map(|(at, _)| at).collect();
            prop_assert_eq!(placed, model.keys().copied().collect::<Vec<_>>());
        }
        for placed in live.drain(..) {
            arena.free(&placed).unwrap();
        }
        // All blocks are merged: each segment serves one block of its own size again, without growth.
        let sizes: Vec<u64> = arena.segments().iter().map(|segment| segment.bytes).collect();
        arena.freeze();
        for bytes in sizes {
            prop_assert!(arena.allocate(bytes).is_ok());
        }
    }
}

#[test]
fn segments_grow_geometrically_and_carry_the_log() {
    let mut arena = arena(1 << 40, u64::MAX, NARROW);
    for _ in 0..200 {
        arena.allocate(1 << 20).unwrap();
    }
    let sizes: Vec<u64> = arena.segments().iter().map(|segment| segment.bytes >> 20).collect();
    assert_eq!(sizes, [2, 18, 22, 44, 44, 44, 60]);
    let lengths: Vec<u64> = arena.segments().iter().map(|segment| segment.log.length).collect();
    assert_eq!(lengths, [1, 3, 21, 43, 87, 131, 175], "the state includes the request that made the segment");
    for segment in arena.segments() {
        assert_eq!(arena.log().hash_at(segment.log.length), Some(segment.log.hash));
    }
    assert_eq!(NARROW.segment_bytes(1 << 40, 1 << 40, 1), 64 << 20);
    assert_eq!(NARROW.segment_bytes(0, 0, (100 << 20) + 1), 102 << 20);
}

/// A segment for two blocks of this length would be longer than `MAX_BLOCK`, and no heap can contain that.
#[test]
fn no_segment_is_longer_than_the_longest_block() {
    let half = (MAX_BLOCK + (4 << 20)) / 2;
    let geometry = Geometry { first_segment: 2 << 20, largest_segment: u64::MAX };
    assert!((half..=MAX_BLOCK).contains(&geometry.segment_bytes(2 << 20, 0, half)));
}

#[test]
fn a_retired_segment_is_not_used_again_and_every_rank_hears_of_it() {
    let source = Arc::new(HostSource::new(u64::MAX));
    let mut arena = SymmetricArena::new(source.clone(), EVEN).unwrap();
    let first = arena.allocate(2 << 20).unwrap();
    let second = arena.allocate(2 << 20).unwrap().placement;
    let state = arena.log().state();
    assert!(matches!(arena.retire(0), Err(SymmetricError::SegmentInUse { ordinal: 0, blocks: 1 })));
    assert!(matches!(arena.retire(2), Err(SymmetricError::NoSuchSegment { ordinal: 2 })));
    assert_eq!(arena.log().state(), state);

    arena.free(&first).unwrap();
    let address = arena.segments()[0].memory.address;
    arena.retire(0).unwrap();
    assert!(matches!(arena.retire(0), Err(SymmetricError::NoSuchSegment { ordinal: 0 })));
    assert!(arena.segments()[0].retired && arena.address(first.placement).is_none());
    assert_eq!(arena.log().operation(state.length + 1).unwrap().kind, OperationKind::Retire);
    assert_eq!(source.calls().live_bytes, 4 << 20, "the memory stays until it is given back");
    arena.give_back().unwrap();
    assert_eq!(source.calls().live_bytes, 2 << 20);

    let third = arena.allocate(1 << 20).unwrap();
    assert_eq!(third.placement, Placement { ordinal: 2, offset: 0 });
    assert_ne!(third.address, address);
    let inside = Placement { offset: 512, ..second };
    assert_eq!((arena.blocks_over(inside, 1), arena.blocks_in(1)), (vec![second], 1));
    let fourth = arena.allocate(512).unwrap().placement;
    let whole = arena.blocks_over(third.placement, u64::MAX);
    assert_eq!(whole, [third.placement, fourth]);
    assert_eq!(arena.blocks_over(third.placement, 1 << 20), [third.placement]);
    let behind = Placement { offset: fourth.offset + 512, ..fourth };
    assert_eq!(arena.blocks_over(behind, 512), []);
    assert_eq!(arena.blocks_over(Placement { offset: 512, ..fourth }, 512), [third.placement]);
    arena.release().unwrap();
    assert_eq!(source.calls().live_bytes, 0);
}

#[test]
fn equal_segments_with_different_pasts_have_different_hashes() {
    let mut left = arena(1 << 40, u64::MAX, NARROW);
    let mut right = arena(1 << 40, u64::MAX, NARROW);
    left.allocate(2 << 20).unwrap();
    right.allocate_tagged((2 << 20) - 512, "short").unwrap();
    let (a, b) = (left.segments()[0], right.segments()[0]);
    assert_eq!((a.ordinal, a.bytes), (b.ordinal, b.bytes));
    assert_ne!(a.log, b.log);
    let found = right.log().operation(0).unwrap();
    assert_eq!(found.tag.as_deref(), Some("short"));
    assert!(found.file.ends_with("tests.rs"), "{found}");
}

#[test]
fn a_frozen_arena_says_what_is_missing() {
    let mut arena = arena(1 << 40, u64::MAX, NARROW);
    let first = arena.allocate(1 << 20).unwrap();
    arena.freeze();
    arena.allocate(1 << 20).unwrap();
    let error = arena.allocate(5 << 20).unwrap_err();
    assert!(
        matches!(error, SymmetricError::PoolWouldGrowDuringCapture { wanted, missing } if wanted == 5 << 20 && missing == 20 << 20),
        "{error}"
    );
    arena.free(&first).unwrap();
    assert_eq!(arena.allocate(1 << 20).unwrap().placement, first.placement, "what is there is still used");
    arena.unfreeze();
    assert_eq!(arena.allocate(5 << 20).unwrap().placement, Placement { ordinal: 1, offset: 0 });
}

#[test]
fn a_rank_that_fails_is_told_apart() {
    let source = Arc::new(HostSource::new(u64::MAX));
    let mut left = SymmetricArena::new(source.clone(), NARROW).unwrap();
    let mut right = arena(1 << 40, u64::MAX, NARROW);
    source.fail(SourceCall::Allocate, Failing::once(0).for_want_of_memory());
    let full = left.allocate(9).unwrap_err();
    let SymmetricError::OutOfMemory { wanted: 9, ordinal: 0, segment, reserved: 0, in_use: 0, info: Some(_) } =
        full
    else {
        panic!("{full}");
    };
    assert_eq!(segment, 2 << 20);
    right.allocate(9).unwrap();
    right.allocate(10).unwrap();
    left.allocate(10).unwrap();
    assert_eq!(left.segments()[0].bytes, right.segments()[0].bytes);
    assert_ne!(left.segments()[0].log, right.segments()[0].log);
    assert_eq!(left.log().operation(0).unwrap().kind, OperationKind::Refuse);
    left.release().unwrap();
    assert_eq!(source.calls().live_bytes, 0);
}

#[test]
fn a_repeated_request_takes_the_place_of_the_refused_one() {
    let source = Arc::new(HostSource::new(u64::MAX));
    let mut left = SymmetricArena::new(source.clone(), NARROW).unwrap();
    let mut right = arena(1 << 40, u64::MAX, NARROW);
    for arena in [&mut left, &mut right] {
        arena.allocate(1 << 20).unwrap();
    }
    source.fail(SourceCall::Allocate, Failing::for_ever(0).for_want_of_memory());
    for _ in 0..3 {
        let full = left.allocate_tagged(5 << 20, "refused").unwrap_err().to_string();
        assert!(full.starts_with("out of memory: 5242880 bytes need segment 1"), "{full}");
        assert_eq!(left.log().state().length, 2, "a request is refused once");
    }
    right.allocate(5 << 20).unwrap();
    assert_ne!(left.log().state(), right.log().state());
    source.heal();
    left.allocate(5 << 20).unwrap();
    assert_eq!(left.log().state(), right.log().state());
    assert_eq!(left.segments()[1].log, right.segments()[1].log);
    assert_eq!(left.log().operation(1).unwrap().tag, None);
    left.release().unwrap();
}

#[test]
fn a_refusal_counts_until_it_is_granted() {
    let source = Arc::new(HostSource::new(u64::MAX));
    let mut arena = SymmetricArena::new(source.clone(), NARROW).unwrap();
    let small = arena.allocate(1 << 20).unwrap();
    assert!(!arena.has_refused_since(0));
    source.fail(SourceCall::Allocate, Failing::for_ever(0).for_want_of_memory());
    arena.allocate(5 << 20).unwrap_err();
    // Another rank may have got the memory that this rank was refused. So later operations do not remove the refusal.
    arena.free(&small).unwrap();
    assert!(arena.has_refused_since(1) && !arena.has_refused_since(2));
    arena.allocate(6 << 20).unwrap_err();
    assert!(arena.has_refused_since(3));
    source.heal();
    arena.allocate(6 << 20).unwrap();
    assert!(!arena.has_refused_since(3), "granted");
    assert!(arena.has_refused_since(1), "the first refusal stays");
    arena.release().unwrap();
}

#[test]
fn reserved_memory_serves_later_requests() {
    let mut arena = arena(1 << 40, u64::MAX, NARROW);
    arena.reserve(100 << 20).unwrap();
    assert_eq!(arena.segments()[0].bytes, 100 << 20);
    assert!(!arena.reserve(100 << 20).unwrap().grown, "there is room");
    arena.freeze();
    for _ in 0..10 {
        assert!(!arena.allocate(10 << 20).unwrap().grown);
    }
    let full = arena.reserve(1).unwrap_err();
    assert!(matches!(full, SymmetricError::PoolWouldGrowDuringCapture { .. }), "{full}");
}

#[test]
fn what_is_not_a_block_cannot_be_freed() {
    let mut arena = arena(1 << 40, u64::MAX, NARROW);
    let a = arena.allocate(1024).unwrap();
    let state = arena.log().state();
    let Placed { placement, id, .. } = a;
    for (placement, id) in [
        (Placement { offset: 512, ..placement }, id),
        (Placement { offset: u64::MAX, ..placement }, id),
        (Placement { ordinal: 1, ..placement }, id),
        // The free block behind `a`.
        (Placement { offset: 1024, ..placement }, id + 1),
        (placement, id + 1),
        (placement, u32::MAX),
    ] {
        let wrong = Placed { placement, id, ..a };
        assert!(matches!(arena.free(&wrong), Err(SymmetricError::NotAllocated { .. })), "{wrong:?}");
    }
    assert_eq!(arena.log().state(), state);
    arena.free(&a).unwrap();
    assert!(matches!(arena.free(&a), Err(SymmetricError::NotAllocated { .. })));
    assert!(matches!(arena.allocate(0), Err(SymmetricError::Size(_))));
    assert!(matches!(arena.allocate(u64::MAX), Err(SymmetricError::Size(_))));
}

#[test]
fn a_source_that_breaks_its_contract_is_named() {
    #[derive(Debug)]
    struct Odd {
        address: u64,
        granularity: u64,
        short_of: u64,
    }
    impl crate::core::SegmentSource for Odd {
        fn device(&self) -> u32 {
            0
        }
        fn granularity(&self) -> u64 {
            self.granularity
        }
        fn allocate(&self, bytes: u64) -> Result<crate::core::SegmentMemory, crate::core::SourceError> {
            let bytes = bytes - self.short_of;
            Ok(crate::core::SegmentMemory { address: self.address, bytes, token: 0 })
        }
        fn release(&self, _: &crate::core::SegmentMemory) -> Result<(), crate::core::SourceError> {
            Ok(())
        }
        fn memory_info(&self) -> Result<crate::core::MemoryInfo, crate::core::SourceError> {
            Ok(crate::core::MemoryInfo { free: 0, total: 0 })
        }
    }
    let arena = |address, granularity, short_of| {
        SymmetricArena::new(Arc::new(Odd { address, granularity, short_of }), NARROW)
    };
    for (address, short_of) in [(4096, 512), (4096 + 256, 0), (0, 0), (u64::MAX - 511, 0)] {
        let error = arena(address, 512, short_of).unwrap().allocate(1).unwrap_err();
        let named = |source: &_| matches!(source, crate::core::SourceError::BadSegment { .. });
        assert!(matches!(&error, SymmetricError::Source { source, .. } if named(source)), "{error}");
    }
    assert!(matches!(
        arena(4096, 3 << 20, 0),
        Err(SymmetricError::Granularity { granularity }) if granularity == 3 << 20
    ));
}

#[test]
fn a_request_that_can_never_fit_is_told_apart() {
    // A pool of 64 MiB segments on a device of 32 MiB.
    let mut wide = arena(32 << 20, 32 << 20, Geometry { first_segment: 64 << 20, ..NARROW });
    let repeat = "free memory of the device, then repeat this request before any other of the pool";
    for (bytes, advice) in [
        (
            33 << 20,
            "the request is larger than the device's memory and can never fit: ask for less on every rank",
        ),
        (
            1 << 20,
            "the segment is larger than the device's memory and can never fit: make the pool with a smaller `Geometry` \
             on every rank",
        ),
    ] {
        let error = wide.allocate(bytes).unwrap_err().to_string();
        assert!(error.ends_with(advice) && !error.contains(repeat), "{error}");
    }
    let mut even = arena(32 << 20, 32 << 20, EVEN);
    even.allocate(20 << 20).unwrap();
    let error = even.allocate(20 << 20).unwrap_err().to_string();
    assert!(error.ends_with(repeat), "{error}");
}

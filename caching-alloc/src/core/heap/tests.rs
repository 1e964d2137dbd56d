//! The heap against a model that keeps plain intervals.

use proptest::prelude::*;

use super::*;

const LIST: List = 1;

/// Checks that the blocks tile their segments, that free neighbours are merged, and that the index and the side
/// table agree with them.
fn check(heap: &Heap) {
    for (ordinal, span) in heap.segments.iter().enumerate() {
        let Some(span) = span else { continue };
        let mut end = 0;
        let mut last = State::Used;
        let mut chunks = vec![NONE; span.firsts.len()];
        for (id, block) in heap.blocks(u32::try_from(ordinal).unwrap()) {
            assert_eq!(block.offset, end, "blocks tile the segment");
            assert!(block.units > 0);
            assert!(!(last == State::Free && block.state == State::Free), "free neighbours are merged");
            assert_eq!(heap.block_at(block.segment, block.offset), Some(id));
            assert_eq!(heap.block_over(block.segment, block.offset + block.units - 1), Some(id));
            let chunk = &mut chunks[(block.offset / CHUNK) as usize];
            *chunk = if *chunk == NONE { id } else { *chunk };
            end += block.units;
            last = block.state;
        }
        assert_eq!(end, span.units);
        assert_eq!(span.firsts, chunks, "the side table has the first block of each chunk");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(u32),
    Free(prop::sample::Index),
    Grow(u32),
    Shrink(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => prop_oneof![1..8u32, 1..300u32, Just(64)].prop_map(Step::Allocate),
        7 => any::<prop::sample::Index>().prop_map(Step::Free),
        1 => (1..2000u32).prop_map(Step::Grow),
        1 => any::<prop::sample::Index>().prop_map(Step::Shrink),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn best_fit_over_tiled_segments(steps in prop::collection::vec(step(), 1..300)) {
        let mut heap = Heap::default();
        let mut live: Vec<(BlockId, u32, Units, Units)> = Vec::new();
        for step in steps {
            match step {
                Step::Allocate(units) => {
                    // What best fit must choose, by looking at everything.
                    let best = (0..u32::try_from(heap.segments.len()).unwrap())
                        .flat_map(|ordinal| heap.blocks(ordinal))
                        .filter(|(_, block)| block.state == State::Free && block.units >= units)
                        .map(|(_, block)| (block.units, block.segment, block.offset))
                        .min();
                    let got = heap.allocate(units, LIST, true);
                    prop_assert_eq!(got.map(|id| {
                        let block = heap.block(id);
                        (block.segment, block.offset, block.units)
                    }), best.map(|(_, segment, offset)| (segment, offset, units)));
                    if let (Some(id), Some((_, segment, offset))) = (got, best) {
                        for (_, other, from, to) in &live {
                            prop_assert!(*other != segment || offset + units <= *from || *to <= offset, "overlap");
                        }
                        live.push((id, segment, offset, offset + units));
                    }
                }
                Step::Free(index) => if !live.is_empty() {
                    let (id, ..) = live.swap_remove(index.index(live.len()));
                    heap.free(id);
                }
                Step::Grow(units) => {
                    let ordinal = heap.add_segment(units, LIST);
                    prop_assert_eq!(ordinal as usize, heap.segments.len() - 1);
                }
                Step::Shrink(index) => if !heap.segments.is_empty() {
                    let ordinal = u32::try_from(index.index(heap.segments.len())).unwrap();
                    let there = heap.segments[ordinal as usize].is_some();
                    let used = live.iter().any(|(_, segment, ..)| *segment == ordinal);
                    prop_assert_eq!(heap.remove_segment(ordinal), there && !used);
                }
            }
            check(&heap);
        }
        for (id, ..) in live {
            heap.free(id);
        }
        let segments = u32::try_from(heap.segments.len()).unwrap();
        prop_assert!((0..segments).all(|o| heap.segments[o as usize].is_none() || heap.is_free(o)), "all merges");
    }
}

#[test]
fn records_are_used_again() {
    let mut heap = Heap::default();
    heap.add_segment(1000, LIST);
    for _ in 0..100 {
        let blocks: Vec<_> = (1..20).map(|units| heap.allocate(units, LIST, true).unwrap()).collect();
        blocks.into_iter().for_each(|id| heap.free(id));
    }
    assert!(heap.records.len() <= 20, "{}", heap.records.len());
}

#[test]
fn a_block_that_must_not_be_split_is_given_whole() {
    let mut heap = Heap::default();
    heap.add_segment(100, LIST);
    let id = heap.allocate(7, LIST, false).unwrap();
    assert_eq!(heap.block(id).units, 100);
    assert_eq!(heap.allocate(1, LIST, false), None);
    assert_eq!(heap.longest_free(LIST), 0);
    heap.free(id);
    assert_eq!(heap.longest_free(LIST), 100);
}

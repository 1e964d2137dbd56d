//! Compares the heap with a model that stores intervals.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;
use crate::core::size::bin_of;

const LIST: List = 1;

/// Checks the heap: the blocks cover their segments, free neighbours are merged, and the index and the side tables
/// agree with the blocks.
fn check(heap: &Heap) {
    let mut free = 0;
    for (ordinal, span) in heap.segments.iter().enumerate() {
        let Some(span) = span else { continue };
        let mut end = 0;
        let mut last = State::Used;
        let mut chunks = vec![NONE; span.firsts.len()];
        for (id, block) in heap.blocks(u32::try_from(ordinal).unwrap()) {
            assert_eq!(block.offset, end, "blocks cover the segment");
            assert!(block.units > 0);
            assert!(!(last == State::Free && block.state == State::Free), "free neighbours are merged");
            assert_eq!(heap.block_over(block.segment, block.offset), Some(id));
            assert_eq!(heap.block_over(block.segment, block.offset + block.units - 1), Some(id));
            if let Some(chunk) = chunks.get_mut((block.offset / CHUNK) as usize) {
                *chunk = if *chunk == NONE { id } else { *chunk };
            }
            free += usize::from(block.state == State::Free);
            end += block.units;
            last = block.state;
        }
        assert_eq!(end, span.units);
        assert_eq!(span.firsts, chunks, "the side table has the first block of each chunk");
    }
    let indexed: Vec<_> = heap.free.iter().flat_map(|index| index.all(&heap.records)).collect();
    assert_eq!(indexed.len(), free, "every free block is in the index");
    assert!(indexed.iter().all(|id| heap.block(*id).state == State::Free), "the index has only free blocks");
    let follows = |id: &BlockId| match heap.block(*id).greater {
        NONE => true,
        next => heap.block(next).less == *id,
    };
    assert!(indexed.iter().all(follows), "`less` and `greater` of neighbours in the index match");
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
        // The second kind is so long that the rest of a split block can stay in the block's bin (`FreeIndex::stays`).
        1 => prop_oneof![2 => 1..2000u32, 1 => Just((1 << 20) + 8000)].prop_map(Step::Grow),
        1 => any::<prop::sample::Index>().prop_map(Step::Shrink),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn allocations_are_best_fit(steps in prop::collection::vec(step(), 1..300), has_tables: bool) {
        let mut heap = if has_tables { Heap::with_tables() } else { Heap::new() };
        let mut live: Vec<(BlockId, u32, Units, Units)> = Vec::new();
        // The bins that have had more than `index::ORDERED` blocks since they were last empty.
        let mut crowded = HashSet::new();
        for step in steps {
            let free: Vec<_> = (0..u32::try_from(heap.segments.len()).unwrap())
                .flat_map(|ordinal| heap.blocks(ordinal))
                .filter(|(_, block)| block.state == State::Free)
                .map(|(_, block)| (block.units, block.segment, block.offset))
                .collect();
            let mut counts = HashMap::new();
            free.iter().for_each(|(length, ..)| *counts.entry(bin_of(*length)).or_insert(0) += 1);
            crowded.retain(|bin| counts.contains_key(bin));
            crowded.extend(counts.iter().filter(|(_, count)| **count > index::ORDERED).map(|(bin, _)| *bin));
            match step {
                Step::Allocate(units) => {
                    // The expected block is the best fit, found by a full search. In a crowded bin, any block that
                    // fits is accepted.
                    let fits = || free.iter().copied().filter(|(length, ..)| *length >= units);
                    let best = fits().min();
                    let bin = best.map(|(length, ..)| bin_of(length));
                    let is_crowded = bin.is_some_and(|bin| crowded.contains(&bin));
                    let got = heap.allocate(units, LIST, true);
                    let at = got.map(|id| (heap.block(id).segment, heap.block(id).offset));
                    prop_assert!(got.is_none_or(|id| heap.block(id).units == units));
                    let found = fits().find(|(_, segment, offset)| at == Some((*segment, *offset)));
                    prop_assert_eq!(found.is_some(), best.is_some());
                    prop_assert!(found == best || is_crowded && found.map(|(length, ..)| bin_of(length)) >= bin);
                    if let (Some(id), Some((segment, offset))) = (got, at) {
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
                    let there = heap.segments.len();
                    let spare = heap.segments.iter().position(Option::is_none).filter(|_| !has_tables);
                    let ordinal = heap.add_segment(units, LIST);
                    prop_assert_eq!(ordinal as usize, spare.unwrap_or(there));
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
    let mut heap = Heap::with_tables();
    heap.add_segment(1000, LIST);
    for _ in 0..100 {
        let blocks: Vec<_> = (1..20).map(|units| heap.allocate(units, LIST, true).unwrap()).collect();
        blocks.into_iter().for_each(|id| heap.free(id));
    }
    assert!(heap.records.len() <= 20 + 1, "{}", heap.records.len());
}

#[test]
fn a_block_that_must_not_be_split_is_given_whole() {
    let mut heap = Heap::with_tables();
    heap.add_segment(100, LIST);
    let id = heap.allocate(7, LIST, false).unwrap();
    assert_eq!(heap.block(id).units, 100);
    assert_eq!(heap.allocate(1, LIST, false), None);
    assert_eq!(heap.longest_free(LIST), 0);
    heap.free(id);
    assert_eq!(heap.longest_free(LIST), 100);
}

#[test]
fn a_crowded_bin_hides_nothing() {
    // The free blocks are in one bin, inserted from long to short. Used blocks lie between them.
    const LENGTHS: std::ops::Range<Units> = 1024..1032;
    let mut heap = Heap::new();
    heap.add_segment(1_000_000, LIST);
    let blocks: Vec<_> = (0..400u32)
        .map(|at| if at % 2 == 0 { LENGTHS.end - 1 - at / 50 } else { 1 })
        .map(|units| heap.allocate(units, LIST, true).unwrap())
        .collect();
    heap.allocate(heap.longest_free(LIST), LIST, true).unwrap();
    blocks.iter().step_by(2).for_each(|id| heap.free(*id));
    check(&heap);
    assert_eq!(heap.longest_free(LIST), LENGTHS.end - 1);
    for _ in 0..25 {
        let id = heap.allocate(LENGTHS.end - 1, LIST, true).unwrap();
        assert_eq!(heap.block(id).units, LENGTHS.end - 1);
    }
    assert_eq!(heap.allocate(LENGTHS.end - 1, LIST, true), None);
    assert_eq!((0..).map_while(|_| heap.allocate(LENGTHS.start, LIST, true)).count(), 175);
    check(&heap);
}

#[test]
fn a_split_block_is_placed_beside_one_of_equal_length() {
    let mut heap = Heap::new();
    heap.add_segment(100, LIST);
    let [_, between, _] = [10, 30, 20].map(|units| heap.allocate_off_holes(units, LIST).unwrap());
    heap.free(between);
    let mut place = |units| {
        let id = heap.allocate_off_holes(units, LIST).unwrap();
        let offset = heap.block(id).offset;
        heap.free(id);
        offset
    };
    assert_eq!(
        [20, 10, 5].map(&mut place),
        [20, 10, 10],
        "beside the next block, beside the previous one, at the beginning"
    );
}

//! Checkpoints of graph pools.

use caching_alloc::core::{Block, GraphPool, PoolSettings, RestoreError, StreamId};
use proptest::prelude::*;
use proptest::sample::Index;

use super::common::{Bench, MIB, bench, check_tiling, s, tight};

#[derive(Clone, Debug)]
enum Step {
    Allocate(u64, u64),
    Free(Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (prop_oneof![1..4096u64, 1..3 * MIB], 1..3u64)
            .prop_map(|(bytes, stream)| Step::Allocate(bytes, stream)),
        3 => any::<Index>().prop_map(Step::Free),
    ];
    prop::collection::vec(step, 0..60)
}

fn span(block: &Block) -> (u64, u64) {
    (block.address(), block.bytes())
}

fn sorted(blocks: &[Block]) -> Vec<(u64, u64)> {
    let mut spans: Vec<_> = blocks.iter().map(span).collect();
    spans.sort_unstable();
    spans
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_checkpoint_comes_back_whole_or_not_at_all(before in steps(), after in steps(), drops in any::<bool>()) {
        let Bench { allocator, source, .. } = bench(u64::MAX, tight());
        let pool = allocator.graph_pool(PoolSettings::default()).unwrap();
        let capture = pool.capture(&[s(1), s(2)]);
        let mut live = Vec::new();
        let run = |live: &mut Vec<Block>, steps: &[Step]| {
            for step in steps {
                match step {
                    Step::Allocate(bytes, stream) => live.push(allocator.allocate(*bytes, s(*stream)).unwrap()),
                    Step::Free(index) if !live.is_empty() => drop(live.swap_remove(index.index(live.len()))),
                    Step::Free(_) => {}
                }
            }
        };
        run(&mut live, &before);
        let checkpoint = pool.checkpoint();
        let mut saved: Vec<_> = checkpoint.blocks().collect();
        saved.sort_unstable();
        prop_assert_eq!(&saved, &sorted(&live));
        run(&mut live, &after);
        if drops {
            live.clear();
        }
        let others = sorted(&live);
        let overlaps = |(begin, bytes): &(u64, u64)| {
            others.iter().any(|(other, more)| *other < begin + bytes && *begin < other + more)
        };
        let is_free = saved.iter().all(|span| others.contains(span) || !overlaps(span));
        let calls = source.calls();
        let stats = pool.stats();
        match pool.restore(&checkpoint) {
            Ok(restored) => {
                prop_assert!(is_free);
                let expected: Vec<_> = saved.iter().filter(|span| !others.contains(span)).copied().collect();
                prop_assert_eq!(sorted(&restored), expected);
                live.extend(restored);
            }
            Err(RestoreError::Occupied { address, bytes }) => {
                prop_assert!(!is_free && saved.contains(&(address, bytes)));
                prop_assert_eq!(pool.stats(), stats);
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
        prop_assert_eq!(source.calls(), calls, "no driver is called");
        prop_assert_eq!(pool.stats().all.blocks.current, live.len() as u64);
        check_tiling(&allocator.snapshot().unwrap());
        run(&mut live, &before);
        let spans = sorted(&live);
        prop_assert!(spans.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        drop((live, capture));
        allocator.empty_cache().unwrap();
        prop_assert_eq!(source.calls().live_bytes, 0);
    }
}

/// Makes a graph pool, and allocates a block from it. Returns the pool, the block's stream and the block.
fn with_block(bench: &Bench) -> (GraphPool, StreamId, Block) {
    let pool = bench.allocator.graph_pool(PoolSettings::default()).unwrap();
    let capture = pool.capture(&[s(1)]);
    let block = bench.allocator.allocate(MIB, s(1)).unwrap();
    drop(capture);
    (pool, s(1), block)
}

#[test]
fn a_checkpoint_of_another_pool_or_without_memory_is_refused() {
    let bench = bench(u64::MAX, tight());
    let (pool, _, block) = with_block(&bench);
    let (other, _, _others) = with_block(&bench);
    let checkpoint = pool.checkpoint();
    assert_eq!((checkpoint.len(), checkpoint.is_empty()), (1, false));
    assert_eq!(other.restore(&checkpoint).unwrap_err(), RestoreError::OtherPool { pool: other.id() });
    assert!(pool.restore(&checkpoint).unwrap().is_empty(), "its owner still has it");
    let (address, bytes) = span(&block);
    drop(block);
    bench.allocator.empty_cache().unwrap();
    assert_eq!(pool.restore(&checkpoint).unwrap_err(), RestoreError::Released { address, bytes });
}

#[test]
fn a_block_that_another_stream_uses_is_not_handed_out_again() {
    let bench = bench(u64::MAX, tight());
    let (pool, _, block) = with_block(&bench);
    let checkpoint = pool.checkpoint();
    let (address, bytes) = span(&block);
    bench.streams.enqueue(s(2));
    block.record_stream(s(2)).unwrap();
    drop(block);
    assert_eq!(pool.restore(&checkpoint).unwrap_err(), RestoreError::Occupied { address, bytes });
}

//! Growth during a capture, and graphs that outlive the memory that they use. Nothing is declared: the pool learns of
//! the capture from the driver.

use cuda_driver::graph::{CaptureMode, GraphExec};
use symm_mem::{SymmetricBlock, SymmetricGroup, SymmetricPool};

use super::NCCL;
use crate::embedded::job::{self, Rank, options, soon};

const MIB: u64 = 1 << 20;

/// Captures sums of these blocks over the world.
fn capture(rank: &Rank, grow: impl FnOnce() -> Vec<SymmetricBlock>) -> (GraphExec, Vec<SymmetricBlock>) {
    let recording = rank.stream.begin_capture(CaptureMode::ThreadLocal).expect("nothing is captured");
    let blocks = grow();
    for block in &blocks {
        rank.fill(block);
        rank.all_reduce(block.ptr(), block.bytes(), &rank.world);
    }
    let graph = recording.end().and_then(|graph| graph.instantiate()).expect("the capture is valid");
    (graph, blocks)
}

/// Launches the graph on all ranks, and checks the sums in memory whose blocks may have been dropped.
fn replay(rank: &Rank, graph: &GraphExec, at: &[(cuda_driver::DevicePtr, u64)]) {
    rank.world.barrier(soon()).expect("all come");
    rank.stream.launch(graph).expect("it can be launched");
    rank.stream.synchronize().expect("the work is done");
    let expected: f32 = rank.world.global_ranks().iter().map(|rank| (rank + 1) as f32).sum();
    for (ptr, bytes) in at {
        let mut found = vec![0u32; *bytes as usize / 4];
        // SAFETY: nothing writes there meanwhile.
        unsafe { rank.context.copy_to_host(&mut found, *ptr) }.expect("it can be read");
        assert!(found == vec![expected.to_bits(); found.len()], "rank {}: not all are {expected}", rank.rank);
    }
}

/// Fills the pool's free places, and checks that none of them overlaps the memory `at`.
fn overwrite(rank: &Rank, pool: &SymmetricPool, at: &[(cuda_driver::DevicePtr, u64)]) -> Vec<SymmetricBlock> {
    let blocks: Vec<_> = (0..4).map(|_| pool.allocate(MIB).expect("there is room")).collect();
    for block in &blocks {
        let (begin, end) = (block.ptr().0, block.ptr().0 + block.bytes());
        let is_apart = at.iter().all(|(ptr, bytes)| end <= ptr.0 || ptr.0 + bytes <= begin);
        assert!(is_apart, "rank {}: the graph has lost {:?}", rank.rank, block.placement());
        // SAFETY: the block's own memory.
        unsafe { rank.context.fill_u32(block.ptr(), u32::MAX, MIB as usize / 4) }.expect("it can be filled");
    }
    rank.context.synchronize().expect("the work is done");
    blocks
}

/// The pool grows while a stream captures: the new segment is registered by nobody until the capture has ended, the
/// captured collectives are right before and after it becomes a window, and the graph keeps the blocks that their
/// owners drop.
#[test]
fn a_pool_that_grows_while_a_stream_captures_registers_nothing_and_keeps_the_blocks() {
    job::run_seen(
        2,
        NCCL,
        |_| {},
        |world, ranks| {
            std::thread::scope(|scope| {
                for rank in ranks {
                    scope.spawn(move || {
                        let (pool, old) = rank.pool_with_bucket();
                        assert_eq!(pool.commit(&rank.world, options()).expect("both agree").new_windows, 1);
                        rank.world.barrier(soon()).expect("all come");
                        let calls = || world.calls("ncclCommWindowRegister");
                        let (graph, blocks) = capture(&rank, || {
                            let grown = pool.allocate(4 * MIB).expect("there is room");
                            assert_eq!((grown.placement().ordinal, calls()), (1, 2));
                            let refused = pool.commit(&rank.world, options()).expect_err("both capture");
                            assert_eq!(refused.name(), "CommitDuringCapture", "{refused}");
                            vec![old, grown]
                        });
                        let at: Vec<_> = blocks.iter().map(|block| (block.ptr(), block.bytes())).collect();
                        let places: Vec<_> = blocks.iter().map(SymmetricBlock::placement).collect();
                        assert_eq!(calls(), 2);
                        drop(blocks);
                        replay(&rank, &graph, &at);
                        let others = overwrite(&rank, &pool, &at);
                        replay(&rank, &graph, &at);
                        // Now it becomes a window, and the graph, which does not use that, is still right.
                        let report = pool.commit(&rank.world, options()).expect("both agree");
                        assert_eq!(report.windows, pool.segments());
                        replay(&rank, &graph, &at);
                        let groups: [&dyn SymmetricGroup; 1] = [&rank.world];
                        let refused =
                            pool.retire(&[1], &groups, options().deadline).expect_err("it is in use");
                        assert!(refused.to_string().contains("SegmentPinned"), "{refused}");
                        replay(&rank, &graph, &at);
                        drop(graph);
                        let again = pool.allocate(4 * MIB).expect("there is room");
                        assert_eq!(again.placement(), places[1], "the graph is gone");
                        rank.sum(&again, &rank.world);
                        drop((again, others, pool));
                        rank.leave();
                    });
                }
            });
        },
    );
}

/// The pool of one rank grows during its capture: it is told by the next commit, on both ranks, and the graph is right.
#[test]
fn a_pool_that_grows_in_the_capture_of_one_rank_is_told_to_all() {
    job::run(
        2,
        NCCL,
        |_| {},
        |rank| {
            let (pool, block) = rank.pool_with_bucket();
            assert_eq!(pool.commit(&rank.world, options()).expect("both agree").new_windows, 1);
            let mut grown = None;
            let (graph, blocks) = capture(&rank, || {
                grown = (rank.rank == 1).then(|| pool.allocate(4 * MIB).expect("there is room"));
                vec![block]
            });
            let error = pool.commit(&rank.world, options()).expect_err("rank 1 has one more");
            assert_eq!(error.name(), "SegmentCountMismatch", "{error}");
            assert!(error.to_string().contains("rank 1: 1"), "{error}");
            replay(&rank, &graph, &[(blocks[0].ptr(), blocks[0].bytes())]);
            drop((graph, grown, blocks, pool));
            rank.leave();
        },
    );
}

//! A captured all-reduce whose block was dropped, launched many times while the pool allocates and commits.

use std::thread;

use cuda_driver::{
    DevicePtr,
    graph::{CaptureMode, GraphExec},
};
use symm_mem::SymmetricPool;

use super::on_ranks;
use crate::{
    common::turn,
    embedded::job::{self, Rank, options, soon},
};

const BYTES: u64 = 1 << 20;
const ELEMENTS: usize = BYTES as usize / 4;

/// Launches of the graph between two checks of the sums.
const LAUNCHES: usize = 50;

/// Captures an all-reduce of a new block, without a declaration, and drops the block. Then launches the graph
/// `checks` times [`LAUNCHES`] times, while another thread allocates blocks, writes to them and commits them.
fn replay(rank: &Rank, checks: usize) {
    let (pool, block) = rank.pool_with_bucket();
    pool.commit(&rank.world, options()).expect("the ranks agree");
    // NCCL 2.28.3 connects the ranks in the first all-reduce, which it cannot do during a capture if they are threads.
    rank.sum(&block, &rank.world);
    let recording = rank.stream.begin_capture(CaptureMode::ThreadLocal).expect("nothing is captured");
    rank.fill(&block);
    rank.all_reduce(block.ptr(), block.bytes(), &rank.world);
    let graph = recording.end().and_then(|graph| graph.instantiate()).expect("the capture is valid");
    let (at, place) = (block.ptr(), block.placement());
    drop(block);
    let other = pool.allocate(BYTES).expect("there is room");
    assert_ne!(other.placement(), place, "rank {}: the graph has lost its block", rank.rank);
    thread::scope(|scope| {
        let launches = scope.spawn(move || {
            (0..checks).for_each(|_| launch(rank, &graph, at));
            graph
        });
        grow(rank, &pool, at);
        // Only now is the graph dropped.
        launches.join().expect("every sum is right");
    });
}

fn launch(rank: &Rank, graph: &GraphExec, at: DevicePtr) {
    (0..LAUNCHES).for_each(|_| rank.stream.launch(graph).expect("it can be launched"));
    rank.stream.synchronize().expect("the work is done");
    let sum: f32 = rank.world.global_ranks().iter().map(|rank| (rank + 1) as f32).sum();
    assert!(content(rank, at) == vec![sum.to_bits(); ELEMENTS], "rank {}: not all are {sum}", rank.rank);
}

/// Allocates and commits blocks, as all ranks do, and drops the older half of them. They never overlap the block of the
/// graph, at `kept`.
fn grow(rank: &Rank, pool: &SymmetricPool, kept: DevicePtr) {
    let mut blocks = Vec::new();
    for round in 0..20_u32 {
        let block = pool.allocate(BYTES).expect("there is room");
        assert_ne!(block.ptr(), kept, "rank {}: the graph uses this block", rank.rank);
        // SAFETY: as much memory, of this block alone.
        unsafe { rank.context.copy_from_host(block.ptr(), &vec![round; ELEMENTS]) }
            .expect("it can be written");
        blocks.push((round, block));
        pool.commit(&rank.world, options()).expect("the ranks agree");
        if blocks.len() == 8 {
            for (round, block) in blocks.drain(..4) {
                assert!(
                    content(rank, block.ptr()) == vec![round; ELEMENTS],
                    "rank {}: block {round}",
                    rank.rank
                );
            }
        }
    }
}

fn content(rank: &Rank, at: DevicePtr) -> Vec<u32> {
    let mut found = vec![0; ELEMENTS];
    // SAFETY: the memory is this rank's, and nothing writes there meanwhile.
    unsafe { rank.context.copy_to_host(&mut found, at) }.expect("it can be read");
    found
}

#[test]
fn a_graph_whose_block_was_dropped_is_right_while_the_pool_grows() {
    for release in [22809, 23007] {
        job::run(
            2,
            release,
            |_| {},
            |rank| {
                replay(&rank, 2);
                rank.leave();
            },
        );
    }
}

#[test]
fn hardware_graph_whose_block_was_dropped_is_right_while_the_pool_grows() {
    let _turn = turn();
    let (driver, nccl, devices) = match super::gpus() {
        Ok(found) => found,
        Err(why) => return println!("skipped: {why}"),
    };
    for size in [2, 4].into_iter().filter(|size| *size <= devices) {
        on_ranks(job::ranks(&driver, &nccl, size), |rank| {
            replay(&rank, 20);
            rank.world.barrier(soon()).expect("all come to the end");
            rank.leave();
        });
        println!("{size} ranks, NCCL {}: 1,000 launches", nccl.release());
    }
}

//! Growth during a capture, and graphs that outlive the memory that they use. Nothing is declared: the pool learns of
//! the capture from the driver.

use cuda_driver::{
    Context, Stream, StreamFlags,
    graph::{CaptureMode, GraphExec},
    memory::DeviceMemory,
    sys::{CUresult, CUstream, CUstreamCaptureMode},
};
use symm_mem::{Refusal, SymmetricBlock, SymmetricGroup, SymmetricPool};

use super::NCCL;
use crate::{
    common::foreign_capture::ForeignCapture,
    embedded::job::{self, Rank, options, soon},
};

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

const MODES: [CUstreamCaptureMode; 3] = [
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
];

/// The pool grows while another library captures on a stream of the rank. As in a capture of this library, nothing is
/// registered meanwhile and the collectives are right, but the blocks are kept for good: no call reports the end of
/// the graph.
#[test]
fn a_pool_that_grows_while_another_library_captures_registers_nothing_and_keeps_the_blocks_for_good() {
    for mode in MODES {
        let left = job::run_leaving(2, NCCL, |rank| {
            let (pool, old) = rank.pool_with_bucket();
            assert_eq!(pool.commit(&rank.world, options()).expect("both agree").new_windows, 1);
            rank.world.barrier(soon()).expect("all come");
            // SAFETY: the stream outlives the capture.
            let capture = unsafe { ForeignCapture::begin(&rank.context, rank.stream.raw(), mode) };
            let grown = pool.allocate(4 * MIB).expect("there is room");
            let refused = pool.commit(&rank.world, options()).expect_err("both capture");
            assert_eq!(refused.name(), "CommitDuringCapture", "{mode:?}: {refused}");
            let blocks = [old, grown];
            for block in &blocks {
                rank.fill(block);
                rank.all_reduce(block.ptr(), block.bytes(), &rank.world);
            }
            // SAFETY: the pool keeps the blocks for good.
            let graph = unsafe { capture.end() }.expect("nothing has invalidated the capture");
            let exec = graph.instantiate().expect("the capture is valid");
            drop(graph);
            // A global capture forbids that the other rank waits for its device.
            rank.world.barrier(soon()).expect("all come");
            let at = blocks.each_ref().map(|block| (block.ptr(), block.bytes()));
            drop(blocks);
            let others = overwrite(&rank, &pool, &at);
            replay(&rank, &exec, &at);
            let report = pool.commit(&rank.world, options()).expect("both agree");
            assert_eq!(report.windows, pool.segments());
            replay(&rank, &exec, &at);
            drop(exec);
            let again = pool.allocate(4 * MIB).expect("there is room");
            assert_ne!(again.ptr(), at[1].0, "the place of the graph's block is not free");
            let groups: [&dyn SymmetricGroup; 1] = [&rank.world];
            let refused = pool.retire(&[1], &groups, options().deadline).expect_err("it may be launched");
            assert!(refused.to_string().contains("SegmentPinned"), "{refused}");
            drop((again, others, pool));
            rank.leave();
        });
        assert!(left.iter().any(|leak| leak.kind == "mapping"), "{left:?}");
    }
}

/// A stream on which another library captures.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Captured {
    /// The program also has a handle of it.
    Known,
    /// No handle of `cuda_driver` exists. It waits for the legacy default stream.
    Blocking,
    /// No handle of `cuda_driver` exists.
    NonBlocking,
}

/// Calls `work` with a stream that another library made.
fn with_raw_stream<T>(context: &Context, flags: StreamFlags, work: impl FnOnce(CUstream) -> T) -> T {
    let (api, mut raw) = (context.driver().api(), std::ptr::null_mut());
    let create = api.cuStreamCreate().expect("the driver has it");
    // SAFETY: writes one handle, to a local that outlives the call.
    let made = context.with_current(|| unsafe { create(&mut raw, flags.bits()) });
    assert_eq!(made.expect("the context is there"), CUresult::CUDA_SUCCESS);
    let result = work(raw);
    // SAFETY: nobody uses the stream any more.
    let code = unsafe { (api.cuStreamDestroy_v2().expect("the driver has it"))(raw) };
    assert_eq!(code, CUresult::CUDA_SUCCESS);
    result
}

/// Commits and retires while another library captures a fill before and a fill after them.
fn commit_beside(rank: &Rank, raw: CUstream, who: &[u32], (stream, mode): (Captured, CUstreamCaptureMode)) {
    let (pool, block) = rank.pool_with_bucket();
    let groups: [&dyn SymmetricGroup; 1] = [&rank.world];
    let memory = DeviceMemory::new(&rank.context, 8).expect("there is room");
    // SAFETY: the stream outlives the handle, and the memory outlives the graph's launch.
    let fill = |word: usize| unsafe {
        Stream::borrowed(&rank.context, raw).fill_u32(memory.ptr() + 4 * word, 7, 1).expect("captured");
    };
    // A global capture forbids an allocation of the other rank.
    rank.world.barrier(soon()).expect("all come");
    let capture = who.contains(&rank.rank).then(|| {
        // SAFETY: the stream outlives the capture.
        let capture = unsafe { ForeignCapture::begin(&rank.context, raw, mode) };
        fill(0);
        capture
    });
    rank.world.barrier(soon()).expect("all come");
    let committed = pool.commit(&rank.world, options());
    let retired = pool.retire(&[0], &groups, options().deadline);
    match stream {
        // Nothing tells that it captures.
        Captured::NonBlocking => {
            assert_eq!(committed.expect("the ranks agree").new_windows, 1);
            let error = retired.expect_err("there is a block");
            assert!(error.to_string().contains("SegmentInUse"), "{error}");
        }
        Captured::Known | Captured::Blocking => {
            let refusal = Refusal::CommitDuringCapture { ranks: who.to_vec() };
            for error in [committed.expect_err("a stream captures"), retired.expect_err("a stream captures")]
            {
                assert_eq!(error.refusal(), Some(&refusal), "{stream:?} {mode:?}: {error}");
            }
        }
    }
    let graph = capture.map(|capture| {
        fill(1);
        // SAFETY: the memory outlives the graph's launch.
        unsafe { capture.end() }.expect("nothing has invalidated the capture")
    });
    // A global capture forbids that the other rank waits for its stream.
    rank.world.barrier(soon()).expect("all come");
    if let Some(graph) = graph {
        assert_eq!(
            graph.node_count().expect("the graph is there"),
            2,
            "no other work has joined the capture"
        );
        rank.stream.launch(&graph.instantiate().expect("the capture is valid")).expect("it can be launched");
        rank.stream.synchronize().expect("the work is done");
        let mut found = [0u32; 2];
        memory.copy_to_host(0, &mut found).expect("it can be read");
        assert_eq!(found, [7, 7]);
    }
    assert_eq!(pool.poison(rank.world.id()), None);
    assert_eq!(pool.commit(&rank.world, options()).expect("the ranks agree").windows, 1);
    rank.sum(&block, &rank.world);
}

#[test]
fn a_commit_or_a_retirement_leaves_a_capture_of_another_library_as_it_was() {
    for (stream, flags) in [
        (Captured::Known, None),
        (Captured::Blocking, Some(StreamFlags::default())),
        (Captured::NonBlocking, Some(StreamFlags::NON_BLOCKING)),
    ] {
        // Only a relaxed capture bears the calls of a commit that does not find it.
        for mode in MODES.into_iter().skip(if stream == Captured::NonBlocking { 2 } else { 0 }) {
            for who in [&[0, 1][..], &[1]] {
                let test = |rank: Rank| {
                    let test = |raw| commit_beside(&rank, raw, who, (stream, mode));
                    match flags {
                        None => test(rank.stream.raw()),
                        Some(flags) => with_raw_stream(&rank.context, flags, test),
                    }
                    rank.leave();
                };
                job::run(2, NCCL, |_| {}, test);
            }
        }
    }
}

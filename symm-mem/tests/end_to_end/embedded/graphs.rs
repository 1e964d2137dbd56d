//! Graphs keep the blocks that they use, for any call and without a declaration; those of an exchange are tested with
//! it. No window is made or removed while a
//! stream captures.

use std::{
    sync::{Arc, Barrier},
    time::Duration,
};

use caching_alloc::{
    core::{Allocator, PoolSettings, SegmentSource, Settings},
    driver::{DriverEvents, DriverSource},
};
use cuda_driver::{
    DevicePtr,
    graph::{CaptureMode, GraphExec},
    sys::{CUresult, CUstreamCaptureMode},
};
use gpu_sim::{Action, Injection, World};
use process_group::{
    ProcessGroup,
    comm::{DataType, ReduceOp},
    group::{Buffer, GroupErrorKind, P2pPolicy},
};
use symm_mem::{
    Placement, PoolSource, Refusal, SymmetricBlock, SymmetricGroup, SymmetricPool,
    direct::{self, DirectOptions},
    kernels::{Algorithm, AllReduce, Kernels, Target, twins},
    rendezvous::{Rendezvous, RendezvousOptions},
};

use super::{
    NCCL_2_28_9,
    job::{Rank, options, run, run_leaving, soon},
    on_ranks,
};
use crate::common::foreign_capture::ForeignCapture;

const LONG: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
const ELEMENTS: usize = MIB as usize / 4;

fn floats(at: DevicePtr) -> Buffer {
    Buffer::new(at, ELEMENTS, DataType::F32)
}

fn capture(rank: &Rank, work: impl FnOnce()) -> GraphExec {
    let recording = rank.stream.begin_capture(CaptureMode::ThreadLocal).expect("nothing is captured");
    work();
    recording.end().and_then(|graph| graph.instantiate()).expect("the capture is valid")
}

fn fill(rank: &Rank, at: DevicePtr, value: f32) {
    // SAFETY: the memory is there until the stream has been synchronised.
    unsafe { rank.stream.fill_u32(at, value.to_bits(), ELEMENTS) }.expect("it can be filled");
}

#[track_caller]
fn holds(rank: &Rank, at: DevicePtr, value: f32) {
    let mut found = vec![0f32; ELEMENTS];
    // SAFETY: nothing writes there meanwhile.
    unsafe { rank.context.copy_to_host(&mut found, at) }.expect("it can be read");
    let wrong = found.iter().find(|found| **found != value);
    assert!(wrong.is_none(), "rank {}: {wrong:?}, not {value}", rank.rank);
}

/// Checks that a block is not reused while the graph lives, and that it is afterwards. `launch` runs the graph, and
/// checks its effect in the block's memory.
fn is_kept(
    rank: &Rank,
    pool: &SymmetricPool,
    block: SymmetricBlock,
    graph: GraphExec,
    launch: impl Fn(&GraphExec, DevicePtr),
) {
    let (placement, at) = (block.placement(), block.ptr());
    drop(block);
    let other = pool.allocate(MIB).expect("there is room");
    assert_ne!(other.placement(), placement, "rank {}: the graph has lost its block", rank.rank);
    fill(rank, other.ptr(), -1.0);
    rank.stream.synchronize().expect("the work is done");
    for _ in 0..2 {
        launch(&graph, at);
    }
    holds(rank, other.ptr(), -1.0);
    drop(graph);
    // There is room in at most two other places before the pool grows.
    let room = || pool.allocate(MIB).expect("there is room");
    let again = [room(), room(), room()].map(|block| block.placement());
    assert!(again.contains(&placement), "rank {}: nobody uses it any more: {again:?}", rank.rank);
}

/// Launches the graph on all ranks, and waits for it.
fn launch(rank: &Rank, graph: &GraphExec) {
    rank.world.barrier(soon()).expect("all ranks come");
    rank.stream.launch(graph).expect("it can be launched");
    rank.stream.synchronize().expect("the work is done");
}

/// The result of an all-reduce over `group` in which each rank contributes its number plus one.
fn sum(group: &ProcessGroup) -> f32 {
    group.global_ranks().iter().map(|rank| (rank + 1) as f32).sum()
}

#[test]
fn a_collective_that_a_stream_captures_pins_its_blocks() {
    on_ranks(2, |rank| {
        // Both with a commit for the group and without.
        for commits in [true, false] {
            let (pool, block) = rank.pool_with_bucket();
            if commits {
                pool.commit(&rank.world, options()).expect("the ranks agree");
            }
            let graph = capture(&rank, || {
                rank.fill(&block);
                rank.all_reduce(block.ptr(), block.bytes(), &rank.world);
            });
            is_kept(&rank, &pool, block, graph, |graph, at| {
                launch(&rank, graph);
                holds(&rank, at, sum(&rank.world));
            });
        }
        rank.leave();
    });
}

#[test]
fn a_collective_that_a_stream_captures_pins_its_routed_block() {
    on_ranks(2, |rank| {
        let pool = Arc::new(rank.pool());
        let events = Arc::new(DriverEvents::new(&rank.context));
        let stream = events.register(&rank.stream);
        let own = Arc::new(DriverSource::new(&rank.context));
        let allocator = Allocator::new(own, events, Settings::default());
        let source = Some(Arc::new(PoolSource::new(pool.clone())) as Arc<dyn SegmentSource>);
        let routed =
            allocator.pool(PoolSettings { source, ..PoolSettings::default() }).expect("the settings fit");
        let scope = pool.scope(&[&rank.world]).options(options()).route(&routed);
        let block = allocator.allocate(MIB, stream).expect("there is room");
        assert!(scope.finish().iter().all(Result::is_ok), "the ranks agree");
        let at = DevicePtr(block.address());
        let graph = capture(&rank, || {
            fill(&rank, at, (rank.rank + 1) as f32);
            rank.all_reduce(at, MIB, &rank.world);
        });
        drop(block);
        let other = routed.allocate(MIB, stream).expect("there is room");
        assert_ne!(DevicePtr(other.address()), at, "rank {}: the graph has lost its block", rank.rank);
        fill(&rank, DevicePtr(other.address()), -1.0);
        for _ in 0..2 {
            launch(&rank, &graph);
            holds(&rank, at, sum(&rank.world));
        }
        holds(&rank, DevicePtr(other.address()), -1.0);
        drop(graph);
        let again = routed.allocate(MIB, stream).expect("there is room");
        assert_eq!(DevicePtr(again.address()), at, "nobody uses it any more");
        drop((again, other, routed, allocator, pool));
        rank.leave();
    });
}

#[test]
fn a_collective_of_a_communicator_pins_its_blocks() {
    on_ranks(2, |rank| {
        let (pool, block) = rank.pool_with_bucket();
        let communicator = rank.world.communicator();
        let graph = capture(&rank, || {
            rank.fill(&block);
            let (at, f32, sum) = (block.ptr(), DataType::F32, ReduceOp::Sum);
            // SAFETY: the graph keeps the block.
            unsafe { communicator.all_reduce(at, at, ELEMENTS, f32, sum, &rank.stream) }.expect("captured");
        });
        is_kept(&rank, &pool, block, graph, |graph, at| {
            launch(&rank, graph);
            holds(&rank, at, sum(&rank.world));
        });
        rank.leave();
    });
}

/// By messages of `group`, each rank's first block goes to the other's second one.
fn messages(rank: &Rank, group: &ProcessGroup) {
    let pool = rank.pool();
    let [from, to] = [0, 1].map(|_| pool.allocate(MIB).expect("there is room"));
    let peer = 1 - group.rank();
    let graph = capture(rank, || {
        rank.fill(&from);
        // SAFETY: the graph keeps the blocks.
        let sent = unsafe {
            group.batch(&rank.stream, |batch| {
                batch.send(floats(from.ptr()), peer)?;
                batch.recv(floats(to.ptr()), peer)
            })
        };
        sent.expect("the messages are captured");
    });
    // The graph also holds the other half of this segment.
    let sender = from.placement();
    drop(from);
    is_kept(rank, &pool, to, graph, |graph, at| {
        launch(rank, graph);
        holds(rank, at, (peer + 1) as f32);
    });
    assert_eq!(pool.allocate(2 * MIB).expect("there is room").placement(), sender, "both blocks are free");
}

#[test]
fn messages_that_a_stream_captures_pin_their_blocks() {
    on_ranks(2, |rank| {
        messages(&rank, &rank.world);
        let group = rank.builder().p2p(P2pPolicy::Direct).lazy().build().expect("all ranks join");
        direct::install(&group, DirectOptions::default().slot_bytes(64 << 10)).expect("all have a path");
        messages(&rank, &group);
        group.destroy(soon()).expect("all ranks leave");
        rank.leave();
    });
}

#[test]
fn a_kernel_that_a_stream_captures_pins_its_blocks() {
    run(2, NCCL_2_28_9, twins::register, |rank| {
        let rendezvous = Rendezvous::of(&rank.world, RendezvousOptions::default().deadline(LONG)).unwrap();
        let kernels = Kernels::load(&rank.context).expect("there are kernels");
        let (pool, block) = rank.pool_with_bucket();
        let memory = rendezvous.rendezvous(&block).expect("all ranks come");
        kernels.prepare(DataType::F32).expect("they can be loaded");
        let graph = capture(&rank, || {
            rank.fill(&block);
            let call = AllReduce {
                input: memory.offset() as u64,
                target: Target::InPlace,
                elements: ELEMENTS as u64,
                dtype: DataType::F32,
                op: ReduceOp::Sum,
                algorithm: Algorithm::TwoShot,
            };
            // SAFETY: the graph keeps the block; pads and mappings stay until the graph has gone.
            unsafe { kernels.all_reduce(&rank.stream, &memory.ranks(LONG), &call) }.expect("captured");
        });
        drop(memory);
        is_kept(&rank, &pool, block, graph, |graph, at| {
            launch(&rank, graph);
            holds(&rank, at, sum(&rank.world));
        });
        drop((kernels, rendezvous, pool));
        rank.leave();
    });
}

#[test]
fn what_is_allocated_during_a_capture_stays_until_the_graph_goes() {
    on_ranks(1, |rank| {
        let pool = rank.pool();
        let mut block = None;
        // The block is used by work that this crate does not see.
        let graph = capture(&rank, || {
            let new = pool.allocate(MIB).expect("there is room");
            fill(&rank, new.ptr(), 7.0);
            block = Some(new);
        });
        is_kept(&rank, &pool, block.expect("allocated"), graph, |graph, at| {
            launch(&rank, graph);
            holds(&rank, at, 7.0);
        });
        drop(pool);
        rank.leave();
    });
}

#[test]
fn an_operation_whose_capture_the_driver_does_not_tell_is_an_error() {
    // Fails the second and the third query. The first one belongs to the begin of the capture.
    for nth in 2..4 {
        let fail = Injection::new("cuStreamGetCaptureInfo_v2", Action::Fail(CUresult::CUDA_ERROR_UNKNOWN.0));
        let prepare = |world: &World| world.faults().inject(fail.nth(nth)).expect("there is such a function");
        run(1, NCCL_2_28_9, prepare, |rank| {
            let (pool, block) = rank.pool_with_bucket();
            let recording = rank.stream.begin_capture(CaptureMode::ThreadLocal).expect("nothing is captured");
            let buffer = floats(block.ptr());
            // SAFETY: the capture is thrown away.
            let work = unsafe { rank.world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &rank.stream) };
            let error = work.expect_err("nobody keeps the block");
            assert!(matches!(error.kind(), GroupErrorKind::Driver(_)), "{error}");
            drop(recording);
            let placement = block.placement();
            drop(block);
            assert_eq!(pool.allocate(MIB).expect("there is room").placement(), placement);
            drop(pool);
            rank.leave();
        });
    }
}

#[test]
fn a_segment_is_not_retired_while_a_graph_uses_it_and_outlives_the_pool() {
    on_ranks(2, |rank| {
        let (pool, block) = rank.pool_with_bucket();
        let graph = capture(&rank, || {
            rank.fill(&block);
            rank.all_reduce(block.ptr(), block.bytes(), &rank.world);
        });
        let at = block.ptr();
        drop(block);
        let groups: [&dyn SymmetricGroup; 1] = [&rank.world];
        let error = pool.retire(&[0], &groups, LONG).expect_err("a graph uses the segment");
        let Some(Refusal::SegmentPinned { ordinal: 0, graphs }) = error.refusal() else { panic!("{error}") };
        assert_eq!(graphs.entries.iter().map(|side| side.value).collect::<Vec<_>>(), [1]);
        drop(pool);
        launch(&rank, &graph);
        holds(&rank, at, sum(&rank.world));
        drop(graph);
        rank.leave();
    });
}

/// Begins and ends a capture as another library does.
fn capture_elsewhere(rank: &Rank, work: impl FnOnce()) -> GraphExec {
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream outlives the capture, and the graph's blocks are kept.
    let graph = unsafe {
        let capture = ForeignCapture::begin(&rank.context, rank.stream.raw(), mode);
        work();
        capture.end()
    };
    graph.expect("the capture is valid").instantiate().expect("the graph is valid")
}

/// A collective in a capture that another library began, of a pool that is declared to be captured, or not.
fn kept_elsewhere(rank: Rank, declares: bool) {
    let (pool, block) = rank.pool_with_bucket();
    let declared = declares.then(|| pool.begin_capture());
    let graph = capture_elsewhere(&rank, || {
        rank.fill(&block);
        rank.all_reduce(block.ptr(), block.bytes(), &rank.world);
    });
    let pin = declared.map(|declared| declared.finish());
    let (placement, at) = (block.placement(), block.ptr());
    drop(block);
    let place = || -> Placement { pool.allocate(MIB).expect("there is room").placement() };
    assert_ne!(place(), placement);
    launch(&rank, &graph);
    holds(&rank, at, sum(&rank.world));
    // No call reports the end of such a graph; only a declared capture releases the block.
    assert_ne!(place(), placement);
    drop(pin);
    assert_eq!(place() == placement, declares);
    drop(pool);
    if !declares {
        launch(&rank, &graph);
        holds(&rank, at, sum(&rank.world));
    }
    drop(graph);
    rank.leave();
}

#[test]
fn a_capture_that_another_library_began_keeps_its_blocks_as_declared() {
    on_ranks(2, |rank| kept_elsewhere(rank, true));
}

#[test]
fn a_capture_that_another_library_began_undeclared_keeps_its_blocks_for_good() {
    let left = run_leaving(2, NCCL_2_28_9, |rank| kept_elsewhere(rank, false));
    // The graph may be launched at any time, so the pool's segment on each rank is never freed.
    let mappings = left.iter().filter(|leak| leak.kind == "mapping").count();
    assert_eq!(mappings, 2, "{left:?}");
}

#[test]
fn a_commit_or_a_retirement_is_refused_on_all_members_while_one_captures_and_leaves_the_capture_as_it_was() {
    let modes = [CaptureMode::ThreadLocal, CaptureMode::Global, CaptureMode::Relaxed];
    for (release, who) in [(NCCL_2_28_9, 0b11u32), (NCCL_2_28_9, 0b10), (23007, 0b10)] {
        for mode in modes {
            let barrier = Barrier::new(2);
            let job = |rank: Rank| {
                let (pool, block) = rank.pool_with_bucket();
                let groups: [&dyn SymmetricGroup; 1] = [&rank.world];
                let ranks: Vec<u32> = (0..2).filter(|rank| who >> rank & 1 == 1).collect();
                let refusal = Refusal::CommitDuringCapture { ranks: ranks.clone() };
                let recording = ranks
                    .contains(&rank.rank)
                    .then(|| rank.stream.begin_capture(mode).expect("none is open"));
                barrier.wait();
                let error = pool.commit(&rank.world, options()).expect_err("a stream captures");
                assert_eq!(error.refusal(), Some(&refusal), "{mode:?}: {error}");
                let error = pool.retire(&[0], &groups, LONG).expect_err("a stream captures");
                assert_eq!(error.refusal(), Some(&refusal), "{mode:?}: {error}");
                // The capture and the group are still usable.
                if let Some(recording) = recording {
                    rank.fill(&block);
                    let graph = recording.end().expect("the capture is valid");
                    assert_eq!(graph.node_count().expect("the graph is there"), 1);
                }
                assert_eq!(pool.poison(rank.world.id()), None);
                barrier.wait();
                assert_eq!(pool.commit(&rank.world, options()).expect("the ranks agree").new_windows, 1);
                rank.sum(&block, &rank.world);
                drop((pool, block));
                rank.leave();
            };
            run(2, release, |_| {}, job);
        }
    }
}

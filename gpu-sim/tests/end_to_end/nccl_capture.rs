//! Collectives in graphs: recorded, replayed in launch order, and held until the graphs are gone.

use super::rig;

use std::ffi::c_void;

use super::rig::{Comm, OK, Rank, run, run_in_comm, world};
use cuda_driver_sys as cu;
use nccl_sys::*;
use rusty_fork::rusty_fork_test;

struct Graph {
    graph: cu::CUgraph,
    exec: cu::CUgraphExec,
}

fn capture(rank: &Rank, body: impl FnOnce()) -> Graph {
    let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mode = cu::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    cuda!(rank.rig, cuStreamBeginCapture_v2(rank.stream.0, mode));
    body();
    cuda!(rank.rig, cuStreamEndCapture(rank.stream.0, &mut graph));
    cuda!(rank.rig, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    Graph { graph, exec }
}

fn launch(rank: &Rank, graph: &Graph) {
    cuda!(rank.rig, cuGraphLaunch(graph.exec, rank.stream.0));
}

fn drop_graph(rank: &Rank, graph: Graph) {
    cuda!(rank.rig, cuGraphExecDestroy(graph.exec));
    cuda!(rank.rig, cuGraphDestroy(graph.graph));
}

fn all_reduce(rank: &Rank, comm: Comm, buffer: u64) {
    assert_eq!(rank.all_reduce(comm, buffer, 1), OK, "{}", rank.rig.last_error());
}

rusty_fork_test! {
    #![rusty_fork(timeout_ms = 300000)]

    #[test]
    fn a_graph_replays_its_collectives_among_live_ones() {
        let world = world(3);
        run_in_comm(&world, 3, |rank, comm| {
            let buffer = rank.upload(&1i32.to_ne_bytes());
            let graph = capture(rank, || {
                all_reduce(rank, comm, buffer);
                all_reduce(rank, comm, buffer);
            });
            assert_eq!(rank.read(buffer, 4), 1i32.to_ne_bytes(), "recorded, not run");
            launch(rank, &graph);
            all_reduce(rank, comm, buffer);
            launch(rank, &graph);
            rank.synchronize();
            assert_eq!(rank.read(buffer, 4), 3i32.pow(5).to_ne_bytes());
            drop_graph(rank, graph);
            rank.free(buffer);
        });
        world.finish().unwrap();
    }

    #[test]
    fn live_graphs_hold_their_communicator() {
        let world = world(2);
        let id = rig::Rig::new(&world).unique_id();
        run(&world, 2, move |rank| {
            let comm = rank.init(id, 2);
            let buffer = rank.upload(&1i32.to_ne_bytes());
            let graph = capture(rank, || all_reduce(rank, comm, buffer));
            launch(rank, &graph);
            rank.synchronize();
            assert_eq!(nccl!(rank.rig, ncclCommDestroy(comm.0)), ncclResult_t::ncclInvalidUsage);
            assert!(rank.rig.last_error().contains("1 live graphs"), "{}", rank.rig.last_error());
            drop_graph(rank, graph);
            rank.rig.destroy(comm);
            rank.free(buffer);
        });
        world.finish().unwrap();
    }

    #[test]
    fn a_graph_that_is_launched_while_its_communicator_is_suspended_faults() {
        let world = gpu_sim::World::builder().capacity(1 << 30).nccl_release(22907).start().unwrap();
        let id = rig::Rig::new(&world).unique_id();
        run(&world, 1, move |rank| {
            let comm = rank.init(id, 1);
            let buffer = rank.upload(&1i32.to_ne_bytes());
            let graph = capture(rank, || all_reduce(rank, comm, buffer));
            ok!(rank.rig, ncclCommSuspend(comm.0, 1));
            ok!(rank.rig, ncclCommResume(comm.0));
            launch(rank, &graph);
            rank.synchronize();
            ok!(rank.rig, ncclCommSuspend(comm.0, 1));
            launch(rank, &graph);
            // SAFETY: a stream of this rank.
            let end = unsafe { rank.rig.cuda.cuStreamSynchronize.unwrap()(rank.stream.0) };
            assert_ne!(end, cu::CUresult::CUDA_SUCCESS);
            assert_eq!(rank.rig.async_error(comm), ncclResult_t::ncclUnhandledCudaError);
            rank.rig.abort(comm);
        });
        drop(world);
    }

    #[test]
    fn a_graph_that_outlives_its_window_is_an_error() {
        let world = world(2);
        run_in_comm(&world, 2, |rank, comm| {
            let buffer = rank.symmetric(1 << 21);
            let mut window = std::ptr::null_mut();
            ok!(rank.rig, ncclCommWindowRegister(comm.0, buffer as *mut c_void, 1 << 21, &mut window, 1));
            let graph = capture(rank, || all_reduce(rank, comm, buffer));
            launch(rank, &graph);
            rank.synchronize();
            assert_eq!(rank.rig.async_error(comm), OK);
            ok!(rank.rig, ncclCommWindowDeregister(comm.0, window));
            launch(rank, &graph);
            rank.synchronize();
            assert_eq!(rank.rig.async_error(comm), ncclResult_t::ncclInvalidUsage);
            assert!(rank.rig.last_error().contains("deregistered"), "{}", rank.rig.last_error());
            drop_graph(rank, graph);
            rank.free_symmetric(buffer);
        });
        world.finish().unwrap();
    }

    #[test]
    fn windows_are_registered_in_captures_from_2_30_7_only() {
        for release in [22809, 23004, 23007] {
            let world =
                gpu_sim::World::builder().devices(2).capacity(1 << 30).nccl_release(release).start().unwrap();
            run_in_comm(&world, 2, move |rank, comm| {
                let buffer = rank.symmetric(1 << 21);
                let mode = cu::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
                cuda!(rank.rig, cuStreamBeginCapture_v2(rank.stream.0, mode));
                let mut window = std::ptr::null_mut();
                let pointer = buffer as *mut c_void;
                let code = nccl!(rank.rig, ncclCommWindowRegister(comm.0, pointer, 1 << 21, &mut window, 1));
                let mut graph = std::ptr::null_mut();
                // SAFETY: a stream that captures.
                let ended = unsafe { rank.rig.cuda.cuStreamEndCapture.unwrap()(rank.stream.0, &mut graph) };
                if release < 23007 {
                    assert_eq!(code, ncclResult_t::ncclUnhandledCudaError);
                    assert_ne!(ended, cu::CUresult::CUDA_SUCCESS, "the capture is invalidated");
                } else {
                    assert_eq!((code, ended), (OK, cu::CUresult::CUDA_SUCCESS));
                    ok!(rank.rig, ncclCommWindowDeregister(comm.0, window));
                    cuda!(rank.rig, cuGraphDestroy(graph));
                }
                rank.free_symmetric(buffer);
            });
            world.finish().unwrap();
        }
    }
}

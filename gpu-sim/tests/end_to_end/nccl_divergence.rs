//! Differences between the ranks' calls are errors on all ranks in a strict world, and hangs in a faithful one.

use super::rig;

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use super::rig::{Comm, OK, Rank, run_in_comm, world};
use cuda_driver_sys::CUresult;
use gpu_sim::World;
use nccl_sys::*;
use rusty_fork::rusty_fork_test;

/// The difference of the minority rank's call.
#[derive(Clone, Copy, Debug)]
enum Odd {
    Kind,
    Type,
    Count,
    Op,
    Root,
}

fn call(rank: &Rank, comm: Comm, buffer: u64, odd: Option<Odd>) {
    let pointer = buffer as *mut c_void;
    let element =
        if matches!(odd, Some(Odd::Type)) { ncclDataType_t::ncclFloat32 } else { ncclDataType_t::ncclInt32 };
    let count = if matches!(odd, Some(Odd::Count)) { 32 } else { 16 };
    let op = if matches!(odd, Some(Odd::Op)) { ncclRedOp_t::ncclMax } else { ncclRedOp_t::ncclSum };
    let root = if matches!(odd, Some(Odd::Root)) { 1 } else { 0 };
    let stream = rank.stream.nccl();
    if matches!(odd, Some(Odd::Kind)) {
        ok!(rank.rig, ncclBroadcast(pointer, pointer, count, element, root, comm.0, stream));
    } else {
        ok!(rank.rig, ncclReduce(pointer, pointer, count, element, op, root, comm.0, stream));
    }
}

fn faithful(devices: usize) -> World {
    World::builder().devices(devices).capacity(1 << 30).faithful().start().unwrap()
}

rusty_fork_test! {
    #![rusty_fork(timeout_ms = 300000)]

    #[test]
    fn a_collective_that_differs_fails_on_every_member() {
        let world = world(4);
        let cases = [
            (Odd::Kind, "ncclBroadcast", "ncclReduce"),
            (Odd::Type, "16 f32", "16 i32"),
            (Odd::Count, "32 i32", "16 i32"),
            (Odd::Op, "(max", "(sum"),
            (Odd::Root, "root 1", "root 0"),
        ];
        for (odd, one, other) in cases {
            let texts = run_in_comm(&world, 4, move |rank, comm| {
                let buffer = rank.alloc(256);
                call(rank, comm, buffer, (rank.rank == 2).then_some(odd));
                rank.synchronize();
                assert_eq!(rank.rig.async_error(comm), ncclResult_t::ncclInvalidUsage, "{odd:?}");
                let text = rank.rig.last_error();
                // The stream and the communicator stay usable.
                assert_eq!(rank.sum(comm, 1), 4);
                rank.free(buffer);
                text
            });
            for text in texts {
                assert!(text.contains("rank 2 calls") && text.contains("while rank"), "{odd:?}: {text}");
                assert!(text.contains(one) && text.contains(other), "{odd:?}: {text}");
            }
        }
        world.finish().unwrap();
    }

    #[test]
    fn the_error_of_a_collective_that_differs_is_there_before_its_event() {
        let error_at_event = |rank: &Rank, comm: Comm| {
            let (buffer, cuda) = (rank.alloc(256), &rank.rig.cuda);
            let mut event = std::ptr::null_mut();
            cuda!(rank.rig, cuEventCreate(&mut event, 2));
            call(rank, comm, buffer, (rank.rank == 1).then_some(Odd::Kind));
            cuda!(rank.rig, cuEventRecord(event, rank.stream.0));
            // SAFETY: the event is alive.
            let query = || unsafe { cuda.cuEventQuery.unwrap()(event) };
            while query() == CUresult::CUDA_ERROR_NOT_READY {
                std::thread::yield_now();
            }
            assert_eq!(rank.rig.async_error(comm), ncclResult_t::ncclInvalidUsage);
            cuda!(rank.rig, cuEventDestroy_v2(event));
            rank.free(buffer);
        };
        let free = world(2);
        for _ in 0..50 {
            run_in_comm(&free, 2, error_at_event);
        }
        free.finish().unwrap();
        for seed in 0..50 {
            let seeded = World::builder().devices(2).capacity(1 << 30).seeded(seed).start().unwrap();
            run_in_comm(&seeded, 2, error_at_event);
            seeded.finish().unwrap();
        }
    }

    #[test]
    fn a_message_that_differs_is_reported_while_others_of_its_group_wait() {
        let world = world(3);
        let told = Arc::new(AtomicBool::new(false));
        run_in_comm(&world, 3, move |rank, comm| {
            let buffer = rank.alloc(64);
            let (pointer, element) = (buffer as *mut c_void, ncclDataType_t::ncclInt32);
            let stream = rank.stream.nccl();
            let wait = |done: &dyn Fn() -> bool| {
                (0..12_000).any(|_| done() || { std::thread::sleep(Duration::from_millis(5)); false })
            };
            match rank.rank {
                0 => {
                    ok!(rank.rig, ncclGroupStart());
                    ok!(rank.rig, ncclSend(pointer, 8, element, 1, comm.0, stream));
                    ok!(rank.rig, ncclSend(pointer, 4, element, 2, comm.0, stream));
                    ok!(rank.rig, ncclGroupEnd());
                    let is_told = wait(&|| rank.rig.async_error(comm) == ncclResult_t::ncclInvalidUsage);
                    told.store(true, SeqCst);
                    assert!(is_told, "rank 0 hears of it only when rank 2 has come");
                }
                1 => ok!(rank.rig, ncclRecv(pointer, 4, element, 0, comm.0, stream)),
                _ => {
                    wait(&|| told.load(SeqCst));
                    ok!(rank.rig, ncclRecv(pointer, 4, element, 0, comm.0, stream));
                }
            }
            rank.synchronize();
            let expected = if rank.rank == 2 { OK } else { ncclResult_t::ncclInvalidUsage };
            assert_eq!(rank.rig.async_error(comm), expected);
            rank.free(buffer);
        });
        world.finish().unwrap();
    }

    #[test]
    fn messages_that_differ_fail_on_both_sides() {
        let world = world(2);
        run_in_comm(&world, 2, |rank, comm| {
            let (buffer, pointer) = (rank.alloc(64), std::ptr::null_mut::<c_void>());
            let pointer = pointer.wrapping_byte_add(buffer as usize);
            let (element, stream) = (ncclDataType_t::ncclInt32, rank.stream.nccl());
            if rank.rank == 0 {
                ok!(rank.rig, ncclSend(pointer, 8, element, 1, comm.0, stream));
            } else {
                ok!(rank.rig, ncclRecv(pointer, 4, element, 0, comm.0, stream));
            }
            rank.synchronize();
            assert_eq!(rank.rig.async_error(comm), ncclResult_t::ncclInvalidUsage);
            let text = rank.rig.last_error();
            assert!(text.contains("rank 0 sends 8 i32") && text.contains("rank 1 receives 4 i32"), "{text}");
            assert_eq!(rank.sum(comm, 1), 2);
            rank.free(buffer);
        });
        world.finish().unwrap();
    }

    #[test]
    fn a_faithful_world_hangs_until_the_abort() {
        let world = faithful(2);
        let reached = Arc::new(Barrier::new(3));
        let (rig, id) = (rig::Rig::new(&world), rig::Rig::new(&world).unique_id());
        let ranks: Vec<_> = (0..2)
            .map(|device| {
                let (rig, reached) = (rig.clone(), reached.clone());
                std::thread::spawn(move || {
                    let rank = rig.rank(device);
                    let comm = rank.init(id, 2);
                    let buffer = rank.alloc(256);
                    call(&rank, comm, buffer, (device == 1).then_some(Odd::Count));
                    reached.wait();
                    rig.abort(comm);
                    rank.synchronize();
                    rank.free(buffer);
                    rank.leave();
                })
            })
            .collect();
        rig::until_waiting(&world, "an abort", 2);
        reached.wait();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
        world.finish().unwrap();
    }

    #[test]
    fn a_buffer_registered_on_one_side_only_is_an_error() {
        let world = world(2);
        run_in_comm(&world, 2, |rank, comm| {
            let buffer = rank.alloc(8192);
            let mut handle = std::ptr::null_mut();
            if rank.rank == 1 {
                ok!(rank.rig, ncclCommRegister(comm.0, buffer as *mut c_void, 8192, &mut handle));
            }
            assert_eq!(rank.all_reduce(comm, buffer, 16), OK);
            rank.synchronize();
            assert_eq!(rank.rig.async_error(comm), ncclResult_t::ncclInvalidUsage);
            assert!(rank.rig.last_error().contains("send buffer registered"), "{}", rank.rig.last_error());
            if rank.rank == 1 {
                ok!(rank.rig, ncclCommDeregister(comm.0, handle));
            }
            assert_eq!(rank.sum(comm, 1), 2);
            rank.free(buffer);
        });
        world.finish().unwrap();
    }

    #[test]
    fn a_use_after_free_faults_here_and_is_told_to_the_others() {
        let world = world(3);
        let id = rig::Rig::new(&world).unique_id();
        rig::run(&world, 3, move |rank| {
            let comm = rank.init(id, 3);
            let buffer = rank.alloc(4096);
            if rank.rank == 1 {
                rank.free(buffer);
            }
            // The others' calls may come after the fault, and then fail at once.
            let called = rank.all_reduce(comm, buffer, 16);
            assert!(called == OK || rank.rank != 1 && called == ncclResult_t::ncclRemoteError, "{called:?}");
            // SAFETY: no preconditions.
            let code = unsafe { rank.rig.cuda.cuStreamSynchronize.unwrap()(rank.stream.0) };
            let faulted = code == CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
            assert_eq!(faulted, rank.rank == 1, "{code:?}");
            let wanted =
                if faulted { ncclResult_t::ncclUnhandledCudaError } else { ncclResult_t::ncclRemoteError };
            assert_eq!(rank.rig.async_error(comm), wanted);
            rank.rig.abort(comm);
            if !faulted {
                rank.free(buffer);
            }
        });
    }

    #[test]
    fn who_destroyed_its_communicator_is_missed_by_name() {
        let world = world(2);
        let id = rig::Rig::new(&world).unique_id();
        rig::run(&world, 2, move |rank| {
            let comm = rank.init(id, 2);
            if rank.rank == 1 {
                rank.rig.destroy(comm);
                return;
            }
            let buffer = rank.alloc(64);
            assert_eq!(rank.all_reduce(comm, buffer, 16), OK);
            rank.synchronize();
            assert_eq!(rank.rig.async_error(comm), ncclResult_t::ncclRemoteError);
            assert!(rank.rig.last_error().contains("rank 1"), "{}", rank.rig.last_error());
            rank.free(buffer);
            rank.rig.destroy(comm);
        });
        world.finish().unwrap();
    }

    #[test]
    fn different_host_calls_are_an_error_on_every_member() {
        let world = world(2);
        run_in_comm(&world, 2, |rank, comm| {
            let buffer = rank.symmetric(1 << 21);
            let mut child = std::ptr::null_mut();
            let code = if rank.rank == 0 {
                let mut window = std::ptr::null_mut();
                nccl!(
                    rank.rig,
                    ncclCommWindowRegister(comm.0, buffer as *mut c_void, 1 << 21, &mut window, 1)
                )
            } else {
                nccl!(rank.rig, ncclCommSplit(comm.0, 0, 0, &mut child, std::ptr::null_mut()))
            };
            assert_eq!(code, ncclResult_t::ncclInvalidUsage);
            // Both ranks write the process's one error buffer, so a read may be torn until both are done.
            let told = || rank.rig.last_error().contains("different calls");
            let whole = (0..1000).any(|_| told() || { std::thread::sleep(Duration::from_millis(1)); false });
            assert!(whole, "{}", rank.rig.last_error());
            // The failed child's handle is returned all the same.
            if rank.rank == 1 {
                rank.rig.abort(Comm(child));
            }
            rank.free_symmetric(buffer);
        });
        world.finish().unwrap();
    }
}

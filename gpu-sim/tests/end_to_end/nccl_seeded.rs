//! NCCL in seeded worlds: the same seed gives the same run, and a deadlock is named.

use super::rig;

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::rig::{Comm, OK, Rig, run_in_comm};
use gpu_sim::{RunError, Step, World};
use nccl_sys::*;
use rusty_fork::rusty_fork_test;

fn seeded(seed: u64) -> World {
    World::builder().devices(3).capacity(1 << 30).seeded(seed).start().unwrap()
}

/// Runs init, split, windows, collectives and messages of three ranks. Returns the decisions of the scheduler.
fn one_run(seed: u64) -> Vec<Step> {
    let world = seeded(seed);
    run_in_comm(&world, 3, |rank, comm| {
        assert_eq!(rank.sum(comm, 1 << rank.rank), 7);
        let child = rank.rig.split(comm, (rank.rank == 0) as i32, 0);
        let buffer = rank.symmetric(1 << 21);
        let mut window = std::ptr::null_mut();
        let pointer = buffer as *mut c_void;
        // Both communicators in one group: their calls run concurrently.
        let mut other = std::ptr::null_mut();
        ok!(rank.rig, ncclGroupStart());
        ok!(rank.rig, ncclCommWindowRegister(comm.0, pointer, 1 << 21, &mut window, 1));
        ok!(rank.rig, ncclCommWindowRegister(child.0, pointer, 1 << 21, &mut other, 1));
        ok!(rank.rig, ncclGroupEnd());
        assert!(!window.is_null() && !other.is_null());
        let (left, right) = ((rank.rank + 2) % 3, (rank.rank + 1) % 3);
        rank.write(buffer, &[rank.rank as u8; 16]);
        let (element, stream) = (ncclDataType_t::ncclUint8, rank.stream.nccl());
        ok!(rank.rig, ncclGroupStart());
        ok!(rank.rig, ncclSend(pointer, 16, element, right as i32, comm.0, stream));
        ok!(rank.rig, ncclRecv(pointer.wrapping_byte_add(16), 16, element, left as i32, comm.0, stream));
        ok!(rank.rig, ncclGroupEnd());
        rank.synchronize();
        assert_eq!(rank.read(buffer + 16, 16), [left as u8; 16]);
        ok!(rank.rig, ncclCommWindowDeregister(child.0, other));
        ok!(rank.rig, ncclCommWindowDeregister(comm.0, window));
        rank.free_symmetric(buffer);
        rank.rig.destroy(child);
    });
    let history = world.history();
    world.finish().unwrap();
    history
}

rusty_fork_test! {
    #![rusty_fork(timeout_ms = 300000)]

    #[test]
    fn a_group_that_cannot_end_is_done_with_the_callers_memory_when_it_returns() {
        for seed in 0..20 {
            let world = seeded(seed);
            let rig = Rig::new(&world);
            let ids = [rig.unique_id(), rig.unique_id()];
            // A deadlock hides the actor's assertions.
            let reached_end = Arc::new(AtomicBool::new(false));
            let reached = reached_end.clone();
            let actor = move || {
                let rank = rig.rank(0);
                let mut comms = [std::ptr::null_mut(); 2];
                ok!(rank.rig, ncclGroupStart());
                for (comm, id) in comms.iter_mut().zip(ids) {
                    ok!(rank.rig, ncclCommInitRank(comm, 2, id.0, 0));
                }
                assert_ne!(nccl!(rank.rig, ncclGroupEnd()), OK);
                let marks = [0x5a5a as ncclComm_t; 2];
                // A late write by the library would overwrite these marks after the group has ended.
                assert_eq!(std::mem::replace(&mut comms, marks), [std::ptr::null_mut(); 2]);
                gpu_sim::sched::sleep(std::time::Duration::from_secs(1)).unwrap();
                assert_eq!(comms, marks);
                reached.store(true, SeqCst);
            };
            let run = world.run_actors(vec![("rank 0".into(), Box::new(actor))]);
            assert!(matches!(run, Err(RunError::Deadlock(_))), "{run:?}");
            assert!(reached_end.load(SeqCst), "seed {seed}");
        }
    }

    #[test]
    fn a_seed_repeats_its_run_and_seeds_differ() {
        let first = one_run(7);
        assert_eq!(one_run(7), first);
        assert!((8..12).any(|seed| one_run(seed) != first));
    }

    #[test]
    fn many_seeds_give_the_same_results() {
        for seed in 0..40 {
            one_run(seed);
        }
    }

    #[test]
    fn a_rank_that_does_not_come_is_a_named_deadlock() {
        let world = seeded(3);
        let rig = Rig::new(&world);
        let id = rig.unique_id();
        let actors = (0..2)
            .map(|device| {
                let rig = rig.clone();
                let body = move || {
                    let rank = rig.rank(device);
                    let comm = rank.init(id, 2);
                    let mut child = std::ptr::null_mut();
                    if device == 1 {
                        let code = nccl!(rig, ncclCommSplit(comm.0, 0, 0, &mut child, std::ptr::null_mut()));
                        assert_eq!(code, ncclResult_t::ncclSystemError);
                        assert!(rig.last_error().contains("ranks [0] to come to ncclCommSplit"));
                    }
                    rig.abort(comm);
                    // The failed child's handle is returned all the same.
                    if device == 1 {
                        rig.abort(Comm(child));
                    }
                    rank.leave();
                };
                (format!("rank {device}"), Box::new(body) as Box<dyn FnOnce() + Send>)
            })
            .collect();
        match world.run_actors(actors) {
            Err(RunError::Deadlock(deadlock)) => {
                let text = deadlock.to_string();
                assert!(text.contains("rank 1 waits for ranks [0] to come to ncclCommSplit"), "{text}");
            }
            other => panic!("{other:?}"),
        }
        world.finish().unwrap();
    }

    #[test]
    fn disagreement_and_abort_in_a_seeded_world() {
        for seed in 0..10 {
            let world = seeded(seed);
            let id = Rig::new(&world).unique_id();
            rig::run(&world, 2, move |rank| {
                let mut comm = std::ptr::null_mut();
                let size = 2 + rank.rank as i32;
                let code = nccl!(rank.rig, ncclCommInitRank(&mut comm, size, id.0, rank.rank as i32));
                assert_eq!(code, ncclResult_t::ncclInvalidUsage);
            });
            run_in_comm(&world, 2, |rank, comm| {
                let buffer = rank.alloc(64);
                let count = 4 + rank.rank;
                assert_eq!(rank.all_reduce(comm, buffer, count), OK);
                rank.synchronize();
                assert_eq!(rank.rig.async_error(comm), ncclResult_t::ncclInvalidUsage);
                rank.free(buffer);
            });
            world.finish().unwrap();
        }
    }
}

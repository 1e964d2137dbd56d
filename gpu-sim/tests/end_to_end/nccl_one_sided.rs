//! One-sided operations: visibility of puts, counting of signals, and refused calls.

use std::{
    ffi::c_void,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::rig::{Comm, OK, Rank, run_in_comm, until_waiting};
use gpu_sim::World;
use nccl_sys::*;
use rusty_fork::rusty_fork_test;

const MIB: usize = 1 << 20;
const USAGE: ncclResult_t = ncclResult_t::ncclInvalidUsage;
const ARGUMENT: ncclResult_t = ncclResult_t::ncclInvalidArgument;

fn world_of(release: i32, devices: usize) -> World {
    World::builder().devices(devices).capacity(1 << 30).nccl_release(release).start().unwrap()
}

fn window(rank: &Rank, comm: Comm, buffer: u64) -> ncclWindow_t {
    let mut window = std::ptr::null_mut();
    let code =
        nccl!(rank.rig, ncclCommWindowRegister(comm.0, buffer as *mut c_void, 2 * MIB, &mut window, 1));
    assert_eq!(code, OK, "{}", rank.rig.last_error());
    window
}

/// Puts `count` bytes at `local` to `offset` of a peer's window.
fn put(rank: &Rank, comm: Comm, local: u64, count: usize, to: (i32, ncclWindow_t, usize)) -> ncclResult_t {
    let (peer, window, offset) = to;
    let (local, byte, stream) = (local as *const c_void, ncclDataType_t::ncclUint8, rank.stream.nccl());
    nccl!(rank.rig, ncclPutSignal(local, count, byte, peer, window, offset, 0, 0, 0, comm.0, stream))
}

fn signal(rank: &Rank, comm: Comm, peer: i32) -> ncclResult_t {
    nccl!(rank.rig, ncclSignal(peer, 0, 0, 0, comm.0, rank.stream.nccl()))
}

fn wait(rank: &Rank, comm: Comm, peer: i32, signals: i32) -> ncclResult_t {
    let mut awaited = ncclWaitSignalDesc_t { opCnt: signals, peer, sigIdx: 0, ctx: 0 };
    nccl!(rank.rig, ncclWaitSignal(1, &mut awaited, comm.0, rank.stream.nccl()))
}

rusty_fork_test! {
    #![rusty_fork(timeout_ms = 300000)]

    #[test]
    fn a_wait_is_for_so_many_more_signals() {
        for release in [22902, 23007] {
            let world = world_of(release, 2);
            run_in_comm(&world, 2, |rank, comm| {
                let buffer = rank.symmetric(2 * MIB);
                let shown = window(rank, comm, buffer);
                let peer = 1 - rank.rank as i32;
                for round in 0..5u8 {
                    rank.write(buffer, &[round + rank.rank as u8 * 100; 64]);
                    assert_eq!(put(rank, comm, buffer, 64, (peer, shown, 4096)), OK);
                    assert_eq!(put(rank, comm, buffer, 8, (peer, shown, 4200)), OK);
                    assert_eq!(signal(rank, comm, peer), OK);
                    assert_eq!(wait(rank, comm, peer, 2), OK);
                    assert_eq!(wait(rank, comm, peer, 1), OK);
                    rank.synchronize();
                    let found = rank.read(buffer + 4096, 112);
                    let theirs = round + peer as u8 * 100;
                    assert_eq!((&found[..64], &found[104..]), (&[theirs; 64][..], &[theirs; 8][..]));
                    // No rank writes before both have read.
                    assert_eq!(rank.all_reduce(comm, buffer + MIB as u64, 1), OK);
                    rank.synchronize();
                }
                rank.free_symmetric_window(comm, shown, buffer);
            });
            world.finish().unwrap();
        }
    }

    #[test]
    fn the_first_call_waits_for_all_ranks() {
        let world = world_of(23007, 2);
        let came = Arc::new(AtomicBool::new(false));
        let other = came.clone();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                run_in_comm(&world, 2, move |rank, comm| {
                    if rank.rank == 1 {
                        while !other.load(Ordering::SeqCst) {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                    }
                    // A signal to itself: the other rank only has to make its first call.
                    assert_eq!(signal(rank, comm, rank.rank as i32), OK);
                    assert_eq!(wait(rank, comm, rank.rank as i32, 1), OK);
                    rank.synchronize();
                });
            });
            until_waiting(&world, "its first one-sided operation", 1);
            came.store(true, Ordering::SeqCst);
        });
        world.finish().unwrap();
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let world = world_of(23007, 2);
        run_in_comm(&world, 2, |rank, comm| {
            let (buffer, plain) = (rank.symmetric(2 * MIB), rank.alloc(64));
            let shown = window(rank, comm, buffer);
            assert_eq!(put(rank, comm, plain, 8, (0, shown, 0)), ARGUMENT, "not from a window");
            assert_eq!(put(rank, comm, buffer, 8, (0, std::ptr::null_mut(), 0)), ARGUMENT, "no window");
            assert_eq!(put(rank, comm, buffer, 8, (2, shown, 0)), ARGUMENT, "no such rank");
            assert_eq!(put(rank, comm, buffer, 8, (0, shown, 2 * MIB - 4)), USAGE, "past its end");
            assert_eq!(wait(rank, comm, 0, 0), ARGUMENT);
            assert_eq!(wait(rank, comm, 2, 1), ARGUMENT);
            let stream = rank.stream.nccl();
            assert_eq!(nccl!(rank.rig, ncclSignal(0, 1, 0, 0, comm.0, stream)), ARGUMENT, "one signal");
            assert_eq!(nccl!(rank.rig, ncclSignal(0, 0, 1, 0, comm.0, stream)), ARGUMENT, "one context");
            rank.free(plain);
            rank.free_symmetric_window(comm, shown, buffer);
        });
        world.finish().unwrap();
    }
}

impl Rank {
    /// Deregisters a window once no rank uses its memory any more, and frees it.
    fn free_symmetric_window(&self, comm: Comm, window: ncclWindow_t, buffer: u64) {
        assert_eq!(self.all_reduce(comm, buffer + MIB as u64, 1), OK);
        self.synchronize();
        assert_eq!(nccl!(self.rig, ncclCommWindowDeregister(comm.0, window)), OK);
        self.free_symmetric(buffer);
    }
}

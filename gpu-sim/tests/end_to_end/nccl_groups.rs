//! Groups: messages progress together, one thread drives several ranks, errors stick, streams join.

use std::ffi::c_void;

use super::rig::{Comm, OK, Rank, Rig, run, run_in_comm, world};
use nccl_sys::*;
use rusty_fork::rusty_fork_test;

fn send(rank: &Rank, comm: Comm, buffer: u64, count: usize, peer: usize) -> ncclResult_t {
    let (element, stream) = (ncclDataType_t::ncclUint8, rank.stream.nccl());
    nccl!(rank.rig, ncclSend(buffer as *const c_void, count, element, peer as i32, comm.0, stream))
}

fn recv(rank: &Rank, comm: Comm, buffer: u64, count: usize, peer: usize) -> ncclResult_t {
    let (element, stream) = (ncclDataType_t::ncclUint8, rank.stream.nccl());
    nccl!(rank.rig, ncclRecv(buffer as *mut c_void, count, element, peer as i32, comm.0, stream))
}

fn pattern(from: usize, to: usize, number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + from * 31 + to * 57 + number * 11) as u8).collect()
}

/// Every rank sends `number` messages of growing lengths to every rank, itself included.
fn exchange(rank: &Rank, comm: Comm, size: usize, number: usize, unit: usize, receive_first: bool) {
    let me = rank.rank;
    let len = |n: usize| (n + 1) * unit;
    let mut sends = Vec::new();
    let mut receives = Vec::new();
    for peer in 0..size {
        for n in 0..number {
            sends.push((peer, rank.upload(&pattern(me, peer, n, len(n))), len(n)));
            receives.push((peer, rank.alloc(len(n)), n));
        }
    }
    ok!(rank.rig, ncclGroupStart());
    let send_all = || sends.iter().for_each(|&(p, b, l)| assert_eq!(send(rank, comm, b, l, p), OK));
    let receive_all =
        || receives.iter().for_each(|&(p, b, n)| assert_eq!(recv(rank, comm, b, len(n), p), OK));
    if receive_first {
        receive_all();
        send_all();
    } else {
        send_all();
        receive_all();
    }
    ok!(rank.rig, ncclGroupEnd());
    rank.synchronize();
    for &(peer, buffer, n) in &receives {
        assert_eq!(rank.read(buffer, len(n)), pattern(peer, me, n, len(n)), "message {n} from {peer}");
    }
    let buffers = sends.iter().map(|s| s.1).chain(receives.iter().map(|r| r.1));
    buffers.for_each(|buffer| rank.free(buffer));
}

rusty_fork_test! {
    #![rusty_fork(timeout_ms = 300000)]

    #[test]
    fn messages_of_a_group_progress_together() {
        let world = world(4);
        for size in [1, 2, 4] {
            run_in_comm(&world, size, move |rank, comm| {
                // Short messages, and messages that fill several pipes.
                exchange(rank, comm, size, 3, 100, rank.rank % 2 == 0);
                exchange(rank, comm, size, 2, 300_001, rank.rank % 2 == 1);
                assert_eq!(rank.sum(comm, 1), size as i32);
            });
        }
        world.finish().unwrap();
    }

    #[test]
    fn collectives_and_messages_mix() {
        let world = world(3);
        run_in_comm(&world, 3, |rank, comm| {
            let (left, right) = ((rank.rank + 2) % 3, (rank.rank + 1) % 3);
            let (out, into) = (rank.upload(&[rank.rank as u8; 64]), rank.alloc(64));
            let sum = rank.upload(&[1, 0, 0, 0]);
            ok!(rank.rig, ncclGroupStart());
            // The order of the calls differs between ranks, which is valid inside a group.
            if rank.rank == 0 {
                assert_eq!(rank.all_reduce(comm, sum, 1), OK);
            }
            assert_eq!(recv(rank, comm, into, 64, left), OK);
            assert_eq!(send(rank, comm, out, 64, right), OK);
            if rank.rank != 0 {
                assert_eq!(rank.all_reduce(comm, sum, 1), OK);
            }
            ok!(rank.rig, ncclGroupEnd());
            rank.synchronize();
            assert_eq!(rank.read(into, 64), [left as u8; 64]);
            assert_eq!(rank.read(sum, 4), [3, 0, 0, 0]);
            [out, into, sum].into_iter().for_each(|buffer| rank.free(buffer));
        });
        world.finish().unwrap();
    }

    #[test]
    fn one_thread_drives_several_ranks() {
        let world = world(3);
        let rig = Rig::new(&world);
        let ranks: Vec<Rank> = (0..3).map(|device| rig.rank(device)).collect();
        let current = |rank: usize| {
            let mut context = std::ptr::null_mut();
            cuda!(rig, cuDevicePrimaryCtxRetain(&mut context, rank as i32));
            cuda!(rig, cuCtxSetCurrent(context));
            cuda!(rig, cuDevicePrimaryCtxRelease_v2(rank as i32));
        };
        let mut comms = [std::ptr::null_mut(); 3];
        ok!(rig, ncclCommInitAll(comms.as_mut_ptr(), 3, std::ptr::null()));
        let buffers: Vec<u64> = (0..3)
            .map(|rank| {
                current(rank);
                ranks[rank].upload(&(rank as i32 + 1).to_ne_bytes())
            })
            .collect();
        ok!(rig, ncclGroupStart());
        for rank in 0..3 {
            assert_eq!(ranks[rank].all_reduce(Comm(comms[rank]), buffers[rank], 1), OK);
        }
        ok!(rig, ncclGroupEnd());
        for rank in 0..3 {
            ranks[rank].synchronize();
            current(rank);
            assert_eq!(ranks[rank].read(buffers[rank], 4), 6i32.to_ne_bytes());
            ranks[rank].free(buffers[rank]);
        }
        // The split of all three in one group, and the init of a second communicator.
        let mut children = [std::ptr::null_mut(); 3];
        ok!(rig, ncclGroupStart());
        for rank in 0..3 {
            let child = &mut children[rank];
            ok!(rig, ncclCommSplit(comms[rank], (rank == 1) as i32, -(rank as i32), child, std::ptr::null_mut()));
        }
        ok!(rig, ncclGroupEnd());
        let places: Vec<_> = children.iter().map(|&child| rig.place(Comm(child))).collect();
        assert_eq!(places, [(1, 2), (0, 1), (0, 2)]);
        children.iter().chain(&comms).for_each(|&comm| rig.destroy(Comm(comm)));
        for rank in ranks {
            current(rank.rank);
            rank.leave();
        }
        world.finish().unwrap();
    }

    #[test]
    fn communicators_of_a_group_may_come_in_any_order() {
        let world = world(2);
        let rig = Rig::new(&world);
        let ids = [rig.unique_id(), rig.unique_id()];
        run(&world, 2, move |rank| {
            let comms = ids.map(|id| rank.init(id, 2));
            let buffers = [1, 2].map(|value: i32| rank.upload(&value.to_ne_bytes()));
            // One stream, and opposite orders: without the group this deadlocks.
            for round in 0..20 {
                ok!(rank.rig, ncclGroupStart());
                for i in if (rank.rank + round) % 2 == 0 { [0, 1] } else { [1, 0] } {
                    assert_eq!(rank.all_reduce(comms[i], buffers[i], 1), OK);
                }
                ok!(rank.rig, ncclGroupEnd());
            }
            rank.synchronize();
            assert_eq!(rank.read(buffers[0], 4), (1i32 << 20).to_ne_bytes());
            buffers.into_iter().for_each(|buffer| rank.free(buffer));
            comms.into_iter().for_each(|comm| rank.rig.destroy(comm));
        });
        world.finish().unwrap();
    }

    #[test]
    fn work_of_a_communicator_keeps_launch_order_over_streams() {
        let world = world(2);
        run_in_comm(&world, 2, |rank, comm| {
            let other = rank.rig.stream();
            let second = Rank { stream: other, ..rank.clone() };
            let buffer = rank.upload(&1i32.to_ne_bytes());
            for _ in 0..10 {
                // The ranks use their streams differently; only the order of launches counts.
                let (a, b) = if rank.rank == 0 { (rank, &second) } else { (&second, rank) };
                assert_eq!(a.all_reduce(comm, buffer, 1), OK);
                assert_eq!(b.all_reduce(comm, buffer, 1), OK);
            }
            rank.synchronize();
            second.synchronize();
            assert_eq!(rank.read(buffer, 4), (1i32 << 20).to_ne_bytes());
            rank.free(buffer);
            cuda!(rank.rig, cuStreamDestroy_v2(other.0));
        });
        world.finish().unwrap();
    }

    #[test]
    fn streams_of_a_group_are_joined() {
        let world = world(2);
        run_in_comm(&world, 2, |rank, comm| {
            let second = Rank { stream: rank.rig.stream(), ..rank.clone() };
            let (a, b) = (rank.alloc(4096), rank.alloc(4));
            for round in 1..10u8 {
                // The collective runs after the memset before it on the other stream, and the read after it there
                // sees its result.
                cuda!(rank.rig, cuMemsetD8Async(a, round, 4096, second.stream.0));
                ok!(rank.rig, ncclGroupStart());
                assert_eq!(rank.all_reduce(comm, b, 1), OK);
                let (element, op) = (ncclDataType_t::ncclUint8, ncclRedOp_t::ncclSum);
                let (pointer, stream) = (a as *mut c_void, second.stream.nccl());
                ok!(rank.rig, ncclAllReduce(pointer, pointer, 4096, element, op, comm.0, stream));
                ok!(rank.rig, ncclGroupEnd());
                second.synchronize();
                assert_eq!(rank.read(a, 4096), [2 * round; 4096]);
            }
            rank.synchronize();
            [a, b].into_iter().for_each(|buffer| rank.free(buffer));
            cuda!(rank.rig, cuStreamDestroy_v2(second.stream.0));
        });
        world.finish().unwrap();
    }

    #[test]
    fn an_error_sticks_until_the_end_and_nothing_runs() {
        let world = world(2);
        run_in_comm(&world, 2, |rank, comm| {
            let buffer = rank.upload(&1i32.to_ne_bytes());
            assert_eq!(nccl!(rank.rig, ncclGroupEnd()), ncclResult_t::ncclInvalidUsage);
            ok!(rank.rig, ncclGroupStart());
            ok!(rank.rig, ncclGroupStart());
            assert_eq!(rank.all_reduce(comm, buffer, 1), OK);
            assert_eq!(send(rank, comm, buffer, 4, 9), ncclResult_t::ncclInvalidArgument);
            ok!(rank.rig, ncclGroupEnd());
            assert_eq!(nccl!(rank.rig, ncclGroupEnd()), ncclResult_t::ncclInvalidArgument);
            rank.synchronize();
            assert_eq!(rank.read(buffer, 4), 1i32.to_ne_bytes());
            assert_eq!(rank.sum(comm, 2), 4);
            rank.free(buffer);
        });
        world.finish().unwrap();
    }

    #[test]
    fn registrations_of_a_group_come_before_its_collectives() {
        let world = world(2);
        run_in_comm(&world, 2, |rank, comm| {
            let buffer = rank.symmetric(1 << 21);
            rank.write(buffer, &1i32.to_ne_bytes());
            let mut window = std::ptr::null_mut();
            ok!(rank.rig, ncclGroupStart());
            assert_eq!(rank.all_reduce(comm, buffer, 1), OK);
            ok!(rank.rig, ncclCommWindowRegister(comm.0, buffer as *mut c_void, 1 << 21, &mut window, 1));
            assert!(window.is_null(), "written at the end of the group");
            ok!(rank.rig, ncclGroupEnd());
            assert!(!window.is_null());
            rank.synchronize();
            assert_eq!(rank.read(buffer, 4), 2i32.to_ne_bytes());
            ok!(rank.rig, ncclCommWindowDeregister(comm.0, window));
            rank.free_symmetric(buffer);
        });
        world.finish().unwrap();
    }
}

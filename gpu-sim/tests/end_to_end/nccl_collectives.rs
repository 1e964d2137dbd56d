//! Every collective, type, operation, length and rank count against plain references.

use super::rig;

use std::ffi::c_void;

use super::rig::{Comm, Rank, run_in_comm, world};
use half::{bf16, f16};
use nccl_sys::*;
use proptest::prelude::*;
use rusty_fork::rusty_fork_test;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    AllReduce,
    Reduce,
    ReduceScatter,
    Broadcast,
    AllGather,
    AllToAll,
    Gather,
    Scatter,
}

const KINDS: [Kind; 8] = [
    Kind::AllReduce,
    Kind::Reduce,
    Kind::ReduceScatter,
    Kind::Broadcast,
    Kind::AllGather,
    Kind::AllToAll,
    Kind::Gather,
    Kind::Scatter,
];

/// Bytes of a type, by its number.
fn size_of_type(element: u32) -> usize {
    [1, 1, 4, 4, 8, 8, 2, 4, 8, 2][element as usize]
}

#[derive(Clone, Copy, Debug)]
struct Case {
    kind: Kind,
    element: u32,
    op: u32,
    ranks: usize,
    root: usize,
    count: usize,
    in_place: bool,
    seed: u64,
}

/// Returns the n-th input element of a rank: small, so that every type holds every sum and product exactly.
fn value(case: &Case, rank: usize, n: usize) -> i64 {
    let mixed = (case.seed ^ ((n as u64) << 20) ^ rank as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let signed = [true, false, true, false, true, false, true, true, true, true][case.element as usize];
    if signed { (mixed % 5) as i64 - 2 } else { (mixed % 3) as i64 }
}

fn encode(element: u32, value: f64) -> Vec<u8> {
    match element {
        0 => (value as i8).to_ne_bytes().to_vec(),
        1 => (value as u8).to_ne_bytes().to_vec(),
        2 => (value as i32).to_ne_bytes().to_vec(),
        3 => (value as u32).to_ne_bytes().to_vec(),
        4 => (value as i64).to_ne_bytes().to_vec(),
        5 => (value as u64).to_ne_bytes().to_vec(),
        6 => f16::from_f64(value).to_ne_bytes().to_vec(),
        7 => (value as f32).to_ne_bytes().to_vec(),
        8 => value.to_ne_bytes().to_vec(),
        _ => bf16::from_f64(value).to_ne_bytes().to_vec(),
    }
}

fn reduced(case: &Case, n: usize) -> Vec<u8> {
    let values = (0..case.ranks).map(|rank| value(case, rank, n));
    let result = match case.op {
        0 => values.sum::<i64>() as f64,
        // The product is computed in floats because a zero has a sign.
        1 => values.map(|value| value as f64).product(),
        2 => values.max().unwrap() as f64,
        3 => values.min().unwrap() as f64,
        _ => {
            let sum = values.sum::<i64>();
            let float = case.element >= 6;
            if float { mean(case, sum) } else { (sum / case.ranks as i64) as f64 }
        }
    };
    encode(case.element, result)
}

/// The average, rounded as the accumulator of the type rounds.
fn mean(case: &Case, sum: i64) -> f64 {
    match case.element {
        8 => sum as f64 / case.ranks as f64,
        _ => f64::from(sum as f32 / case.ranks as f32),
    }
}

/// Elements in the send and in the receive buffer.
fn lengths(case: &Case) -> (usize, usize) {
    let (one, all) = (case.count, case.count * case.ranks);
    match case.kind {
        Kind::AllReduce | Kind::Reduce | Kind::Broadcast => (one, one),
        Kind::AllGather | Kind::Gather => (one, all),
        Kind::ReduceScatter | Kind::Scatter => (all, one),
        Kind::AllToAll => (all, all),
    }
}

/// Returns the expected receive buffer of rank `rank`; `None` if it receives nothing.
fn expected(case: &Case, rank: usize) -> Option<Vec<u8>> {
    let count = case.count;
    let given = |from: usize, n: usize| encode(case.element, value(case, from, n) as f64);
    let is_root = rank == case.root;
    let elements: Vec<Vec<u8>> = match case.kind {
        Kind::AllReduce => (0..count).map(|n| reduced(case, n)).collect(),
        Kind::Reduce if is_root => (0..count).map(|n| reduced(case, n)).collect(),
        Kind::ReduceScatter => (0..count).map(|n| reduced(case, rank * count + n)).collect(),
        Kind::Broadcast => (0..count).map(|n| given(case.root, n)).collect(),
        Kind::AllGather => (0..count * case.ranks).map(|n| given(n / count, n % count)).collect(),
        Kind::Gather if is_root => (0..count * case.ranks).map(|n| given(n / count, n % count)).collect(),
        Kind::AllToAll => {
            (0..count * case.ranks).map(|n| given(n / count, rank * count + n % count)).collect()
        }
        Kind::Scatter => (0..count).map(|n| given(case.root, rank * count + n)).collect(),
        Kind::Reduce | Kind::Gather => return None,
    };
    Some(elements.concat())
}

/// Runs the case on one rank and compares.
fn check(rank: &Rank, comm: Comm, case: &Case) {
    let size = size_of_type(case.element);
    let (sends, receives) = lengths(case);
    let given: Vec<u8> =
        (0..sends).flat_map(|n| encode(case.element, value(case, rank.rank, n) as f64)).collect();
    // In place, the shorter buffer is the rank's share of the longer one.
    let share = rank.rank * case.count * size;
    let (base, send, recv) = if case.in_place {
        let base = rank.alloc(sends.max(receives) * size);
        let send = if sends < receives { base + share as u64 } else { base };
        let recv = if receives < sends { base + share as u64 } else { base };
        rank.write(send, &given);
        (vec![base], send, recv)
    } else {
        let (send, recv) = (rank.upload(&given), rank.alloc(receives * size));
        (vec![send, recv], send, recv)
    };
    let (element, op, root) = (ncclDataType_t(case.element), ncclRedOp_t(case.op), case.root as i32);
    let (count, stream) = (case.count, rank.stream.nccl());
    let (from, to) = (send as *const c_void, recv as *mut c_void);
    match case.kind {
        Kind::AllReduce => ok!(rank.rig, ncclAllReduce(from, to, count, element, op, comm.0, stream)),
        Kind::Reduce => ok!(rank.rig, ncclReduce(from, to, count, element, op, root, comm.0, stream)),
        Kind::ReduceScatter => ok!(rank.rig, ncclReduceScatter(from, to, count, element, op, comm.0, stream)),
        Kind::Broadcast => ok!(rank.rig, ncclBroadcast(from, to, count, element, root, comm.0, stream)),
        Kind::AllGather => ok!(rank.rig, ncclAllGather(from, to, count, element, comm.0, stream)),
        Kind::AllToAll => ok!(rank.rig, ncclAlltoAll(from, to, count, element, comm.0, stream)),
        Kind::Gather => ok!(rank.rig, ncclGather(from, to, count, element, root, comm.0, stream)),
        Kind::Scatter => ok!(rank.rig, ncclScatter(from, to, count, element, root, comm.0, stream)),
    }
    rank.synchronize();
    assert_eq!(rank.rig.async_error(comm), rig::OK, "{case:?}: {}", rank.rig.last_error());
    if let Some(wanted) = expected(case, rank.rank) {
        let found = rank.read(recv, wanted.len());
        let differs = wanted.iter().zip(&found).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{case:?} on rank {}: first wrong byte", rank.rank);
    }
    for pointer in base {
        rank.free(pointer);
    }
}

prop_compose! {
    fn case()(
        kind in proptest::sample::select(KINDS.to_vec()),
        element in 0u32..10,
        op in 0u32..5,
        ranks in 1usize..6,
        root: proptest::sample::Index,
        count in prop_oneof![1usize..70, 1000usize..3000],
        in_place: bool,
        seed: u64,
    ) -> Case {
        Case { kind, element, op, ranks, root: root.index(ranks), count, in_place, seed }
    }
}

rusty_fork_test! {
    #![rusty_fork(timeout_ms = 300000)]

    #[test]
    fn everything_equals_its_reference() {
        let world = world(5);
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
            cases: 24,
            failure_persistence: None,
            ..ProptestConfig::default()
        });
        // Several cases a communicator, so that rounds of different operations follow each other.
        let cases = proptest::collection::vec(case(), 1..8);
        runner
            .run(&cases, |cases| {
                let ranks = cases[0].ranks;
                run_in_comm(&world, ranks, move |rank, comm| {
                    for case in &cases {
                        let root = case.root.min(ranks - 1);
                        check(rank, comm, &Case { ranks, root, ..*case });
                    }
                });
                Ok(())
            })
            .unwrap();
        world.finish().unwrap();
    }

    #[test]
    fn every_kind_crosses_chunks() {
        let world = world(3);
        for kind in KINDS {
            for in_place in [false, true] {
                // More than a chunk of 512 KiB, and no multiple of anything.
                let case = Case { kind, element: 7, op: 0, ranks: 3, root: 1, count: 200_003, in_place, seed: 9 };
                run_in_comm(&world, 3, move |rank, comm| check(rank, comm, &case));
            }
        }
        world.finish().unwrap();
    }

    #[test]
    fn nothing_is_dropped_and_bcast_is_a_broadcast() {
        let world = world(2);
        run_in_comm(&world, 2, |rank, comm| {
            // Count 0 on one rank alone: dropped, the other rank is not needed.
            if rank.rank == 0 {
                assert_eq!(rank.all_reduce(comm, 0, 0), rig::OK);
                rank.synchronize();
            }
            let buffer = rank.upload(&[rank.rank as u8; 8]);
            let (element, stream) = (ncclDataType_t::ncclInt8, rank.stream.nccl());
            ok!(rank.rig, ncclBcast(buffer as *mut c_void, 8, element, 1, comm.0, stream));
            rank.synchronize();
            assert_eq!(rank.read(buffer, 8), [1; 8]);
            rank.free(buffer);
        });
        world.finish().unwrap();
    }

    #[test]
    fn checked_buffers_must_lie_in_allocations() {
        // SAFETY: this process runs one test, and no other thread of it uses the environment yet.
        unsafe { std::env::set_var("NCCL_CHECK_MODE", "DEBUG_GLOBAL") };
        let world = world(2);
        run_in_comm(&world, 2, |rank, comm| {
            let buffer = rank.alloc(64);
            let pinned = {
                let mut pinned = std::ptr::null_mut();
                cuda!(rank.rig, cuMemAllocHost_v2(&mut pinned, 64));
                pinned
            };
            let (int, sum, stream) = (ncclDataType_t::ncclInt32, ncclRedOp_t::ncclSum, rank.stream.nccl());
            let (inside, end) = (buffer as *mut c_void, (buffer + 64) as *mut c_void);
            let wrong = ncclResult_t::ncclInvalidArgument;
            let broadcast = |send, recv| nccl!(rank.rig, ncclBroadcast(send, recv, 0, int, 1, comm.0, stream));
            let reduce = |send, recv| nccl!(rank.rig, ncclReduce(send, recv, 0, int, sum, 1, comm.0, stream));
            // An unused buffer of a broadcast or a reduction is not checked.
            let unused = if rank.rank == 1 { wrong } else { rig::OK };
            assert_eq!([broadcast(inside, end), broadcast(end, inside)], [wrong, unused]);
            assert_eq!([reduce(end, inside), reduce(inside, end)], [wrong, unused]);
            assert_eq!([broadcast(inside, inside), broadcast(pinned, pinned)], [rig::OK; 2]);
            assert_eq!(reduce(std::ptr::null_mut(), inside), wrong);
            // Messages without elements are not checked.
            assert_eq!(nccl!(rank.rig, ncclSend(end, 0, int, 1 - rank.rank as i32, comm.0, stream)), rig::OK);
            cuda!(rank.rig, cuMemFreeHost(pinned));
            rank.free(buffer);
        });
        world.finish().unwrap();
    }

    #[test]
    fn arguments_are_checked() {
        let world = world(1);
        run_in_comm(&world, 1, |rank, comm| {
            let buffer = rank.alloc(64);
            let pointer = buffer as *mut c_void;
            let (int, sum, stream) = (ncclDataType_t::ncclInt32, ncclRedOp_t::ncclSum, rank.stream.nccl());
            let wrong = ncclResult_t::ncclInvalidArgument;
            let all_reduce = |element, op, count, comm| {
                nccl!(rank.rig, ncclAllReduce(pointer, pointer, count, element, op, comm, stream))
            };
            assert_eq!(all_reduce(ncclDataType_t(12), sum, 4, comm.0), wrong);
            assert_eq!(all_reduce(int, ncclRedOp_t(5), 4, comm.0), wrong);
            assert_eq!(all_reduce(int, sum, usize::MAX / 2, comm.0), wrong);
            assert_eq!(all_reduce(int, sum, 4, std::ptr::null_mut()), wrong);
            assert_eq!(nccl!(rank.rig, ncclBcast(pointer, 4, int, 1, comm.0, stream)), wrong);
            assert_eq!(nccl!(rank.rig, ncclSend(pointer, 4, int, 1, comm.0, stream)), wrong);
            assert!(rank.rig.last_error().starts_with("ncclSend: peer 1"), "{}", rank.rig.last_error());
            rank.free(buffer);
        });
        world.finish().unwrap();
    }
}

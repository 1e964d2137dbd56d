//! Invalid input is a typed error on the rank that gives it, and nothing is launched.

use std::{sync::Barrier, thread};

use process_group::{
    comm::{
        ArgumentError, CommError,
        DataType::{F32, I32},
        Group, ReduceOp,
    },
    group::{Buffer, Disagreement, GroupError, GroupErrorKind},
    store::StoreError,
};
use rusty_fork::rusty_fork_test;

use super::{
    checked::launches,
    common::{far, machine},
};

rusty_fork_test! {
    #[test]
    fn a_rank_that_is_none() {
        let machine = machine(2);
        machine.these_ranks(2, &[0], |rank| {
            let error = rank.builder().rank(2).build().unwrap_err();
            assert!(matches!(error.kind(), GroupErrorKind::NoSuchRank { rank: 2, size: 2 }), "{error}");
        });
        assert_eq!(machine.world.calls("ncclCommInitRankConfig"), 0);
        machine.world.finish().unwrap();
    }

    #[test]
    fn two_that_are_one_rank() {
        let machine = machine(2);
        // Rank 1 never comes: a second process comes as rank 0.
        for error in machine.ranks(2, |rank| rank.builder().rank(0).build().unwrap_err()) {
            assert!(matches!(error.kind(), GroupErrorKind::Store(StoreError::RankTaken { rank: 0, .. })), "{error}");
        }
        assert_eq!(machine.world.calls("ncclCommInitRankConfig"), 0);
        machine.world.finish().unwrap();
    }

    #[test]
    fn world_sizes_that_differ() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            // Each would wait for its own world size.
            let error = rank.builder().world_size(2 + rank.rank).build().unwrap_err();
            let GroupErrorKind::Disagreement { source: Disagreement::WorldSize { size, other_size, .. }, .. } = error.kind() else {
                panic!("{error}")
            };
            assert_eq!(size + other_size, 5);
        });
        assert_eq!(machine.world.calls("ncclCommInitRankConfig"), 0);
        machine.world.finish().unwrap();
    }

    #[test]
    fn counts_types_roots_and_splits() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            let (stream, memory) = (rank.stream(), rank.memory(&[0.0; 16]));
            let part = |at: usize, elements| Buffer::new(memory.ptr() + 4 * at, elements, F32);
            let ints = Buffer::new(memory.ptr(), 2, I32);
            unsafe {
                for refused in [
                    world.raw().all_reduce(part(0, 2), part(0, 3), ReduceOp::Sum, &stream),
                    world.raw().all_reduce(part(0, 2), ints, ReduceOp::Sum, &stream),
                    world.raw().all_gather(part(0, 2), part(4, 3), &stream),
                    world.raw().reduce_scatter(part(0, 3), part(4, 1), ReduceOp::Sum, &stream),
                    world.raw().all_to_all(part(0, 3), part(4, 3), &stream),
                    world.raw().all_gather_list(part(0, 2), &[part(4, 1), part(5, 1)], &stream),
                    world.raw().all_to_all_list(&[part(0, 1), ints], &[part(4, 1), part(6, 1)], &stream),
                ] {
                    let error = refused.unwrap_err();
                    assert!(matches!(error.kind(), GroupErrorKind::Argument { source: ArgumentError::Lengths { .. }, .. }), "{error}");
                }
                for refused in [
                    world.raw().broadcast(part(0, 1), 2, &stream),
                    world.raw().reduce(part(0, 1), part(0, 1), ReduceOp::Sum, 7, &stream),
                    world.raw().gather(part(0, 1), None, 2, &stream),
                    world.raw().scatter(None, part(0, 1), usize::MAX, &stream),
                    world.raw().send(part(0, 1), 2, &stream),
                    world.raw().recv(part(0, 1), 3, &stream),
                ] {
                    let error = refused.unwrap_err();
                    let expected = matches!(
                        error.kind(),
                        GroupErrorKind::Argument { source: ArgumentError::NoSuchRank { size: 2, .. }, .. }
                    );
                    assert!(expected, "{error}");
                }
                let error = world.raw().all_to_all_list(&[part(0, 1)], &[part(4, 1), part(5, 1)], &stream).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Argument { source: ArgumentError::ListLength { list: "send", found: 1, size: 2, .. }, .. }), "{error}");
                let root = world.rank();
                let error = world.raw().gather(part(0, 1), None, root, &stream).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Argument { source: ArgumentError::RootBuffer { .. }, .. }), "{error}");
                let error = world.raw().send(part(0, 1), root, &stream).unwrap_err();
                let to_oneself = matches!(error.kind(), GroupErrorKind::Argument { source: ArgumentError::ToOneself { .. }, .. });
                assert!(to_oneself, "{error}");
            }
            let error = part(0, 8).split(&[3, 4]).unwrap_err();
            assert!(matches!(error.kind(), GroupErrorKind::Sizes { elements: 8, parts: 2, sum: 7 }), "{error}");
            assert_eq!((launches(&machine), world.sequence()), (0, 0));
            world.barrier(far()).unwrap();
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn operations_after_an_abort() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            let (stream, memory) = (rank.stream(), rank.memory(&[0.0]));
            let one = Buffer::new(memory.ptr(), 1, F32);
            world.barrier(far()).unwrap();
            world.abort_handle().abort(far()).unwrap();
            // The error of the abort that was known here first.
            let closed = |error: GroupError| {
                let is_closed = matches!(error.kind(), GroupErrorKind::Comm(CommError::Closed { .. }) | GroupErrorKind::Left { .. });
                assert!(is_closed, "{error}");
            };
            closed(unsafe { world.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap_err());
            closed(unsafe { world.raw().broadcast(one, 0, &stream) }.unwrap_err());
            closed(world.batch(&stream, |batch| unsafe { batch.send(one, world.rank() ^ 1) }).unwrap_err());
            closed(world.track_graph_launch(&stream).unwrap_err());
            closed(world.barrier(far()).unwrap_err());
            closed(world.check().unwrap_err());
            closed(world.split("x", &process_group::group::Request::Color { color: Some(0), key: 0 }).unwrap_err());
            assert_eq!(launches(&machine), 0);
            world.abort(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    /// One thread has queued work of the communicator in an open NCCL group. Work that the other queues in
    /// its own group would have to wait for that, and the first group may wait for this one.
    #[test]
    fn two_threads_with_open_groups_on_one_communicator() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let world = rank.world();
            let (stream, memory) = (rank.stream(), rank.memory(&[0.0]));
            let (queued, refused) = (Barrier::new(2), Barrier::new(2));
            let queue = || unsafe {
                world.communicator().all_reduce(memory.ptr(), memory.ptr(), 1, F32, ReduceOp::Sum, &stream)
            };
            thread::scope(|scope| {
                scope.spawn(|| {
                    let group = Group::begin(world.nccl()).unwrap();
                    queue().unwrap();
                    queued.wait();
                    refused.wait();
                    group.finish().unwrap();
                });
                queued.wait();
                let before = launches(&machine);
                let group = Group::begin(world.nccl()).unwrap();
                let error = queue().unwrap_err();
                assert!(matches!(error, CommError::GroupConflict { .. }), "{error}");
                group.finish().unwrap();
                assert_eq!(launches(&machine), before);
                refused.wait();
            });
            stream.synchronize().unwrap();
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    /// Threads that call consecutively, each when the communicator is free, are served in that order.
    #[test]
    fn two_threads_on_one_communicator_take_turns() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let world = rank.world();
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
                        let one = Buffer::new(memory.ptr(), 1, F32);
                        for _ in 0..50 {
                            unsafe { world.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap();
                        }
                        stream.synchronize().unwrap();
                    });
                }
            });
            assert_eq!((launches(&machine), world.sequence()), (100, 100));
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }
}

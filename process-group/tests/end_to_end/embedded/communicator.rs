//! Communicators: every operation's result, split, destruction, and refused calls.

use cuda_driver::DevicePtr;
use process_group::comm::{
    ArgumentError, CommError, Communicator, Config, DataType::F32, Group, ReduceOp, wait_for_dropped,
};
use rusty_fork::rusty_fork_test;

use super::common::{far, machine, machine_with, soon, values};

rusty_fork_test! {
    #[test]
    fn every_operation_gives_what_it_should() {
        let machine = machine(4);
        machine.ranks(4, |rank| {
            let (me, n) = (rank.rank, rank.size);
            let communicator = rank.communicator();
            assert_eq!((communicator.rank(), communicator.size()), (me, n));
            let stream = rank.stream();
            let mine: Vec<f32> = (0..8).map(|i| (me * 100 + i) as f32).collect();
            let of = |rank: usize, i: usize| (rank * 100 + i) as f32;
            let sum = |i: usize| (0..n).map(|rank| of(rank, i)).sum::<f32>();

            let (send, receive) = (rank.memory(&mine), rank.memory(&[0.0; 32]));
            let done = || stream.synchronize().unwrap();
            unsafe { communicator.all_reduce(send.ptr(), receive.ptr(), 8, F32, ReduceOp::Sum, &stream).unwrap() };
            done();
            assert_eq!(values(&receive)[..8], (0..8).map(sum).collect::<Vec<_>>());

            unsafe { communicator.broadcast(send.ptr(), receive.ptr(), 8, F32, 2, &stream).unwrap() };
            done();
            assert_eq!(values(&receive)[..8], (0..8).map(|i| of(2, i)).collect::<Vec<_>>());

            unsafe { communicator.all_gather(send.ptr(), receive.ptr(), 8, F32, &stream).unwrap() };
            done();
            assert_eq!(values(&receive), (0..32).map(|i| of(i / 8, i % 8)).collect::<Vec<_>>());

            unsafe { communicator.reduce_scatter(send.ptr(), receive.ptr(), 2, F32, ReduceOp::Max, &stream).unwrap() };
            done();
            assert_eq!(values(&receive)[..2], [of(n - 1, 2 * me), of(n - 1, 2 * me + 1)]);

            unsafe { communicator.reduce(send.ptr(), receive.ptr(), 8, F32, ReduceOp::Avg, 1, &stream).unwrap() };
            done();
            if me == 1 {
                assert_eq!(values(&receive)[..8], (0..8).map(|i| sum(i) / 4.0).collect::<Vec<_>>());
            }

            unsafe { communicator.all_to_all(send.ptr(), receive.ptr(), 2, F32, &stream).unwrap() };
            done();
            assert_eq!(values(&receive)[..8], (0..8).map(|i| of(i / 2, 2 * me + i % 2)).collect::<Vec<_>>());

            let (next, former) = ((me + 1) % n, (me + n - 1) % n);
            let group = Group::begin(communicator.nccl()).unwrap();
            assert!(Group::is_open());
            unsafe {
                communicator.send(send.ptr(), 8, F32, next, &stream).unwrap();
                communicator.recv(receive.ptr(), 8, F32, former, &stream).unwrap();
            }
            group.finish().unwrap();
            done();
            assert_eq!(values(&receive)[..8], (0..8).map(|i| of(former, i)).collect::<Vec<_>>());

            communicator.async_error().unwrap();
            communicator.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_split_orders_by_key_and_leaves_out_who_gives_no_color() {
        let machine = machine(4);
        machine.ranks(4, |rank| {
            let parent = rank.communicator();
            let color = (rank.rank != 3).then_some(7);
            let child = parent.split(color, -(rank.rank as i32), &Config::new().name("child"), far()).unwrap();
            assert_eq!(child.is_some(), rank.rank != 3);
            if let Some(child) = child {
                assert_eq!((child.rank(), child.size()), (2 - rank.rank, 3));
                let stream = rank.stream();
                let memory = rank.memory(&[rank.rank as f32 + 1.0]);
                unsafe { child.all_reduce(memory.ptr(), memory.ptr(), 1, F32, ReduceOp::Prod, &stream).unwrap() };
                stream.synchronize().unwrap();
                assert_eq!(values(&memory), [6.0]);
                child.destroy(far()).unwrap();
            }
            parent.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn one_thread_can_drive_all_ranks() {
        let machine = machine(3);
        let contexts: Vec<_> = (0..3).map(|device| machine.context(device)).collect();
        let ranks: Vec<_> = contexts.iter().enumerate().collect();
        let id = machine.nccl.unique_id().unwrap();
        let all = Communicator::init_together(&machine.nccl, &ranks, &id, 3, &Config::new(), far()).unwrap();
        for result in Communicator::destroy_together(all, far()) {
            result.unwrap();
        }
        drop(ranks);
        drop(contexts);
        machine.world.finish().unwrap();
    }

    #[test]
    fn what_would_hang_or_write_out_of_bounds_is_refused() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let communicator = rank.communicator();
            let stream = rank.stream();
            let memory = rank.memory(&[0.0; 16]);
            let ptr = memory.ptr();
            let argument = |result: process_group::comm::Result<()>| match result.unwrap_err() {
                CommError::Argument(error) => error,
                other => panic!("{other}"),
            };
            unsafe {
                let error = argument(communicator.broadcast(ptr, ptr, 4, F32, 2, &stream));
                assert!(matches!(error, ArgumentError::NoSuchRank { role: "root", rank: 2, .. }), "{error}");
                let error = argument(communicator.send(ptr, 4, F32, rank.rank, &stream));
                assert!(matches!(error, ArgumentError::ToOneself { .. }), "{error}");
                let error = argument(communicator.all_reduce(ptr, ptr + 4usize, 4, F32, ReduceOp::Sum, &stream));
                assert!(matches!(error, ArgumentError::Overlap { .. }), "{error}");
                let other = rank.context.driver().device(1 - rank.rank as u32).unwrap().retain_primary().unwrap();
                let foreign = cuda_driver::Stream::legacy_default(&other);
                let error = argument(communicator.all_reduce(ptr, ptr, 4, F32, ReduceOp::Sum, &foreign));
                assert!(matches!(error, ArgumentError::ForeignStream { .. }), "{error}");
            }
            let group = Group::begin(communicator.nccl()).unwrap();
            assert!(matches!(Group::begin(communicator.nccl()), Err(CommError::InsideGroup { .. })));
            assert!(matches!(communicator.split(None, 0, &Config::new(), soon()), Err(CommError::InsideGroup { .. })));
            group.finish().unwrap();
            communicator.check().unwrap();
            communicator.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn groups_of_two_threads_cannot_wait_for_each_other() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let first = rank.communicator();
            let second = first.split(Some(0), 0, &rank.config(), far()).unwrap().unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
            let reduce = |communicator: &Communicator| unsafe {
                communicator.all_reduce(memory.ptr(), memory.ptr(), 1, F32, ReduceOp::Sum, &stream)
            };
            let (go, ready) = std::sync::mpsc::channel();
            let group = Group::begin(&rank.nccl).unwrap();
            reduce(&first).unwrap();
            std::thread::scope(|scope| {
                let other = scope.spawn(|| {
                    let group = Group::begin(&rank.nccl).unwrap();
                    reduce(&second).unwrap();
                    let error = reduce(&first).unwrap_err();
                    assert!(matches!(error, CommError::GroupConflict { .. }), "{error}");
                    group.finish().unwrap();
                    go.send(()).unwrap();
                    // Outside an NCCL group of its own, it waits until the first has ended.
                    reduce(&first).unwrap();
                });
                // It succeeds, whether it comes before this or has to wait.
                ready.recv().unwrap();
                drop(group);
                other.join().unwrap();
            });
            stream.synchronize().unwrap();
            second.destroy(far()).unwrap();
            first.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn an_absent_rank_is_a_deadline_and_not_a_hang() {
        let machine = machine(3);
        machine.these_ranks(3, &[0, 2], |rank| {
            let made = Communicator::init(
                &rank.nccl, &rank.context, &rank.id, rank.rank, 3, &rank.config(), soon(),
            );
            let error = made.unwrap_err();
            assert!(matches!(error, CommError::DeadlineExceeded { .. }), "{error}");
            assert!(error.to_string().contains("all 3 ranks to join"), "{error}");
        });
        assert!(wait_for_dropped(far()));
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_dropped_communicator_is_aborted_in_the_background() {
        let machine = machine(2);
        machine.ranks(2, |rank| drop(rank.communicator()));
        assert!(wait_for_dropped(far()));
        assert_eq!(machine.world.calls("ncclCommAbort"), 2);
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_size_of_no_ranks_and_memory_of_no_bytes_are_refused() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let make = |size| {
                Communicator::init(&rank.nccl, &rank.context, &rank.id, 0, size, &rank.config(), far()).unwrap_err()
            };
            for size in [0, 1 << 31] {
                let error = make(size);
                assert!(matches!(error, CommError::Argument(ArgumentError::Size { size: of, .. }) if of == size), "{error}");
            }
            let communicator = rank.communicator();
            let memory = rank.memory(&[0.0]);
            let error = unsafe { communicator.register(memory.ptr(), 0, far()) }.unwrap_err();
            let expected = format!("register: the memory at {:#x} has 0 bytes: expected at least 1", memory.ptr().0);
            assert_eq!(error.to_string(), expected);
            let error = unsafe { communicator.register(DevicePtr(0), 4, far()) }.unwrap_err();
            assert!(matches!(error, CommError::Argument(ArgumentError::Null { bytes: 4, .. })), "{error}");
            communicator.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn releases_without_configuration_or_split_say_so() {
        let machine = machine_with(2, 21304);
        machine.ranks(2, |rank| {
            let communicator = rank.communicator();
            let error = communicator.split(Some(0), 0, &Config::new(), far()).unwrap_err();
            assert!(error.to_string().contains("2.18"), "{error}");
            let error = unsafe { communicator.register(rank.memory(&[0.0]).ptr(), 4, far()) }.unwrap_err();
            assert!(error.to_string().contains("2.19"), "{error}");
            communicator.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }
}

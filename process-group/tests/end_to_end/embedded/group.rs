//! Process groups: joining, identity, splits, work, and errors when members do not fit.

use std::{
    sync::{Arc, Barrier, mpsc},
    thread,
    time::{Duration, Instant},
};

use cuda_driver::{graph::CaptureMode, memory::DeviceMemory};
use process_group::{
    ProcessGroup,
    comm::{ArgumentError, CommError, DataType::F32, ReduceOp},
    group::{
        Buffer, Disagreement, GroupError, GroupErrorKind, GroupId, GroupSettings, Request, SplitError,
        enqueued_on,
    },
    store::{Store, StoreError},
};
use rusty_fork::rusty_fork_test;

use super::{
    super::ports::reserved_port,
    common::{far, machine, machine_with, soon, values},
};

/// Sends a message when it is dropped.
struct Told(mpsc::Sender<()>);

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

rusty_fork_test! {
    #[test]
    fn a_process_that_is_started_again_is_refused_at_once() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            world.barrier(far()).unwrap();
            if rank.rank == 1 {
                let began = Instant::now();
                let error = rank.builder().build().unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Store(StoreError::RankTaken { rank: 1, .. })), "{error}");
                assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
            }
            world.barrier(far()).unwrap();
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[cfg(not(feature = "pickle"))]
    #[test]
    fn a_folder_for_dumps_is_refused_without_the_feature() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let folder = tempfile::tempdir().unwrap();
            let error = rank.builder().dump_folder(folder.path()).build().unwrap_err();
            let GroupErrorKind::Dump(error) = error.kind() else { panic!("{error}") };
            assert!(error.source.to_string().contains("without its feature `pickle`"), "{}", error.source);
        });
    }

    #[test]
    fn ranks_become_a_group_and_work() {
        let machine = machine(4);
        machine.ranks(4, |rank| {
            let world = rank.world();
            assert_eq!((world.rank(), world.size(), world.name()), (rank.rank, 4, "world"));
            assert_eq!((world.id().uid & u64::from(u32::MAX), world.id().epoch), (1, 0));
            assert_ne!(world.id(), GroupId { uid: 1, epoch: 0 }, "it has the number of its store");
            assert_eq!(world.global_ranks(), [0, 1, 2, 3]);
            assert!(world.members().iter().all(|member| member.process == std::process::id()));
            world.windows_supported().unwrap();
            world.store().set("note", b"1").unwrap();

            let stream = rank.stream();
            let (send, receive) = (rank.memory(&[1.0, 2.0]), rank.memory(&[0.0; 8]));
            let (two, eight) = (Buffer::new(send.ptr(), 2, F32), Buffer::new(receive.ptr(), 8, F32));
            let work = unsafe { world.raw().all_gather(two, eight, &stream) }.unwrap();
            work.wait_until(far()).unwrap();
            assert!(work.is_completed().unwrap());
            assert_eq!(values(&receive), [1.0, 2.0].repeat(4));
            let reduced = unsafe { world.raw().all_reduce(two, two, ReduceOp::Sum, &stream) }.unwrap();
            let other = rank.stream();
            reduced.order_before(&stream).unwrap();
            reduced.order_before(&other).unwrap();
            other.synchronize().unwrap();
            assert_eq!(values(&send), [4.0, 8.0]);
            let exchange = world.batch(&stream, |batch| unsafe {
                batch.send(two, world.rank() ^ 1)?;
                batch.recv(Buffer::new(receive.ptr(), 2, F32), world.rank() ^ 1)
            }).unwrap();
            assert_eq!((work.sequence(), exchange.sequence(), world.sequence()), (1, 3, 3));
            exchange.wait_until(far()).unwrap();
            let mine: Vec<_> = enqueued_on(world.context().device());
            assert_eq!((mine.len(), mine[0].sequence, mine[0].id), (1, 3, world.id()));
            // The counts that members can compare: two collectives, and an exchange with one other member.
            let with: Vec<_> =
                mine[0].messages.iter().map(|it| (it.peer, it.sent, it.received, it.captured)).collect();
            assert_eq!((mine[0].collectives, with), (2, vec![(world.rank() ^ 1, 1, 1, false)]));
            world.barrier(far()).unwrap();
            drop((work, reduced, exchange));
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn lengths_and_types_are_checked() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            let (stream, memory) = (rank.stream(), rank.memory(&[0.0; 8]));
            let buffer = |elements| Buffer::new(memory.ptr(), elements, F32);
            let far_buffer = |elements| Buffer::new(memory.ptr() + 16usize, elements, F32);
            unsafe {
                for refused in [
                    world.raw().all_reduce(buffer(2), buffer(3), ReduceOp::Sum, &stream),
                    world.raw().all_gather(buffer(2), far_buffer(3), &stream),
                    world.raw().reduce_scatter(buffer(3), far_buffer(1), ReduceOp::Sum, &stream),
                    world.raw().all_to_all(buffer(3), far_buffer(3), &stream),
                    world.raw().all_reduce(buffer(2), Buffer::new(memory.ptr(), 2, process_group::comm::DataType::I32),
                        ReduceOp::Sum, &stream),
                ] {
                    let error = refused.unwrap_err();
                    assert!(matches!(error.kind(), GroupErrorKind::Argument { source: ArgumentError::Lengths { .. }, .. }), "{error}");
                }
                assert!(matches!(world.raw().broadcast(buffer(1), 2, &stream).as_ref().map_err(GroupError::kind), Err(GroupErrorKind::Argument { .. })));
            }
            let open = process_group::comm::Group::begin(world.nccl()).unwrap();
            let refused = unsafe { world.raw().all_reduce(buffer(2), buffer(2), ReduceOp::Sum, &stream) };
            assert!(matches!(refused.as_ref().map_err(GroupError::kind), Err(GroupErrorKind::Comm(CommError::InsideGroup { .. }))));
            open.finish().unwrap();
            assert_eq!(world.sequence(), 0);
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_member_that_cannot_split_is_absent_to_the_others_and_nothing_has_changed() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            let pair = Request::Lists(vec![vec![0, 1]]);
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
            let buffer = Buffer::new(memory.ptr(), 1, F32);
            let split = || world.split_with("pair", &pair, GroupSettings::new(), soon());
            let absent = || {
                let error = split().unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Absent { ranks, .. } if *ranks == [1]), "{error}");
            };
            if rank.rank == 0 {
                absent();
                absent();
                rank.store.set("tried", b"").unwrap();
            } else {
                let open = process_group::comm::Group::begin(world.nccl()).unwrap();
                let error = split().unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Comm(CommError::InsideGroup { .. })), "{error}");
                open.finish().unwrap();
                // The other has not enqueued its part.
                unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap();
                let error = split().unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::WorkTimeout { .. }), "{error}");
                // In the barrier it would wait for a rank that waits for it.
                rank.store.wait(&["tried"], far()).unwrap();
            }
            world.barrier(far()).unwrap();
            if rank.rank == 0 {
                unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap();
            }
            let pair = world.split("pair", &pair).unwrap().unwrap();
            pair.destroy(far()).unwrap();
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn work_that_was_captured_does_not_hide_work_that_was_not() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
            let buffer = Buffer::new(memory.ptr(), 1, F32);
            let reduce = || unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap();
            let capture = || {
                let recording = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
                reduce();
                recording.end().unwrap()
            };
            if rank.rank == 0 {
                reduce();
                drop(capture());
                let error = world.quiesce(soon()).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::WorkTimeout { .. }), "{error}");
                assert_eq!((error.operation(), error.sequence()), (Some("all_reduce"), Some(1)), "{error}");
            }
            world.barrier(far()).unwrap();
            if rank.rank == 1 {
                reduce();
                drop(capture());
            }
            world.quiesce(far()).unwrap();
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    /// By a thread that no other thread waits for. A graph keeps nothing.
    #[test]
    fn an_owner_is_kept_until_the_work_is_done() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            let (stream, (open, gate)) = (rank.stream(), mpsc::channel::<()>());
            let reduce = |memory: &DeviceMemory| {
                let buffer = Buffer::new(memory.ptr(), 1, F32);
                unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap()
            };
            let (told, dropped) = mpsc::channel();
            let owned = || (rank.memory(&[1.0]), Told(told.clone()));
            stream.launch_host_fn(move || gate.recv().unwrap_or_default()).unwrap();
            for _ in 0..3 {
                let owned = owned();
                let work = reduce(&owned.0);
                work.keep(owned).unwrap();
            }
            thread::sleep(Duration::from_millis(20));
            assert!(dropped.try_recv().is_err(), "the device uses it");
            drop(open);
            (0..3).for_each(|_| dropped.recv_timeout(Duration::from_secs(60)).unwrap());
            stream.synchronize().unwrap();

            let (memory, other) = (rank.memory(&[1.0]), owned());
            let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
            let error = reduce(&memory).keep(other).unwrap_err();
            assert!(matches!(error.kind(), GroupErrorKind::Captured), "{error}");
            dropped.try_recv().unwrap();
            drop(capture.end().unwrap());
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn subgroups_keep_the_jobs_ranks_and_ascending_numbers() {
        for release in [22809, 21705] {
            // Before 2.18 subgroups are made over the store.
            let machine = machine_with(4, release);
            let ids = machine.ranks(4, |rank| {
                let world = rank.world();
                let me = rank.rank;
                let pairs = world.split("tp", &Request::Color { color: Some(me as u32 / 2), key: 0 }).unwrap().unwrap();
                let rows = world.split("dp", &Request::Lists(vec![vec![2, 0], vec![1, 3]])).unwrap().unwrap();
                let three = world.split("three", &Request::Lists(vec![vec![3, 1, 2]])).unwrap();
                assert_eq!(pairs.global_ranks(), [me / 2 * 2, me / 2 * 2 + 1]);
                assert_eq!(pairs.name(), format!("tp[{}]", me / 2));
                assert_eq!(rows.global_ranks(), if me % 2 == 0 { [2, 0] } else { [1, 3] });
                assert_eq!(three.is_some(), me != 0);
                let stream = rank.stream();
                for group in [Some(&pairs), Some(&rows), three.as_ref()].into_iter().flatten() {
                    assert_eq!(group.global_ranks()[group.rank()], me);
                    let memory = rank.memory(&[me as f32]);
                    let buffer = Buffer::new(memory.ptr(), 1, F32);
                    let work = unsafe { group.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap();
                    work.wait_until(far()).unwrap();
                    let sum: usize = group.global_ranks().iter().sum();
                    assert_eq!(values(&memory), [sum as f32]);
                    group.windows_supported().err();
                }
                // A subgroup of a subgroup, by the job's ranks.
                let alone = rows.split("alone", &Request::Lists(vec![vec![rows.global_ranks()[0]]])).unwrap();
                assert_eq!(alone.is_some(), rows.rank() == 0);
                let world_id = world.id();
                let ids = [Some(world_id), Some(pairs.id()), Some(rows.id()), three.as_ref().map(ProcessGroup::id)];
                for group in [alone, three, Some(rows), Some(pairs), Some(world)].into_iter().flatten() {
                    group.destroy(far()).unwrap();
                }
                ids.map(|id| id.map(|id| id.uid - world_id.uid + 1))
            });
            assert_eq!(ids, [
                [Some(1), Some(2), Some(6), None],
                [Some(1), Some(2), Some(7), Some(10)],
                [Some(1), Some(3), Some(6), Some(10)],
                [Some(1), Some(3), Some(7), Some(10)],
            ]);
            machine.world.finish().unwrap();
        }
    }

    #[test]
    fn a_split_that_does_not_fit_is_the_same_error_on_all_and_changes_nothing() {
        let machine = machine(3);
        let errors = machine.ranks(3, |rank| {
            let world = rank.world();
            let lists = if rank.rank == 2 { vec![vec![0], vec![1, 2]] } else { vec![vec![0, 1], vec![2]] };
            let error = world.split("tp", &Request::Lists(lists)).unwrap_err();
            assert!(
                matches!(error.kind(), GroupErrorKind::Split { source: SplitError::Different { rank: 2, other: 0, .. }, .. }),
                "{error}"
            );
            let twice = world.split("tp", &Request::Lists(vec![vec![0, 1], vec![1]])).unwrap_err();
            assert!(matches!(twice.kind(), GroupErrorKind::Split { source: SplitError::Twice { rank: 1, .. }, .. }), "{twice}");
            world.split("tp", &Request::Color { color: None, key: 0 }).unwrap();
            world.destroy(far()).unwrap();
            error.to_string()
        });
        assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
        machine.world.finish().unwrap();
    }

    #[test]
    fn who_is_absent_is_named_by_all_who_came() {
        let machine = machine(4);
        let present = Barrier::new(3);
        machine.these_ranks(4, &[0, 1, 3], |rank| {
            present.wait();
            let error = rank.builder().timeout(Duration::from_secs(2)).build().unwrap_err();
            let GroupErrorKind::Absent { ranks, size: 4, .. } = error.kind() else { panic!("{error}") };
            assert_eq!(*ranks, [2]);
        });
        assert_eq!(machine.world.calls("ncclCommInitRankConfig"), 0);
        machine.world.finish().unwrap();
    }

    #[test]
    fn an_absent_member_of_a_split_is_named_by_its_rank_of_the_job() {
        let machine = machine(3);
        machine.ranks(3, |rank| {
            let world = rank.world();
            let pair = world.split("pair", &Request::Lists(vec![vec![2, 1]])).unwrap();
            if let Some(pair) = pair {
                if rank.rank == 1 {
                    let error = pair
                        .split_with("x", &Request::Color { color: Some(0), key: 0 }, rank.config(), soon())
                        .unwrap_err();
                    assert!(matches!(error.kind(), GroupErrorKind::Absent { ranks, .. } if *ranks == [2]), "{error}");
                    rank.store.set("tried", b"").unwrap();
                }
                // In the destruction it would wait for a rank that waits for it.
                rank.store.wait(&["tried"], far()).unwrap();
                pair.communicator().check().unwrap();
                pair.destroy(far()).unwrap();
            }
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn two_ranks_on_one_device_are_told_so() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let context = rank.context.driver().device(0).unwrap().retain_primary().unwrap();
            let error = rank.builder().context(&context).build().unwrap_err();
            assert!(
                matches!(error.kind(), GroupErrorKind::Disagreement { source: Disagreement::SameDevice { .. }, .. }),
                "{error}"
            );
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_name_serves_one_group_of_a_store() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let first = rank.world();
            assert!(matches!(rank.builder().build().as_ref().map_err(GroupError::kind), Err(GroupErrorKind::Store(_))));
            let second = rank.builder().epoch(1).build().unwrap();
            assert!(first.id() < second.id() && second.id().epoch == 1);
            second.destroy(far()).unwrap();
            first.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_barrier_names_who_does_not_come() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            if rank.rank == 0 {
                let error = world.barrier(soon()).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Absent { ranks, .. } if *ranks == [1]), "{error}");
                rank.store.set("tried", b"").unwrap();
            }
            // In the destruction it would wait for a rank that waits for it.
            rank.store.wait(&["tried"], far()).unwrap();
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    /// Each waits for the other in another call, of another group.
    #[test]
    fn members_that_wait_for_each_other_in_a_circle_are_told_so() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            let pair = world.split("pair", &Request::Lists(vec![vec![0, 1]])).unwrap().unwrap();
            let error = if rank.rank == 0 { world.barrier(soon()) } else { pair.barrier(far()) }.unwrap_err();
            let GroupErrorKind::NotAgreed { meeting: "the barrier", source, .. } = error.kind() else { panic!("{error}") };
            let text = source.to_string();
            assert!(text.contains("circle: rank 0 at barrier/0 with") && text.contains("rank 1 at split/0/0/barrier/0"));
            // Both go on.
            rank.store.set(&format!("told/{}", rank.rank), b"").unwrap();
            rank.store.wait(&["told/0", "told/1"], far()).unwrap();
            pair.destroy(far()).unwrap();
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn work_that_a_peer_never_joins_times_out() {
        let machine = super::common::faithful(2, 22809);
        machine.ranks(2, |rank| {
            let world = rank.world();
            let (stream, memory) = (rank.stream(), rank.memory(&[0.0]));
            if rank.rank == 0 {
                let buffer = Buffer::new(memory.ptr(), 1, F32);
                let work = unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap();
                let error = work.wait_until(soon()).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::WorkTimeout { .. }), "{error}");
                assert_eq!((error.operation(), error.sequence()), (Some("all_reduce"), Some(1)), "{error}");
                assert!(world.quiesce(soon()).is_err());
            }
            world.barrier(far()).unwrap();
            world.abort(far()).unwrap();
            let _ = stream.synchronize();
        });
    }

    #[test]
    fn captured_work_runs_with_its_graph() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
            let buffer = Buffer::new(memory.ptr(), 1, F32);
            let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
            let work = unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap();
            let graph = capture.end().unwrap();
            assert!(matches!(work.wait_until(soon()).as_ref().map_err(GroupError::kind), Err(GroupErrorKind::Captured)));
            let exec = graph.instantiate().unwrap();
            for _ in 0..3 {
                stream.launch(&exec).unwrap();
            }
            stream.synchronize().unwrap();
            assert_eq!(values(&memory), [8.0]);
            world.quiesce(far()).unwrap();
            drop((exec, graph, work));
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn the_environment_and_a_tcp_store_are_enough() {
        let (_reserved, port) = reserved_port();
        for (variable, value) in [("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port.to_string())] {
            // SAFETY: this process runs only this test, and no part of it reads the environment meanwhile.
            unsafe { std::env::set_var(variable, value) };
        }
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let build = ProcessGroup::builder()
                .rank(rank.rank)
                .context(&rank.context)
                .nccl(&rank.nccl)
                .timeout(Duration::from_secs(60));
            let world = build.build().unwrap();
            world.barrier(far()).unwrap();
            let store = Arc::new(world.store());
            store.set(&rank.rank.to_string(), b"here").unwrap();
            store.wait(&["0", "1"], far()).unwrap();
            world.barrier(far()).unwrap();
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }
}

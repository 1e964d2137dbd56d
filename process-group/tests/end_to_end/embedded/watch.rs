//! The watchdog: work that no thread waits for, members that make different calls, asynchronous errors.

use std::{env, fs, net::TcpListener, thread, time::Duration};

use cuda_driver::graph::CaptureMode;
use gpu_sim::{Action, Injection};
use process_group::{
    ProcessGroup,
    comm::{DataType::F32, ReduceOp},
    group::{Buffer, GroupError, GroupErrorKind, Request, Witnesses},
    store::Store,
};
use rusty_fork::rusty_fork_test;

use super::common::{Rank, faithful, far, machine, soon, values};

/// Waits, outside of any call, until the group is over.
fn until_over(group: &ProcessGroup) -> GroupError {
    let patience = far();
    loop {
        match group.check() {
            Err(error) => return error,
            Ok(()) => assert!(!patience.expired(), "the group goes on"),
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn short(rank: &Rank) -> ProcessGroup {
    let builder =
        rank.builder().work_timeout(Duration::from_millis(300)).heartbeat(Duration::from_millis(200));
    builder.build().unwrap()
}

/// Rank 1 launches a graph twice, the others three times. If `goes_on`, all ranks then make another call.
fn skip_a_launch(goes_on: bool) {
    let machine = faithful(3, 22809);
    machine.ranks(3, |rank| {
        let world = short(&rank);
        let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
        let one = Buffer::new(memory.ptr(), 1, F32);
        // SAFETY: the memory is alive until the stream has been synchronised.
        let sum = || unsafe { world.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap();
        let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        sum();
        let graph = capture.end().unwrap().instantiate().unwrap();
        for _ in 0..if rank.rank == 1 { 2 } else { 3 } {
            stream.launch(&graph).unwrap();
            world.track_graph_launch(&stream).unwrap();
        }
        if goes_on {
            sum();
        }
        let error = until_over(&world);
        let GroupErrorKind::Overdue { progress, .. } = error.kind() else { panic!("{error}") };
        let missing: Vec<_> = progress.not_joined().map(|member| member.rank).collect();
        assert_eq!(missing, [1], "{error}");
        let text = error.to_string();
        assert!(text.contains(": rank 1 has not joined graph launch 3 of world: "), "{text}");
        let _ = stream.synchronize();
        drop(graph);
        world.abort(far()).unwrap();
    });
}

rusty_fork_test! {
    #[test]
    fn work_that_nobody_waits_for_ends_the_group_on_all() {
        let machine = faithful(3, 22809);
        let folder = tempfile::tempdir().unwrap();
        machine.ranks(3, |rank| {
            let builder = rank.builder().work_timeout(Duration::from_millis(300));
            #[cfg(feature = "pickle")]
            let builder = builder.dump_folder(folder.path());
            let world = builder.heartbeat(Duration::from_millis(200)).build().unwrap();
            let pair = world.split("pair", &Request::Color { color: Some(rank.rank as u32 / 2), key: 0 }).unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
            let one = Buffer::new(memory.ptr(), 1, F32);
            let work = (rank.rank != 1).then(|| unsafe { world.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap());
            let error = until_over(&world);
            let GroupErrorKind::Overdue { operation, sequence: 1, progress, .. } = error.kind() else { panic!("{error}") };
            assert_eq!(operation, "all_reduce");
            assert_eq!(progress.not_joined().map(|member| member.rank).collect::<Vec<_>>(), [1], "{error}");
            // Waits and calls get the same error, at once.
            if let Some(work) = work {
                let told = work.wait_until(far()).unwrap_err();
                assert_eq!(told.kind().to_string(), error.kind().to_string());
                assert_eq!((told.group(), told.operation(), told.sequence()), (Some("world"), Some("all_reduce"), Some(1)));
            }
            let told = world.barrier(far()).unwrap_err();
            assert_eq!(told.kind().to_string(), error.kind().to_string());
            assert_eq!((told.group(), told.operation(), told.sequence()), (Some("world"), Some("barrier"), None));
            assert_eq!((error.group(), error.operation(), error.sequence()), (Some("world"), None, None));
            // A group without trouble stays usable.
            let pair = pair.unwrap();
            let other = rank.stream();
            memory.copy_from_host(0, &[1f32]).unwrap();
            unsafe { pair.raw().all_reduce(one, one, ReduceOp::Sum, &other) }.unwrap().wait_until(far()).unwrap();
            assert_eq!(values(&memory), [pair.size() as f32]);
            let patience = far();
            let dump = folder.path().join(format!("flight_world_{}", rank.rank));
            while cfg!(feature = "pickle") && !dump.exists() {
                assert!(!patience.expired(), "no dump of rank {}", rank.rank);
                thread::sleep(Duration::from_millis(5));
            }
            pair.destroy(far()).unwrap();
            world.abort(far()).unwrap();
            let _ = stream.synchronize();
        });
        assert!(fs::read_dir(folder.path()).unwrap().count() >= 3 || cfg!(not(feature = "pickle")));
    }

    /// The idiom of the crate's front page: the wait and the work have the same time limit, and the wait ends
    /// first.
    #[test]
    fn a_wait_for_as_long_as_the_group_waits_names_who_has_not_joined() {
        let machine = faithful(3, 22809);
        machine.ranks(3, |rank| {
            let world = rank.builder().timeout(Duration::from_secs(8)).build().unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
            let one = Buffer::new(memory.ptr(), 1, F32);
            // A rank that leaves before another has its error ends the other's wait.
            let all_told = || rank.store.wait(&["told 0", "told 2"], far()).unwrap();
            if rank.rank == 1 {
                return all_told();
            }
            let work = unsafe { world.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap();
            let error = work.wait_until(world.timeout()).unwrap_err();
            let progress = match error.kind() {
                GroupErrorKind::WorkTimeout { progress: Some(progress), .. } => progress,
                // If this thread was not scheduled for long, the watchdog comes first.
                GroupErrorKind::Overdue { progress, .. } => progress,
                other => panic!("{other}"),
            };
            assert_eq!(progress.not_joined().map(|member| member.rank).collect::<Vec<_>>(), [1], "{error}");
            assert!(error.to_string().contains("rank 1 has not joined collective 1 of world"), "{error}");
            rank.store.set(&format!("told {}", rank.rank), b"").unwrap();
            all_told();
            world.abort(far()).unwrap();
            let _ = stream.synchronize();
        });
    }

    /// Repeated short waits do not ask the other members.
    #[test]
    fn a_short_wait_asks_no_other_member() {
        let machine = faithful(2, 22809);
        machine.ranks(2, |rank| {
            let world = rank.world();
            if rank.rank == 0 {
                let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
                let one = Buffer::new(memory.ptr(), 1, F32);
                let work = unsafe { world.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap();
                for _ in 0..3 {
                    let error = work.wait_until(soon()).unwrap_err();
                    assert!(matches!(error.kind(), GroupErrorKind::WorkTimeout { progress: None, .. }), "{error}");
                }
                assert_eq!(rank.store.get("process-group/world/0/flight/asked", far()).unwrap(), b"0");
                world.abort(far()).unwrap();
                stream.synchronize().unwrap();
            } else {
                assert!(world.barrier(far()).is_err());
            }
        });
    }

    #[test]
    fn work_that_is_done_in_time_is_no_trouble() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = short(&rank);
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
            let one = Buffer::new(memory.ptr(), 1, F32);
            // In total longer than the work timeout.
            for _ in 0..60 {
                unsafe { world.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap();
                thread::sleep(Duration::from_millis(10));
            }
            world.quiesce(far()).unwrap();
            world.check().unwrap();
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_run_of_a_graph_is_seen_when_it_is_marked() {
        let machine = faithful(2, 22809);
        machine.ranks(2, |rank| {
            let world = short(&rank);
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
            let one = Buffer::new(memory.ptr(), 1, F32);
            let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
            unsafe { world.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap();
            let graph = capture.end().unwrap().instantiate().unwrap();
            stream.launch(&graph).unwrap();
            let work = world.track_graph_launch(&stream).unwrap();
            work.wait_until(far()).unwrap();
            assert_eq!((values(&memory), work.operation()), (vec![2.0], "graph"));
            world.barrier(far()).unwrap();
            if rank.rank == 0 {
                stream.launch(&graph).unwrap();
                world.track_graph_launch(&stream).unwrap();
            }
            let error = until_over(&world);
            assert!(matches!(error.kind(), GroupErrorKind::Overdue { rank: 0, operation, .. } if operation == "graph"), "{error}");
            let _ = stream.synchronize();
            drop(graph);
            world.abort(far()).unwrap();
        });
    }

    /// Rank 1 launches a graph once less than the others, and then stops or goes on.
    #[test]
    fn a_rank_that_skips_a_launch_of_a_graph_is_named() {
        skip_a_launch(false);
    }

    #[test]
    fn a_rank_that_skips_a_launch_and_goes_on_is_named() {
        skip_a_launch(true);
    }

    #[test]
    fn members_that_call_different_things_are_told_who() {
        let machine = faithful(3, 22809);
        machine.ranks(3, |rank| {
            let builder = rank.builder().heartbeat(Duration::from_millis(200));
            let world = builder.build().unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0; 8]));
            let buffer = |elements| Buffer::new(memory.ptr(), elements, F32);
            for _ in 0..3 {
                let work = unsafe { world.raw().all_reduce(buffer(8), buffer(8), ReduceOp::Sum, &stream) }.unwrap();
                work.wait_until(far()).unwrap();
            }
            let elements = if rank.rank == 1 { 4 } else { 8 };
            let line = line!() + 1;
            let work = unsafe { world.raw().all_reduce(buffer(elements), buffer(elements), ReduceOp::Max, &stream) };
            let _ = work.map(|work| work.wait_until(far()));
            let error = until_over(&world);
            let GroupErrorKind::CollectiveDiverged { divergence, .. } = error.kind() else { panic!("{error}") };
            assert_eq!((&divergence.ranks[..], divergence.after, divergence.by), (&[1][..], 3, 4), "{error}");
            let calls: Vec<_> = divergence.calls.iter().map(|call| (call.rank, call.call.as_str())).collect();
            assert_eq!(calls, [(1, "all_reduce of 4 f32 by max"), (0, "all_reduce of 8 f32 by max")]);
            assert!(divergence.calls.iter().all(|call| call.site == format!("{}:{line}", file!())), "{error}");
            world.abort(far()).unwrap();
            let _ = stream.synchronize();
        });
    }

    /// The rank that hosts the store has late work, is the first to know that the group is over, and leaves
    /// at once.
    #[test]
    fn who_hosts_the_store_stays_until_the_others_know_why_the_group_is_over() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        // SAFETY: the process has no other thread yet.
        unsafe {
            env::set_var("MASTER_ADDR", "127.0.0.1");
            env::set_var("MASTER_PORT", port.to_string());
        }
        let machine = faithful(2, 22809);
        machine.ranks(2, |rank| {
            let builder = ProcessGroup::builder().rank(rank.rank).world_size(2).context(&rank.context);
            let builder = builder.nccl(&machine.nccl).witnesses(Witnesses::Store);
            let builder = builder.timeout(Duration::from_secs(60)).work_timeout(Duration::from_millis(300));
            let world = builder.build().unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
            let one = Buffer::new(memory.ptr(), 1, F32);
            world.barrier(far()).unwrap();
            if rank.rank == 0 {
                unsafe { world.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap();
            }
            let error = until_over(&world);
            assert!(matches!(error.kind(), GroupErrorKind::Overdue { rank: 0, .. }), "{error}");
            drop(world);
            let _ = stream.synchronize();
        });
    }

    #[test]
    fn of_two_members_both_are_named() {
        let machine = faithful(2, 22809);
        machine.ranks(2, |rank| {
            let world = rank.builder().heartbeat(Duration::from_millis(200)).build().unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0; 8]));
            let (one, all) = (Buffer::new(memory.ptr(), 1, F32), Buffer::new(memory.ptr() + 8usize, 2, F32));
            unsafe {
                match rank.rank {
                    0 => world.raw().all_reduce(one, one, ReduceOp::Sum, &stream),
                    _ => world.raw().all_gather(one, all, &stream),
                }
            }.unwrap();
            let error = until_over(&world);
            let GroupErrorKind::CollectiveDiverged { divergence, .. } = error.kind() else { panic!("{error}") };
            assert_eq!((&divergence.ranks[..], divergence.after, divergence.by), (&[0, 1][..], 0, 1), "{error}");
            let calls: Vec<_> = divergence.calls.iter().map(|call| call.call.as_str()).collect();
            assert_eq!(calls, ["all_reduce of 1 f32 by sum", "all_gather of 1 f32"]);
            world.abort(far()).unwrap();
            let _ = stream.synchronize();
        });
    }

    /// Calls that differ by design: messages of some members, shares of any length, a root's different role.
    #[test]
    fn what_need_not_be_equal_is_no_divergence() {
        let machine = machine(3);
        machine.ranks(3, |rank| {
            let world = rank.builder().heartbeat(Duration::from_millis(50)).build().unwrap();
            let (stream, memory, me) = (rank.stream(), rank.memory(&[0.0; 64]), rank.rank);
            let part = |at: usize, elements| Buffer::new(memory.ptr() + 4 * at, elements, F32);
            for _ in 0..20 {
                let send: Vec<_> = (0..3).map(|_| part(0, me + 1)).collect();
                let receive = [part(4, 1), part(5, 2), part(7, 3)];
                unsafe {
                    world.raw().all_to_all_list(&send, &receive, &stream).unwrap();
                    world.raw().gather_list(send[0], if me == 1 { &receive } else { &[] }, 1, &stream).unwrap();
                    world.raw().scatter_list(if me == 2 { &receive } else { &[] }, part(16, me + 1), 2, &stream).unwrap();
                    world.raw().gather(part(0, 2), (me == 0).then(|| part(20, 6)), 0, &stream).unwrap();
                    world.raw().reduce(part(0, 2), part(if me == 0 { 30 } else { 0 }, 2), ReduceOp::Sum, 0, &stream).unwrap();
                    if me != 2 {
                        world.batch(&stream, |batch| {
                            batch.send(part(0, 2), me ^ 1)?;
                            batch.recv(part(40, 2), me ^ 1)
                        }).unwrap();
                    }
                    world.batch(&stream, |batch| {
                        if me != 2 {
                            batch.send(part(0, 2), me ^ 1)?;
                            batch.recv(part(40, 2), me ^ 1)?;
                        }
                        batch.all_reduce(part(50, 2), part(50, 2), ReduceOp::Sum)
                    }).unwrap();
                }
                world.quiesce(far()).unwrap();
                thread::sleep(Duration::from_millis(10));
            }
            world.check().unwrap();
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn an_error_in_the_background_ends_the_group_on_all() {
        let machine = faithful(2, 22809);
        machine.ranks(2, |rank| {
            let world = rank.builder().heartbeat(Duration::from_millis(200)).build().unwrap();
            world.barrier(far()).unwrap();
            if rank.rank == 1 {
                // On either rank: the one that is asked next.
                machine.world.faults().inject(Injection::new("ncclCommGetAsyncError", Action::Fail(2))).unwrap();
            }
            let patience = far();
            let error = loop {
                assert!(!patience.expired(), "the group goes on");
                match world.barrier(far()) {
                    Err(error) => break error,
                    Ok(()) => thread::sleep(Duration::from_millis(5)),
                }
            };
            let GroupErrorKind::MemberFailed { reason, .. } = error.kind() else { panic!("{error}") };
            assert!(reason.contains("ncclCommGetAsyncError"), "{error}");
            world.abort(far()).unwrap();
        });
    }
}

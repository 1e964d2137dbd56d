//! Groups that are suspended and resumed: all members or none, and every refusal and failure on the way.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
    time::{Duration, Instant},
};

use cuda_driver::graph::CaptureMode;
use gpu_sim::{Action, Injection};
use process_group::{
    ProcessGroup,
    comm::{CommError, DataType::F32, Origin, ReduceOp, ShrinkMode, wait_for_dropped},
    group::{Buffer, GroupError, GroupErrorKind, P2pPolicy, Request, Work},
    store::{Deadline, Store},
};
use proptest::{
    collection::vec,
    sample::select,
    test_runner::{Config, TestRunner},
};
use rusty_fork::rusty_fork_test;

use super::common::{Machine, Rank, far, hold, machine, machine_with, soon, values};

/// The first release that suspends.
const RELEASE: i32 = 22907;

fn reduce(rank: &Rank, group: &ProcessGroup) -> Result<Work, GroupError> {
    let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
    let one = Buffer::new(memory.ptr(), 1, F32);
    let work = unsafe { group.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }?;
    work.keep((memory, stream))?;
    Ok(work)
}

/// Returns the sum over the group of 1 from each rank.
fn sum(rank: &Rank, group: &ProcessGroup) -> f32 {
    let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
    let one = Buffer::new(memory.ptr(), 1, F32);
    let work = unsafe { group.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap();
    work.wait_until(far()).unwrap();
    values(&memory)[0]
}

/// Exchanges a value with `peer`. Fails if a message is refused.
fn exchange(rank: &Rank, group: &ProcessGroup, peer: usize) -> Result<(), GroupError> {
    let (stream, from, to) = (rank.stream(), rank.memory(&[group.rank() as f32]), rank.memory(&[-1.0]));
    let (from, out) = (Buffer::new(from.ptr(), 1, F32), from);
    let (to, back) = (Buffer::new(to.ptr(), 1, F32), to);
    let send = || unsafe { group.raw().send(from, peer, &stream) };
    let receive = || unsafe { group.raw().recv(to, peer, &stream) };
    let works = if group.rank() < peer { [send()?, receive()?] } else { [receive()?, send()?] };
    works.iter().try_for_each(|work| work.wait_until(far()))?;
    assert_eq!(values(&back), [peer as f32]);
    drop(out);
    Ok(())
}

fn everybody() -> Request {
    Request::Color { color: Some(0), key: 0 }
}

fn is_suspended<T: std::fmt::Debug>(result: Result<T, GroupError>) -> bool {
    let error = result.unwrap_err();
    assert!(error.to_string().contains("call resume first"), "{error}");
    matches!(error.kind(), GroupErrorKind::Comm(CommError::Suspended { .. }))
}

fn free(rank: &Rank) -> u64 {
    rank.context.memory_info().unwrap().0 as u64
}

fn fail(machine: &Machine, call: &str, code: u32) {
    machine.world.faults().inject(Injection::new(call, Action::Fail(code))).unwrap();
}

rusty_fork_test! {
    #[test]
    fn a_suspended_group_holds_less_memory_and_refuses_work_until_it_is_resumed() {
        for policy in [P2pPolicy::Shared, P2pPolicy::Lanes(2), P2pPolicy::PerPair] {
            let machine = machine_with(3, RELEASE);
            machine.ranks(3, |rank| {
                let world = rank.builder().p2p(policy).build().unwrap();
                let me = rank.rank;
                assert_eq!(sum(&rank, &world), 3.0);
                if me < 2 {
                    exchange(&rank, &world, 1 - me).unwrap();
                }
                world.barrier(far()).unwrap();
                let (before, held) = (free(&rank), world.communicator().memory_statistics(far()).unwrap());
                world.suspend(far()).unwrap();
                assert!(world.is_suspended());
                let freed = free(&rank) - before;
                let communicators = match policy {
                    P2pPolicy::Shared => 1,
                    P2pPolicy::Lanes(lanes) => 1 + lanes as u64,
                    _ => 1 + u64::from(me < 2),
                };
                match policy {
                    P2pPolicy::PerPair => assert!(freed >= held.suspendable && (freed > held.suspendable) == (me < 2)),
                    _ => assert_eq!(freed, held.suspendable * communicators),
                }
                assert!(world.communicator().memory_statistics(far()).unwrap().suspended);
                assert!(is_suspended(reduce(&rank, &world)));
                assert!(is_suspended(world.split("s", &everybody())));
                assert!(is_suspended(world.suspend(far())));
                // Also with a member with which there is no communicator yet.
                assert!((0..3).filter(|peer| *peer != me).all(|peer| is_suspended(exchange(&rank, &world, peer))));
                world.check().unwrap();
                world.barrier(far()).unwrap();
                world.resume(far()).unwrap();
                assert!(!world.is_suspended());
                assert_eq!(free(&rank), before);
                assert_eq!(sum(&rank, &world), 3.0);
                if me < 2 {
                    exchange(&rank, &world, 1 - me).unwrap();
                }
                let error = world.resume(far()).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Comm(CommError::NotSuspended { .. })), "{error}");
                // It may end in this state.
                world.suspend(far()).unwrap();
                world.destroy(far()).unwrap();
            });
            machine.world.finish().unwrap();
        }
    }

    #[test]
    fn what_is_under_way_refuses_a_suspension_on_all_members() {
        let machine = machine_with(2, RELEASE);
        machine.ranks(2, |rank| {
            let (world, stream) = (rank.world(), rank.stream());
            // The work of rank 0 alone is not done.
            let gate = (rank.rank == 0).then(|| hold(&stream));
            let work = world.track_graph_launch(&stream).unwrap();
            if rank.rank == 1 {
                work.wait_until(far()).unwrap();
            }
            let error = world.suspend(far()).unwrap_err();
            match (rank.rank, error.kind()) {
                (0, GroupErrorKind::InFlight { operation: "graph", .. }) => {
                    assert_eq!(error.operation(), Some("suspend"), "{error}");
                }
                (1, GroupErrorKind::Unmade { rank: 0, problem, .. }) => assert!(problem.contains("graph"), "{problem}"),
                _ => panic!("{error}"),
            }
            drop(gate);
            work.wait_until(far()).unwrap();
            assert_eq!(machine.world.calls("ncclCommSuspend"), 0);
            assert_eq!(sum(&rank, &world), 2.0);
            world.suspend(far()).unwrap();
            world.resume(far()).unwrap();
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_member_that_does_something_else_is_named_and_nothing_has_changed() {
        let machine = machine_with(2, RELEASE);
        machine.ranks(2, |rank| {
            let world = rank.world();
            let late = |result: Result<(), GroupError>| {
                assert!(matches!(result.as_ref().map_err(GroupError::kind), Err(GroupErrorKind::Absent { ranks, .. }) if *ranks == [1]), "{result:?}");
                rank.store.set("late", b"").unwrap();
            };
            if rank.rank == 0 {
                late(world.suspend(soon()));
                reduce(&rank, &world).unwrap().wait_until(far()).unwrap();
            } else {
                reduce(&rank, &world).unwrap().wait_until(far()).unwrap();
                rank.store.delete("late").unwrap();
                // Comes to the attempt that the other has given up.
                let error = world.suspend(far()).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Absent { ranks, .. } if *ranks == [1]), "{error}");
            }
            world.barrier(far()).unwrap();
            world.suspend(far()).unwrap();
            if rank.rank == 0 {
                late(world.resume(soon()));
            } else {
                assert!(is_suspended(reduce(&rank, &world)));
                rank.store.wait(&["late"], far()).unwrap();
                drop(world.resume(far()).unwrap_err());
            }
            world.barrier(far()).unwrap();
            world.resume(far()).unwrap();
            assert_eq!(sum(&rank, &world), 2.0);
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_suspension_while_another_waits_for_work_ends_before_its_deadline() {
        let machine = machine_with(2, RELEASE);
        process_group::comm::set_drop_error_hook(|_| ());
        let began = Instant::now();
        machine.ranks(2, |rank| {
            let world = rank.builder().work_timeout(Duration::from_millis(500)).build().unwrap();
            let error = match rank.rank {
                0 => world.suspend(far()).unwrap_err(),
                _ => reduce(&rank, &world).unwrap().wait_until(far()).unwrap_err(),
            };
            let GroupErrorKind::Overdue { rank: 1, operation, .. } = error.kind() else { panic!("{error}") };
            assert_eq!(operation, "all_reduce");
        });
        assert!(began.elapsed() < Duration::from_secs(40));
        // In checked mode, the members wait for each other in a circle.
        machine.ranks(2, |rank| {
            let world = rank.builder().epoch(1).checked(true).build().unwrap();
            let error = match rank.rank {
                0 => world.suspend(Deadline::after(Duration::from_secs(1))).unwrap_err(),
                _ => reduce(&rank, &world).unwrap_err(),
            };
            assert!(matches!(error.kind(), GroupErrorKind::NotAgreed { .. }), "{error}");
            world.destroy(far()).unwrap();
        });
        assert!(wait_for_dropped(far()));
    }

    #[test]
    fn each_call_of_nccl_can_fail_and_the_group_ends_with_the_member_that_failed() {
        let machine = machine_with(2, RELEASE);
        process_group::comm::set_drop_error_hook(|_| ());
        let mut epoch = 0;
        for call in ["ncclCommSuspend", "ncclCommResume"] {
            // 5: an invalid usage, after which the communicator itself would still be good.
            for code in [2, 5] {
                epoch += 1;
                let errors = machine.ranks(2, |rank| {
                    let world = rank.builder().epoch(epoch).p2p(P2pPolicy::Lanes(1)).build().unwrap();
                    if call == "ncclCommResume" {
                        world.suspend(far()).unwrap();
                    }
                    if rank.rank == 0 {
                        fail(&machine, call, code);
                    }
                    world.barrier(far()).unwrap();
                    let changed = if call == "ncclCommResume" { world.resume(far()) } else { world.suspend(far()) };
                    let error = changed.unwrap_err();
                    assert_eq!(world.check().unwrap_err().kind().to_string(), error.kind().to_string());
                    error
                });
                let GroupErrorKind::MemberFailed { rank, reason, .. } = errors[0].kind() else { panic!("{}", errors[0]) };
                assert!(reason.contains(call), "{reason}");
                assert!(matches!(errors[1].kind(), GroupErrorKind::MemberFailed { rank: other, .. } if other == rank));
                assert!(wait_for_dropped(far()));
            }
        }
        // Before the members agree, a failure changes nothing.
        let errors = machine.ranks(2, |rank| {
            let world = rank.builder().epoch(99).build().unwrap();
            if rank.rank == 0 {
                fail(&machine, "ncclCommMemStats", 5);
            }
            world.barrier(far()).unwrap();
            let error = world.suspend(far()).unwrap_err();
            assert_eq!(sum(&rank, &world), 2.0);
            world.destroy(far()).unwrap();
            error
        });
        let failed = |error: &&GroupError| matches!(error.kind(), GroupErrorKind::Comm(CommError::Nccl { call: "ncclCommMemStats", .. }));
        let unmade = |error: &&GroupError| matches!(error.kind(), GroupErrorKind::Unmade { .. });
        assert_eq!((errors.iter().filter(failed).count(), errors.iter().filter(unmade).count()), (1, 1), "{errors:?}");
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_communicator_of_its_own_is_suspended_by_its_ranks() {
        let machine = machine_with(1, RELEASE);
        machine.ranks(1, |rank| {
            let communicator = rank.communicator();
            let refused = |result: Result<(), CommError>| matches!(result, Err(CommError::NotSuspended { .. }));
            assert!(refused(communicator.resume(far())));
            fail(&machine, "ncclCommSuspend", 5);
            assert!(matches!(communicator.suspend(far()), Err(CommError::Nccl { .. })));
            assert!(!communicator.is_suspended());
            communicator.suspend(far()).unwrap();
            assert!(matches!(communicator.suspend(far()), Err(CommError::Suspended { .. })));
            assert!(matches!(communicator.check(), Err(CommError::Suspended { .. })));
            let memory = super::window::segment(&rank);
            let request = process_group::comm::WindowRequest::symmetric(memory.ptr(), memory.bytes());
            let problem = communicator.check_windows(&[request]).unwrap_err().problem;
            assert!(problem.contains("is suspended"), "{problem}");
            fail(&machine, "ncclCommResume", 5);
            assert!(matches!(communicator.resume(far()), Err(CommError::Nccl { .. })));
            communicator.resume(far()).unwrap();
            communicator.check().unwrap();
            communicator.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn releases_that_do_not_suspend_say_so_before_any_call() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            for result in [world.suspend(far()), world.resume(far())] {
                let error = result.unwrap_err();
                let is_missing = matches!(error.kind(), GroupErrorKind::Comm(CommError::Missing(_)));
                assert!(is_missing && error.to_string().contains("2.29.7"), "{error}");
            }
            assert_eq!(sum(&rank, &world), 2.0);
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn graphs_are_valid_again_after_resuming() {
        let machine = machine_with(2, RELEASE);
        machine.ranks(2, |rank| {
            let (world, stream, memory) = (rank.world(), rank.stream(), rank.memory(&[1.0]));
            let one = Buffer::new(memory.ptr(), 1, F32);
            let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
            unsafe { world.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap();
            let graph = capture.end().unwrap().instantiate().unwrap();
            for expected in [2.0, 4.0] {
                world.suspend(far()).unwrap();
                world.resume(far()).unwrap();
                stream.launch(&graph).unwrap();
                stream.synchronize().unwrap();
                assert_eq!(values(&memory), [expected]);
            }
            drop(graph);
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_suspended_group_shrinks_over_the_store() {
        let machine = machine_with(3, RELEASE);
        machine.ranks(3, |rank| {
            let world = rank.world();
            world.suspend(far()).unwrap();
            if rank.rank == 2 {
                rank.store.wait(&["over"], far()).unwrap();
                return world.abort(far()).unwrap();
            }
            let rest = world.shrink(&[2], ShrinkMode::Orderly).unwrap();
            assert_eq!(rest.startup().making.unwrap().origin, Origin::UniqueId);
            assert_eq!(sum(&rank, &rest), 2.0);
            rest.destroy(far()).unwrap();
            rank.store.set("over", b"").unwrap();
            world.abort(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    /// The same calls on all members, in any order.
    #[test]
    fn any_order_of_calls_does_what_a_switch_would_do() {
        let programs = vec(select(vec!['s', 'r', 'a']), 1..9);
        let mut runner = TestRunner::new(Config { cases: 12, failure_persistence: None, ..Config::default() });
        let tried = runner.run(&programs, |program| {
            let machine = machine_with(2, RELEASE);
            machine.ranks(2, |rank| {
                let world = rank.world();
                let mut suspended = false;
                for call in &program {
                    match (call, suspended) {
                        ('s', false) => world.suspend(far()).unwrap(),
                        ('s', true) => assert!(is_suspended(world.suspend(far()))),
                        ('r', true) => world.resume(far()).unwrap(),
                        ('r', false) => drop(world.resume(far()).unwrap_err()),
                        (_, true) => assert!(is_suspended(reduce(&rank, &world))),
                        (_, false) => assert_eq!(sum(&rank, &world), 2.0),
                    }
                    suspended = if *call == 'a' { suspended } else { *call == 's' };
                    assert_eq!(world.is_suspended(), suspended);
                }
                world.destroy(far()).unwrap();
            });
            machine.world.finish().unwrap();
            Ok(())
        });
        tried.unwrap();
    }

    /// A panic between suspension and resumption drops the group of one rank, and that ends the group of the other.
    #[test]
    fn a_suspended_group_that_a_panic_drops_is_freed_once() {
        for policy in [P2pPolicy::Shared, P2pPolicy::Lanes(1)] {
            let machine = machine_with(2, RELEASE);
            let held = machine.ranks(2, |rank| {
                let before = free(&rank);
                let world = rank.builder().p2p(policy).build().unwrap();
                assert_eq!(sum(&rank, &world), 2.0);
                world.suspend(far()).unwrap();
                world.barrier(far()).unwrap();
                let is_first = rank.rank == 0;
                let ended = catch_unwind(AssertUnwindSafe(move || {
                    assert!(!is_first, "on purpose");
                    world.resume(far()).unwrap();
                }));
                ended.unwrap_err();
                assert!(wait_for_dropped(far()));
                before
            });
            let communicators = if policy == P2pPolicy::Shared { 2 } else { 4 };
            assert_eq!(machine.world.calls("ncclCommAbort"), communicators);
            assert_eq!(machine.world.calls("ncclCommDestroy"), 0);
            for (device, before) in held.into_iter().enumerate() {
                assert_eq!(machine.context(device).memory_info().unwrap().0 as u64, before);
            }
            machine.world.finish().unwrap();
        }
    }

    #[test]
    fn an_abort_ends_a_suspension_that_another_member_does_not_join() {
        let machine = machine_with(2, RELEASE);
        machine.ranks(2, |rank| {
            let world = rank.world();
            if rank.rank == 1 {
                rank.store.wait(&["over"], far()).unwrap();
                return world.abort(far()).unwrap();
            }
            let handle = world.abort_handle();
            thread::scope(|scope| {
                let suspend = scope.spawn(|| world.suspend(far()).unwrap_err());
                thread::sleep(Duration::from_millis(50));
                handle.abort(far()).unwrap();
                let error = suspend.join().unwrap();
                assert!(matches!(error.kind(), GroupErrorKind::Comm(CommError::Closed { .. })), "{error}");
            });
            rank.store.set("over", b"").unwrap();
            world.abort(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }
}

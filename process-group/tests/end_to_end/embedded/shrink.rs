//! Communicators that go on without some of their ranks: shrink, revoke, and memory statistics.

use std::time::Duration;

use gpu_sim::{Action, Injection};
use process_group::{
    comm::{
        AbortHandle, ArgumentError, CommError, Communicator, DataType::F32, ReduceOp, ShrinkMode,
        WindowRequest, wait_for_dropped,
    },
    store::Store,
};
use rusty_fork::rusty_fork_test;

use super::common::{Rank, far, machine, machine_with, soon, values};

/// Returns the sum over the communicator of 1 from each rank.
fn sum(rank: &Rank, communicator: &Communicator) -> f32 {
    let (stream, memory) = (rank.stream(), rank.memory(&[1.0; 4]));
    let (at, sum) = (memory.ptr(), ReduceOp::Sum);
    unsafe { communicator.all_reduce(at, at, 4, F32, sum, &stream) }.unwrap();
    stream.synchronize().unwrap();
    values(&memory)[0]
}

rusty_fork_test! {
    #[test]
    fn survivors_go_on_beside_the_whole() {
        let machine = machine(4);
        machine.ranks(4, |rank| {
            let whole = rank.communicator();
            let survives = ![1, 3].contains(&rank.rank);
            if survives {
                let rest = whole.shrink(&[3, 1], ShrinkMode::Orderly, &rank.config(), far()).unwrap();
                assert_eq!((rest.rank(), rest.size()), (rank.rank / 2, 2));
                assert_eq!(sum(&rank, &rest), 2.0);
                rest.destroy(far()).unwrap();
            }
            assert_eq!(sum(&rank, &whole), 4.0);
            whole.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn after_a_failure_work_is_given_up_and_the_rest_goes_on() {
        let machine = machine(3);
        machine.ranks(3, |rank| {
            let whole = rank.communicator();
            if rank.rank == 1 {
                // Never comes to the sum, as if it had died.
                rank.store.wait(&["over/0", "over/2"], far()).unwrap();
                return whole.abort(far()).unwrap();
            }
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0; 4]));
            let (at, op) = (memory.ptr(), ReduceOp::Sum);
            unsafe { whole.all_reduce(at, at, 4, F32, op, &stream) }.unwrap();
            let rest = whole.shrink(&[1], ShrinkMode::AfterFailure, &rank.config(), far()).unwrap();
            assert_eq!(sum(&rank, &rest), 2.0);
            // The work was given up; the device is unaffected.
            stream.synchronize().unwrap();
            let error = unsafe { whole.all_reduce(at, at, 4, F32, op, &stream) }.unwrap_err();
            assert!(matches!(error, CommError::Poisoned { .. }), "{error}");
            whole.abort(far()).unwrap();
            rest.destroy(far()).unwrap();
            rank.store.set(&format!("over/{}", rank.rank), b"").unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_revoked_communicator_takes_no_work_and_has_children() {
        let machine = machine(3);
        machine.ranks(3, |rank| {
            let whole = rank.communicator();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0; 4]));
            let (at, op) = (memory.ptr(), ReduceOp::Sum);
            let reduce = || unsafe { whole.all_reduce(at, at, 4, F32, op, &stream) };
            if rank.rank != 1 {
                reduce().unwrap();
            }
            whole.revoke(far()).unwrap();
            stream.synchronize().unwrap();
            let segment = super::window::segment(&rank);
            let request = WindowRequest::symmetric(segment.ptr(), segment.bytes());
            let refused = [
                reduce().unwrap_err(),
                whole.revoke(far()).unwrap_err(),
                unsafe { whole.register_windows(&[request], far()) }.unwrap_err(),
            ];
            assert!(refused.iter().all(|error| matches!(error, CommError::Revoked { .. })), "{refused:?}");
            whole.check().unwrap();
            let half = whole.split(Some(rank.rank as u32 / 2), 0, &rank.config(), far()).unwrap().unwrap();
            assert_eq!(sum(&rank, &half), [2.0, 2.0, 1.0][rank.rank]);
            half.destroy(far()).unwrap();
            if rank.rank != 2 {
                let rest = whole.shrink(&[2], ShrinkMode::Orderly, &rank.config(), far()).unwrap();
                assert_eq!(sum(&rank, &rest), 2.0);
                rest.destroy(far()).unwrap();
            }
            whole.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn releases_without_them_say_so() {
        let machine = machine_with(1, 22602);
        let communicator = machine.ranks(1, |rank| rank.communicator()).pop().unwrap();
        let errors = [
            communicator.revoke(far()).unwrap_err(),
            communicator.memory_statistics(far()).unwrap_err(),
            communicator.shrink(&[1], ShrinkMode::Orderly, communicator.config(), far()).unwrap_err(),
        ];
        assert!(errors.iter().all(|error| matches!(error, CommError::Missing(_))), "{errors:?}");
        communicator.destroy(far()).unwrap();
        machine.world.finish().unwrap();
    }

    #[test]
    fn who_cannot_be_left_out_is_said() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let whole = rank.communicator();
            let other = 1 - rank.rank;
            for (excluded, problem) in [
                (vec![], "that is nobody"),
                (vec![2], "not all of them are its ranks"),
                (vec![other, other], "a rank is named twice"),
                (vec![rank.rank], "this rank is among them"),
            ] {
                let error = whole.shrink(&excluded, ShrinkMode::Orderly, &rank.config(), far()).unwrap_err();
                assert!(
                    matches!(&error, CommError::Argument(ArgumentError::Excluded { problem: found, .. }) if *found == problem),
                    "{error}"
                );
            }
            assert_eq!(machine.world.calls("ncclCommShrink"), 0);
            assert_eq!(sum(&rank, &whole), 2.0);
            whole.destroy(far()).unwrap();
        });
    }

    #[test]
    fn each_of_them_can_fail() {
        let machine = machine_with(2, 22907);
        let fail = |name: &str| machine.world.faults().inject(Injection::new(name, Action::Fail(3))).unwrap();
        let failed = |error: CommError, name: &str| {
            assert!(matches!(error, CommError::Nccl { call, .. } if call == name), "{error}");
        };
        machine.ranks(2, |rank| {
            let (first, second) = (rank.communicator(), rank.communicator_named("second"));
            if rank.rank == 0 {
                fail("ncclCommMemStats");
                failed(first.memory_statistics(far()).unwrap_err(), "ncclCommMemStats");
                fail("ncclCommRevoke");
                failed(first.revoke(far()).unwrap_err(), "ncclCommRevoke");
                assert!(matches!(first.check(), Err(CommError::Poisoned { .. })));
                fail("ncclCommShrink");
                let shrunk = second.shrink(&[1], ShrinkMode::AfterFailure, &rank.config(), far());
                failed(shrunk.unwrap_err(), "ncclCommShrink");
                assert!(matches!(second.check(), Err(CommError::Poisoned { .. })));
            }
            first.abort(far()).unwrap();
            second.abort(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_shrink_that_another_does_not_join_ends_with_the_deadline_or_an_abort() {
        let machine = machine(3);
        machine.ranks(3, |rank| {
            let whole = rank.communicator();
            let aborter = whole.abort_handle();
            match rank.rank {
                0 => {
                    rank.store.wait(&["aborted"], far()).unwrap();
                    let late = whole.shrink(&[2], ShrinkMode::Orderly, &rank.config(), soon()).unwrap_err();
                    assert!(matches!(late, CommError::DeadlineExceeded { .. }), "{late}");
                    whole.abort(far()).unwrap();
                }
                1 => {
                    std::thread::scope(|scope| {
                        let blocked = scope.spawn(|| {
                            whole.shrink(&[2], ShrinkMode::Orderly, &rank.config(), far()).unwrap_err()
                        });
                        while machine.world.calls("ncclCommShrink") == 0 {
                            std::thread::yield_now();
                        }
                        aborter.abort(far()).unwrap();
                        let error = blocked.join().unwrap();
                        let is_ended = matches!(error, CommError::Closed { .. } | CommError::Nccl { .. });
                        assert!(is_ended, "{error}");
                    });
                    rank.store.set("aborted", b"").unwrap();
                }
                _ => whole.abort(far()).unwrap(),
            }
        });
        assert!(wait_for_dropped(far()));
        machine.world.finish().unwrap();
    }

    #[test]
    fn children_whose_making_an_abort_ends_go_with_their_parents() {
        let machine = machine(3);
        machine.ranks(3, |rank| {
            let (first, second) = (rank.communicator(), rank.communicator_named("second"));
            // The others never come.
            if rank.rank == 0 {
                let config = rank.config();
                let split = || first.split(Some(0), 0, &config, far()).map(drop);
                let shrink = || second.shrink(&[2], ShrinkMode::Orderly, &config, far()).map(drop);
                std::thread::scope(|scope| {
                    let blocked = [scope.spawn(split), scope.spawn(shrink)];
                    for call in ["ncclCommSplit", "ncclCommShrink"] {
                        while machine.world.calls(call) == 0 {
                            std::thread::yield_now();
                        }
                    }
                    let handles = [first.abort_handle(), second.abort_handle()];
                    AbortHandle::abort_together(&handles, far()).into_iter().for_each(Result::unwrap);
                    blocked.into_iter().for_each(|call| drop(call.join().unwrap().unwrap_err()));
                });
                assert!(wait_for_dropped(far()));
                assert_eq!(machine.world.calls("ncclCommAbort"), 4, "two parents and two children");
                return rank.store.set("over", b"").unwrap();
            }
            rank.store.wait(&["over"], far()).unwrap();
            first.abort(far()).unwrap();
            second.abort(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_child_that_fails_beside_a_parent_that_goes_on_is_freed_after_it() {
        let machine = machine(3);
        machine.ranks(3, |rank| {
            let whole = rank.communicator();
            if rank.rank == 1 {
                return whole.destroy(far()).unwrap();
            }
            let error = whole.split(Some(0), 0, &rank.config(), far()).unwrap_err();
            assert!(matches!(error, CommError::Nccl { call: "ncclCommSplit", .. }), "{error}");
            // NCCL raises the abort flag of the failed child together with the parent's.
            let rest = whole.shrink(&[1], ShrinkMode::AfterFailure, &rank.config(), far()).unwrap();
            assert_eq!(sum(&rank, &rest), 2.0);
            rest.destroy(far()).unwrap();
            whole.abort(far()).unwrap();
        });
        assert!(wait_for_dropped(far()));
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_child_that_an_abort_of_its_parent_may_have_reached_is_given_to_nobody() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let free = || rank.context.memory_info().unwrap().0;
            let before = free();
            let whole = rank.communicator();
            if rank.rank == 0 {
                // NCCL has made it, and this crate is about to query it.
                let slowly = Action::Delay(Duration::from_secs(2));
                machine.world.faults().inject(Injection::new("ncclCommUserRank", slowly)).unwrap();
                std::thread::scope(|scope| {
                    let shrink =
                        scope.spawn(|| whole.shrink(&[1], ShrinkMode::Orderly, &rank.config(), far()).unwrap_err());
                    while machine.world.calls("ncclCommUserRank") == 0 {
                        std::thread::yield_now();
                    }
                    whole.abort_handle().abort(far()).unwrap();
                    // At once: after the abort, a thread holds the child and aborts it.
                    assert!(wait_for_dropped(far()));
                    assert_eq!(free(), before);
                    let error = shrink.join().unwrap();
                    assert!(matches!(error, CommError::Closed { .. }), "{error}");
                });
                return rank.store.set("over", b"").unwrap();
            }
            rank.store.wait(&["over"], far()).unwrap();
            whole.abort(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_child_that_cannot_be_asked_is_lost_to_nobody() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let whole = rank.communicator();
            if rank.rank == 0 {
                for call in ["ncclCommUserRank", "ncclCommCount"] {
                    machine.world.faults().inject(Injection::new(call, Action::Fail(3))).unwrap();
                    let shrunk = whole.shrink(&[1], ShrinkMode::AfterFailure, &rank.config(), far());
                    let error = shrunk.unwrap_err();
                    assert!(matches!(error, CommError::Nccl { call: failed, .. } if failed == call), "{error}");
                }
            }
            whole.abort(far()).unwrap();
        });
        assert!(wait_for_dropped(far()));
        machine.world.finish().unwrap();
    }

    #[test]
    fn what_a_communicator_holds_is_what_the_device_lacks() {
        let machine = machine_with(2, 22907);
        machine.ranks(2, |rank| {
            let free = || rank.context.memory_info().unwrap().0 as u64;
            let before = free();
            let communicator = rank.communicator();
            let held = communicator.memory_statistics(far()).unwrap();
            assert!(held.persistent > 0 && held.suspendable > 0 && !held.suspended, "{held:?}");
            assert_eq!(held.total, held.persistent + held.suspendable);
            assert_eq!(before - free(), held.total);
            communicator.destroy(far()).unwrap();
            assert_eq!(free(), before);
        });
        machine.world.finish().unwrap();
    }
}

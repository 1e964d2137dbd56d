//! Abort: out of any call that a rank is blocked in, by release, from any thread.

use std::{
    hint,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use gpu_sim::{Action, Injection};
use process_group::comm::{
    AbortHandle, CommError, Communicator, DataType::F32, Group, ReduceOp, WindowRequest, set_drop_error_hook,
    wait_for_dropped,
};
use process_group::{
    group::{Buffer, GroupErrorKind},
    store::{Deadline, Store},
};
use rusty_fork::rusty_fork_test;

use super::common::{faithful, far, machine, soon};

/// Runs `meanwhile` during an abort that takes `time`. A further abort then returns when the communicator is freed.
fn beside_a_slow_abort(time: Duration, meanwhile: impl Fn(&AbortHandle) + Sync) {
    let machine = machine(1);
    machine.ranks(1, |rank| {
        let communicator = rank.communicator();
        let handle = communicator.abort_handle();
        machine.world.faults().inject(Injection::new("ncclGroupStart", Action::Delay(time))).unwrap();
        let freed = machine.world.calls("ncclGroupEnd");
        thread::scope(|scope| {
            let first = scope.spawn(|| handle.abort(far()));
            while communicator.check().is_ok() {
                thread::yield_now();
            }
            meanwhile(&handle);
            handle.abort(far()).unwrap();
            assert_eq!(machine.world.calls("ncclGroupEnd"), freed + 1);
            first.join().unwrap().unwrap();
        });
        let error = communicator.check().unwrap_err();
        assert!(matches!(&error, CommError::Closed { how, .. } if how == "aborted"), "{error}");
    });
    machine.world.finish().unwrap();
}

rusty_fork_test! {
    #[test]
    fn a_blocked_registration_is_freed() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let communicator = rank.communicator();
            let handle = communicator.abort_handle();
            let memory = super::window::segment(&rank);
            let request = WindowRequest::symmetric(memory.ptr(), memory.bytes());
            if rank.rank == 0 {
                thread::scope(|scope| {
                    let blocked = scope.spawn(|| unsafe { communicator.register_windows(&[request], far()) });
                    while machine.world.calls("ncclCommWindowRegister") == 0 {
                        thread::yield_now();
                    }
                    handle.abort(far()).unwrap();
                    blocked.join().unwrap().unwrap_err();
                });
                rank.store.set("aborted", b"").unwrap();
            } else {
                rank.store.wait(&["aborted"], far()).unwrap();
                handle.abort(far()).unwrap();
            }
            handle.abort(far()).unwrap();
            assert!(matches!(communicator.check(), Err(CommError::Closed { .. })));
            assert!(matches!(communicator.async_error(), Err(CommError::Closed { .. })));
        });
        assert_eq!(machine.world.calls("ncclCommAbort"), 2);
        machine.world.finish().unwrap();
    }

    #[test]
    fn work_that_waits_for_a_peer_gives_up() {
        let machine = faithful(2, 22809);
        machine.ranks(2, |rank| {
            let communicator = rank.communicator();
            let (stream, memory) = (rank.stream(), rank.memory(&[0.0; 4]));
            if rank.rank == 0 {
                unsafe {
                    communicator.all_reduce(memory.ptr(), memory.ptr(), 4, F32, ReduceOp::Sum, &stream).unwrap();
                }
            }
            communicator.abort(far()).unwrap();
            let _ = stream.synchronize();
        });
    }

    #[test]
    fn who_waits_for_work_or_at_a_meeting_of_a_group_is_told_of_its_abort() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            let aborter = world.abort_handle();
            let (stream, memory) = (rank.stream(), rank.memory(&[0.0; 4]));
            let buffer = Buffer::new(memory.ptr(), 4, F32);
            if rank.rank == 1 {
                rank.store.wait(&["aborted"], far()).unwrap();
                let error = world.barrier(far()).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Left { rank: 0, how, .. } if how == "aborted"), "{error}");
                return world.abort(far()).unwrap();
            }
            let work = unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap();
            thread::scope(|scope| {
                let waits = [
                    (scope.spawn(|| work.wait_until(far())), "all_reduce (number 1)"),
                    (scope.spawn(|| world.barrier(far())), "barrier"),
                ];
                rank.store.wait(&["process-group/world/0/barrier/0/records/count"], far()).unwrap();
                aborter.abort(far()).unwrap();
                for (wait, operation) in waits {
                    let error = wait.join().unwrap().unwrap_err();
                    assert!(matches!(error.kind(), GroupErrorKind::Comm(CommError::Closed { .. })), "{error}");
                    let expected = format!("world: {operation}: the group (rank 0 of 2) is gone, aborted");
                    assert_eq!(error.to_string(), expected);
                }
            });
            let _ = stream.synchronize();
            rank.store.set("aborted", b"").unwrap();
        });
    }

    /// The communicator has no handle yet when it is given up. The abort waits for the handle, or the call
    /// would never return.
    #[test]
    fn a_communicator_that_nccl_has_only_begun_to_make_is_aborted_too() {
        let machine = machine(2);
        let told: &'static Mutex<Vec<String>> = Box::leak(Box::default());
        set_drop_error_hook(|error| told.lock().unwrap().push(error.to_string()));
        let late = Action::Delay(Duration::from_millis(300));
        machine.world.faults().inject(Injection::new("ncclCommInitRankConfig", late)).unwrap();
        machine.ranks(1, |rank| {
            // Until NCCL had begun when the deadline passed. The other rank never comes.
            while machine.world.calls("ncclCommInitRankConfig") == 0 {
                let (id, deadline) = (machine.nccl.unique_id().unwrap(), Deadline::after(Duration::from_millis(50)));
                let made = Communicator::init(&machine.nccl, &rank.context, &id, 0, 2, &rank.config(), deadline);
                assert!(matches!(made, Err(CommError::DeadlineExceeded { .. })), "{made:?}");
            }
        });
        assert!(wait_for_dropped(far()));
        assert_eq!(*told.lock().unwrap(), [""; 0]);
        machine.world.finish().unwrap();
    }

    /// An abort may come at any time: here as soon as the destruction has closed the communicator.
    #[test]
    fn an_abort_lets_go_of_who_waits_for_a_destruction_that_is_blocked() {
        const ROUNDS: u32 = 40;
        let machine = machine(1);
        let hang = Duration::from_secs(60);
        set_drop_error_hook(|_| ());
        machine.ranks(1, |rank| {
            for round in 0..ROUNDS {
                let communicator = rank.communicator_named(&round.to_string());
                let handle = communicator.abort_handle();
                machine.world.faults().inject(Injection::new("ncclCommDestroy", Action::Delay(hang))).unwrap();
                let begun = Instant::now();
                let (destroyed, aborted) = thread::scope(|scope| {
                    let abort = scope.spawn(|| {
                        while handle.async_error().is_ok() {
                            hint::spin_loop();
                        }
                        handle.abort(Deadline::now())
                    });
                    (communicator.destroy(far()), abort.join().unwrap())
                });
                let error = destroyed.unwrap_err();
                assert!(matches!(&error, CommError::Leaked { why, .. } if why.contains("aborted")), "{error}");
                assert!(begun.elapsed() < hang, "round {round} waited until the call returned");
                // NCCL frees the communicator in that call. A second call that frees it would be a double
                // free.
                assert!(matches!(aborted, Ok(()) | Err(CommError::Leaked { .. })), "{aborted:?}");
                assert_eq!(machine.world.calls("ncclCommAbort"), 0);
            }
        });
    }

    /// The caller does not wait long enough. The destruction goes on.
    #[test]
    fn a_destruction_that_succeeds_late_is_known() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let communicator = rank.communicator();
            let handle = communicator.abort_handle();
            let late = Action::Delay(Duration::from_secs(1));
            machine.world.faults().inject(Injection::new("ncclCommDestroy", late)).unwrap();
            let error = communicator.destroy(soon()).unwrap_err();
            assert!(matches!(&error, CommError::Leaked { .. }), "{error}");
            let patience = far();
            loop {
                match handle.async_error() {
                    Err(CommError::Closed { how, .. }) if how == "destroyed" => break,
                    found => assert!(!patience.expired(), "{found:?}"),
                }
                thread::yield_now();
            }
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn several_communicators_go_together() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let first = rank.communicator();
            let second = first.split(Some(0), 0, &rank.config(), far()).unwrap().unwrap();
            let handles = [first.abort_handle(), second.abort_handle()];
            for result in AbortHandle::abort_together(&handles, far()) {
                result.unwrap();
            }
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn all_flags_rise_before_the_first_is_freed() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let communicators: Vec<_> = ["a", "b", "c"].map(|name| rank.communicator_named(name)).into();
            let handles: Vec<_> = communicators.iter().map(Communicator::abort_handle).collect();
            if rank.rank == 1 {
                rank.store.set("made", b"").unwrap();
                rank.store.wait(&["over"], far()).unwrap();
                return AbortHandle::abort_together(&handles, far()).into_iter().for_each(Result::unwrap);
            }
            rank.store.wait(&["made"], far()).unwrap();
            let late = Injection::new("ncclGroupStart", Action::Delay(Duration::from_millis(100))).nth(2);
            machine.world.faults().inject(late).unwrap();
            let freed = machine.world.calls("ncclGroupEnd");
            thread::scope(|scope| {
                let abort = scope.spawn(|| AbortHandle::abort_together(&handles, far()));
                while machine.world.calls("ncclGroupEnd") == freed {
                    thread::yield_now();
                }
                assert_eq!(machine.world.calls("ncclCommAbort"), 3);
                abort.join().unwrap().into_iter().for_each(Result::unwrap);
            });
            rank.store.set("over", b"").unwrap();
        });
        machine.world.finish().unwrap();
    }

    /// Otherwise a program could exit after its abort while NCCL still frees the communicator, which crashes.
    #[test]
    fn a_second_abort_waits_until_the_first_has_freed_the_communicator() {
        beside_a_slow_abort(Duration::from_millis(300), |_| ());
    }

    #[test]
    fn an_abort_that_stops_waiting_for_another_does_not_end_the_wait_of_the_next() {
        beside_a_slow_abort(Duration::from_secs(2), |handle| {
            let error = handle.abort(Deadline::now()).unwrap_err();
            assert!(matches!(error, CommError::Leaked { .. }), "{error}");
        });
    }

    #[test]
    fn nothing_is_freed_while_a_group_is_open() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let communicator = rank.communicator();
            let (stream, memory) = (rank.stream(), rank.memory(&[0.0; 4]));
            let handle = communicator.abort_handle();
            let group = Group::begin(communicator.nccl()).unwrap();
            unsafe { communicator.all_reduce(memory.ptr(), memory.ptr(), 4, F32, ReduceOp::Sum, &stream).unwrap() };
            thread::scope(|scope| {
                let abort = scope.spawn(|| handle.abort(far()));
                while communicator.check().is_ok() {
                    thread::yield_now();
                }
                let _ = group.finish();
                abort.join().unwrap().unwrap();
            });
            let _ = stream.synchronize();
        });
    }

    #[test]
    fn a_member_that_fails_leaves_the_other_a_deadline_and_both_an_abort() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let communicator = rank.communicator();
            let memory = super::window::segment(&rank);
            let request = WindowRequest::symmetric(memory.ptr(), memory.bytes());
            if rank.rank == 0 {
                let fault = Injection::new("ncclCommWindowRegister", Action::Fail(1));
                machine.world.faults().inject(fault).unwrap();
                let error = unsafe { communicator.register_windows(&[request], far()) }.unwrap_err();
                assert!(matches!(error, CommError::Nccl { call: "ncclCommWindowRegister", .. }), "{error}");
                // Only afterwards, so that the fault hits this rank.
                rank.store.set("failed", b"").unwrap();
            } else {
                rank.store.wait(&["failed"], far()).unwrap();
                let error = unsafe { communicator.register_windows(&[request], soon()) }.unwrap_err();
                assert!(matches!(error, CommError::DeadlineExceeded { .. }), "{error}");
            }
            assert!(matches!(communicator.check(), Err(CommError::Poisoned { .. })));
            communicator.abort(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn before_2_22_a_blocked_communicator_is_leaked_and_said_so() {
        let machine = faithful(2, 22105);
        machine.ranks(2, |rank| {
            let communicator = rank.communicator();
            let handle = communicator.abort_handle();
            if rank.rank == 1 {
                return communicator.abort(far()).unwrap();
            }
            // Blocked in a split that the other never joins.
            thread::scope(|scope| {
                let blocked = scope.spawn(|| communicator.split(Some(0), 0, &rank.config(), soon()));
                let error = blocked.join().unwrap().unwrap_err();
                assert!(matches!(error, CommError::DeadlineExceeded { .. }), "{error}");
                let error = handle.abort(soon()).unwrap_err();
                assert!(matches!(error, CommError::Leaked { .. }), "{error}");
                assert!(error.to_string().contains("ncclCommSplit did not return"), "{error}");
            });
        });
        assert!(wait_for_dropped(far()));
    }
}

//! Errors that no call returns: asynchronous errors of communicators, and the driver's errors when work is
//! queried.

use std::{
    collections::BTreeMap,
    sync::{Arc, Barrier},
    thread,
    time::Duration,
};

use cuda_driver::Stream;
use gpu_sim::{Action, Injection};
use process_group::{
    ProcessGroup,
    comm::{DataType::F32, ReduceOp, set_drop_error_hook, wait_for_dropped},
    group::{Buffer, GroupError, GroupErrorKind, Work},
    store::Store,
};
use rusty_fork::rusty_fork_test;

use super::common::{Machine, Rank, far, hold, machine};
use super::hooked::Hooked;

/// Waits until the group is over, without a call of the library or of the driver.
pub(super) fn until_over(group: &ProcessGroup) -> GroupError {
    let patience = far();
    loop {
        match group.standing() {
            Err(error) => return error,
            Ok(()) => assert!(!patience.expired(), "the group goes on"),
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Enqueues an all-reduce on rank 0 and a broadcast on the other ranks.
pub(super) fn call_differently(rank: &Rank, group: &ProcessGroup, all: Buffer, stream: &Stream) -> Work {
    // SAFETY: the memory lives until the test has waited for the work or synchronized the stream.
    let work = unsafe {
        match rank.rank {
            0 => group.raw().all_reduce(all, all, ReduceOp::Sum, stream),
            _ => group.raw().broadcast(all, 0, stream),
        }
    };
    work.unwrap()
}

/// Calls of the driver and of NCCL so far.
fn calls(machine: &Machine) -> BTreeMap<String, u64> {
    machine.world.faults().all_calls().into_iter().collect()
}

rusty_fork_test! {
    /// The device completes mismatched calls with undefined results. Neither rank may report them as done.
    #[test]
    fn calls_that_differ_are_told_before_any_of_them_is_taken_for_done() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0; 4]));
            let all = Buffer::new(memory.ptr(), 4, F32);
            unsafe { world.raw().all_reduce(all, all, ReduceOp::Sum, &stream) }.unwrap().wait_until(far()).unwrap();
            let work = call_differently(&rank, &world, all, &stream);
            let asked = loop {
                match work.is_completed() {
                    Ok(done) => assert!(!done, "rank {} takes it for done", rank.rank),
                    Err(error) => break error,
                }
                thread::sleep(Duration::from_micros(100));
            };
            // Right away it is the communicator's error, or already its cause.
            assert!(matches!(asked.kind(), GroupErrorKind::Comm(_) | GroupErrorKind::CollectiveDiverged { .. }), "{asked}");
            for error in [work.wait_until(far()).unwrap_err(), world.quiesce(far()).unwrap_err(), world.check().unwrap_err()] {
                let GroupErrorKind::CollectiveDiverged { divergence, .. } = error.kind() else { panic!("{error}") };
                assert_eq!((&divergence.ranks[..], divergence.after, divergence.by), (&[0, 1][..], 1, 2), "{error}");
                let calls: Vec<_> = divergence.calls.iter().map(|call| call.call.as_str()).collect();
                assert_eq!(calls, ["all_reduce of 4 f32 by sum", "broadcast of 4 f32 with root 0"]);
            }
            world.abort(far()).unwrap();
            let _ = stream.synchronize();
        });
    }

    /// The store is slow when the members publish their calls. No rank is blamed before the calls are known.
    #[test]
    fn nobody_is_blamed_while_calls_are_compared() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let slow = |call: &'static str, key: &str| {
                if call == "set" && key.contains("testimony/") {
                    thread::sleep(Duration::from_secs(1));
                }
                Ok(())
            };
            let builder = rank.builder().store(Arc::new(Hooked::new(&rank.store, slow)));
            let world = builder.heartbeat(Duration::from_secs(10)).build().unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0; 4]));
            let all = Buffer::new(memory.ptr(), 4, F32);
            let work = call_differently(&rank, &world, all, &stream);
            let error = work.wait_until(far()).unwrap_err();
            assert!(matches!(error.kind(), GroupErrorKind::CollectiveDiverged { .. }), "{error}");
            world.abort(far()).unwrap();
            let _ = stream.synchronize();
        });
    }

    /// One of five members makes a different call. The other four make equal calls.
    #[test]
    fn the_member_whose_calls_differ_is_named_and_not_those_whom_it_failed() {
        let machine = machine(5);
        machine.ranks(5, |rank| {
            let world = rank.world();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0; 8]));
            let part = Buffer::new(memory.ptr(), if rank.rank == 3 { 4 } else { 8 }, F32);
            let work = unsafe { world.raw().all_reduce(part, part, ReduceOp::Sum, &stream) }.unwrap();
            let error = work.wait_until(far()).unwrap_err();
            let GroupErrorKind::CollectiveDiverged { divergence, .. } = error.kind() else { panic!("{error}") };
            assert_eq!((&divergence.ranks[..], divergence.by), (&[3][..], 1), "{error}");
            world.abort(far()).unwrap();
            let _ = stream.synchronize();
        });
    }

    /// The work itself is done, and looks so. The members have made the same calls.
    #[test]
    fn work_of_a_communicator_that_has_failed_is_not_ok() {
        let machine = machine(2);
        let (enqueued, failing) = (Barrier::new(2), Barrier::new(2));
        machine.ranks(2, |rank| {
            let world = rank.builder().heartbeat(Duration::from_millis(200)).build().unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
            let one = Buffer::new(memory.ptr(), 1, F32);
            let work = unsafe { world.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap();
            stream.synchronize().unwrap();
            if enqueued.wait().is_leader() {
                machine.world.faults().inject(Injection::new("ncclCommGetAsyncError", Action::Fail(3)).forever()).unwrap();
            }
            failing.wait();
            let error = work.wait_until(far()).unwrap_err();
            let GroupErrorKind::MemberFailed { reason, .. } = error.kind() else { panic!("{error}") };
            assert!(reason.contains("ncclCommGetAsyncError"), "{error}");
            world.abort(far()).unwrap();
        });
    }

    /// Also if no thread waits for the work, long before its time-out, and on the other members.
    #[test]
    fn a_driver_that_does_not_say_how_far_work_is_ends_the_group() {
        let machine = machine(2);
        for code in [700, 719] {
            machine.ranks(2, |rank| {
                let builder = rank.builder().epoch(u64::from(code)).work_timeout(Duration::from_secs(3600));
                let world = builder.build().unwrap();
                let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
                let one = Buffer::new(memory.ptr(), 1, F32);
                let open = hold(&stream);
                let work = unsafe { world.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap();
                world.barrier(far()).unwrap();
                if rank.rank == 0 {
                    machine.world.faults().inject(Injection::new("cuEventQuery", Action::Fail(code)).nth(1)).unwrap();
                }
                let error = until_over(&world);
                let GroupErrorKind::MemberFailed { reason, .. } = error.kind() else { panic!("{error}") };
                assert!(reason.contains("cuEventQuery") && reason.contains(&code.to_string()), "{error}");
                assert!(work.wait_until(far()).is_err());
                drop(open);
                world.abort(far()).unwrap();
                let _ = stream.synchronize();
            });
        }
    }

    #[test]
    fn who_waits_is_told_what_the_driver_said() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let world = rank.world();
            let stream = rank.stream();
            let open = hold(&stream);
            let work = world.track_graph_launch(&stream).unwrap();
            machine.world.faults().inject(Injection::new("cuEventQuery", Action::Fail(700)).forever()).unwrap();
            let error = work.wait_until(far()).unwrap_err();
            assert!(matches!(error.kind(), GroupErrorKind::Driver(_)), "{error}");
            machine.world.faults().clear();
            let error = world.check().unwrap_err();
            assert!(matches!(error.kind(), GroupErrorKind::MemberFailed { rank: 0, .. }), "{error}");
            drop(open);
            stream.synchronize().unwrap();
            world.abort(far()).unwrap();
        });
    }

    /// Each call of the watchdog fails in turn. Each failure ends the group, and the error names the call.
    #[test]
    fn whatever_the_watchdog_asks_for_in_vain_ends_the_group() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let group = |epoch| {
                let world = rank.builder().epoch(epoch).heartbeat(Duration::from_millis(100)).build().unwrap();
                let stream = rank.stream();
                let open = hold(&stream);
                world.track_graph_launch(&stream).unwrap();
                (world, stream, open)
            };
            let (world, stream, open) = group(0);
            let before = calls(&machine);
            let looks = || calls(&machine).get("cuEventQuery").copied().unwrap_or(0);
            let begun = looks();
            while looks() < begun + 3 {
                thread::sleep(Duration::from_millis(5));
            }
            let new = |(name, count): (String, u64)| (before.get(&name).unwrap_or(&0) < &count).then_some(name);
            let names: Vec<String> = calls(&machine).into_iter().filter_map(new).collect();
            drop(open);
            stream.synchronize().unwrap();
            world.destroy(far()).unwrap();
            assert!(names.len() >= 3, "{names:?}");
            for (epoch, name) in (1..).zip(&names) {
                let (world, stream, open) = group(epoch);
                // A number that is an error of both libraries.
                machine.world.faults().inject(Injection::new(name, Action::Fail(3)).forever()).unwrap();
                let error = until_over(&world);
                machine.world.faults().clear();
                let GroupErrorKind::MemberFailed { rank: 0, reason, .. } = error.kind() else { panic!("{name}: {error}") };
                assert!(reason.contains(name), "{name}: {error}");
                drop(open);
                stream.synchronize().unwrap();
                world.abort(far()).unwrap();
            }
        });
        assert!(wait_for_dropped(far()));
        machine.world.finish().unwrap();
    }

    /// Each call of an abort fails in turn. The other members are still told.
    #[test]
    fn whatever_fails_in_an_abort_keeps_nobody_waiting() {
        let machine = machine(2);
        set_drop_error_hook(|_| ());
        let attempt = |epoch: u64, fault: Option<(&str, u64)>| {
            let made = machine.ranks(2, |rank| {
                let world = rank.builder().epoch(epoch).build().unwrap();
                if rank.rank == 1 {
                    let error = world.barrier(far()).unwrap_err();
                    assert!(matches!(error.kind(), GroupErrorKind::Left { rank: 0, .. }), "{fault:?}: {error}");
                    return BTreeMap::new();
                }
                let arrived = format!("process-group/world/{epoch}/barrier/0/records/count");
                rank.store.wait(&[&arrived], far()).unwrap();
                let before = calls(&machine);
                if let Some((name, nth)) = fault {
                    machine.world.faults().inject(Injection::new(name, Action::Fail(3)).nth(nth)).unwrap();
                }
                let _ = world.abort_handle().abort(far());
                let new = |(name, count): (String, u64)| {
                    let calls = count - before.get(&name).unwrap_or(&0);
                    (calls > 0).then_some((name, calls))
                };
                calls(&machine).into_iter().filter_map(new).collect()
            });
            machine.world.faults().clear();
            assert!(wait_for_dropped(far()));
            made.into_iter().next().unwrap()
        };
        let all = attempt(0, None);
        let mut epoch = 0;
        for (name, count) in all {
            for nth in 1..=count {
                epoch += 1;
                attempt(epoch, Some((&name, nth)));
            }
        }
        assert!(epoch >= 3, "{epoch} calls were made to fail");
    }
}

//! The callback for groups that end by themselves.

use std::{
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::Duration,
};

use gpu_sim::{Action, Injection};
use process_group::{
    ProcessGroup,
    comm::{DataType::F32, ReduceOp},
    group::{Buffer, GroupError, GroupErrorKind, GroupSettings, Request},
    store::Store,
};
use rusty_fork::rusty_fork_test;

use super::common::{Rank, faithful, far, machine};

/// Longer than a callback takes to be called.
const MOMENT: Duration = Duration::from_millis(300);

/// Returns a callback that sends each error, and the errors.
fn ends() -> (impl Fn(GroupError) + Clone + Send + Sync, Receiver<GroupError>) {
    let (sender, receiver): (Sender<GroupError>, _) = mpsc::channel();
    (move |error| sender.send(error).unwrap(), receiver)
}

fn next(errors: &Receiver<GroupError>) -> GroupError {
    errors.recv_timeout(far().remaining()).unwrap()
}

/// Asserts that no callback comes in a moment, or ever.
fn no_more(errors: &Receiver<GroupError>) {
    match errors.recv_timeout(MOMENT) {
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        Ok(error) => panic!("{error}"),
    }
}

fn pair(rank: &Rank, world: &ProcessGroup, settings: GroupSettings) -> ProcessGroup {
    let pairs = Request::Color { color: Some(rank.rank as u32 / 2), key: 0 };
    world.split_with("pair", &pairs, settings, far()).unwrap().unwrap()
}

/// Enqueues work that one member does not join, or that one member makes differently.
fn every_member_is_told_once(late: bool) {
    let machine = faithful(3, 22809);
    machine.ranks(3, |rank| {
        let (callback, errors) = ends();
        let timeout = Duration::from_millis(if late { 300 } else { 60_000 });
        let builder = rank.builder().work_timeout(timeout).on_end(callback);
        let world = builder.heartbeat(Duration::from_millis(200)).build().unwrap();
        let (stream, memory) = (rank.stream(), rank.memory(&[1.0; 2]));
        let one = Buffer::new(memory.ptr(), 1, F32);
        let all_reduce = |op| unsafe { world.raw().all_reduce(one, one, op, &stream) };
        match (late, rank.rank) {
            (true, 1) => {}
            (false, 1) => drop(all_reduce(ReduceOp::Max)),
            _ => drop(all_reduce(ReduceOp::Sum)),
        }
        let error = next(&errors);
        match error.kind() {
            GroupErrorKind::Overdue { .. } => assert!(late, "{error}"),
            GroupErrorKind::CollectiveDiverged { .. } => assert!(!late, "{error}"),
            other => panic!("{other}"),
        }
        assert_eq!(world.standing().unwrap_err().to_string(), error.to_string());
        // A member that aborts first must not be the reason for another one.
        rank.store.set(&format!("told {}", rank.rank), b"").unwrap();
        rank.store.wait(&["told 0", "told 1", "told 2"], far()).unwrap();
        world.abort(far()).unwrap();
        no_more(&errors);
        let _ = stream.synchronize();
    });
}

rusty_fork_test! {
    #[test]
    fn late_work_is_told_once_on_each_member() {
        every_member_is_told_once(true);
    }

    #[test]
    fn calls_that_differ_are_told_once_on_each_member() {
        every_member_is_told_once(false);
    }

    #[test]
    fn subgroups_inherit_the_callback_or_have_their_own() {
        let machine = faithful(2, 22809);
        machine.ranks(2, |rank| {
            let ((callback, errors), (other, of_other)) = (ends(), ends());
            let builder = rank.builder().heartbeat(Duration::from_millis(200)).on_end(callback);
            let world = builder.build().unwrap();
            let inherits = pair(&rank, &world, GroupSettings::new());
            let own = pair(&rank, &world, GroupSettings::new().on_end(other));
            let panics = pair(&rank, &world, GroupSettings::new().on_end(|error| panic!("{error}")));
            if rank.rank == 0 {
                inherits.fail("a test");
                own.fail("another test");
                panics.fail("a third test");
            }
            let is = |error: &GroupError, name: &str, why: &str| {
                let GroupErrorKind::MemberFailed { rank: 0, reason } = error.kind() else { panic!("{error}") };
                assert_eq!((error.group(), error.operation(), reason.as_str()), (Some(name), None, why));
            };
            is(&next(&errors), "pair[0]", "a test");
            is(&next(&of_other), "pair[0]", "another test");
            while panics.standing().is_ok() {
                thread::sleep(Duration::from_millis(1));
            }
            world.barrier(far()).unwrap();
            no_more(&errors);
            no_more(&of_other);
            for group in [inherits, own, panics] {
                group.abort(far()).unwrap();
            }
            // The group that was split has not ended.
            world.destroy(far()).unwrap();
            no_more(&errors);
        });
    }

    #[test]
    fn an_error_of_nccl_and_a_member_that_leaves_are_told() {
        let machine = faithful(2, 22809);
        machine.ranks(2, |rank| {
            let (callback, errors) = ends();
            let builder = || rank.builder().heartbeat(Duration::from_millis(200)).on_end(callback.clone());
            let world = builder().build().unwrap();
            world.barrier(far()).unwrap();
            if rank.rank == 1 {
                machine.world.faults().inject(Injection::new("ncclCommGetAsyncError", Action::Fail(2))).unwrap();
            }
            let error = next(&errors);
            assert!(matches!(error.kind(), GroupErrorKind::MemberFailed { .. }), "{error}");
            rank.store.set(&format!("told {}", rank.rank), b"").unwrap();
            rank.store.wait(&["told 0", "told 1"], far()).unwrap();
            world.abort(far()).unwrap();
            let second = builder().epoch(1).build().unwrap();
            second.barrier(far()).unwrap();
            if rank.rank == 0 {
                second.abort(far()).unwrap();
            } else {
                let error = next(&errors);
                assert!(matches!(error.kind(), GroupErrorKind::Left { rank: 0, .. }), "{error}");
                drop(second);
            }
            no_more(&errors);
        });
    }

    #[test]
    fn an_orderly_end_and_a_group_that_is_not_made_are_not_told() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let (callback, errors) = ends();
            let world = rank.builder().on_end(callback.clone()).build().unwrap();
            world.barrier(far()).unwrap();
            world.destroy(far()).unwrap();
            let refused = rank.builder().epoch(1).on_end(callback);
            machine.world.faults().inject(Injection::new("ncclCommInitRankConfig", Action::Fail(2))).unwrap();
            refused.build().unwrap_err();
            no_more(&errors);
        });
    }
}

//! Groups that go on without some of their ranks: shrink, revoke, and killed ranks.

use std::{collections::BTreeSet, env, thread, time::Duration};

use process_group::{
    ProcessGroup,
    comm::{CommError, DataType::F32, Group, Origin, ReduceOp, ShrinkMode},
    group::{Buffer, GroupError, GroupErrorKind, P2pPolicy, Request, ShrinkError, Witnesses},
    store::{Deadline, Store, TcpStore},
};
use rustix::process::Signal;
use rusty_fork::rusty_fork_test;

use super::common::{Rank, faithful, far, machine, machine_with, values};
use super::processes::{all_succeed, spawn};

/// Returns the sum over the group of each rank's number in the job plus 1.
fn group_sum(rank: &Rank, group: &ProcessGroup) -> f32 {
    let stream = rank.stream();
    let memory = rank.memory(&[group.global_rank() as f32 + 1.0; 4]);
    let buffer = Buffer::new(memory.ptr(), 4, F32);
    let work = unsafe { group.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }.unwrap();
    work.wait_until(far()).unwrap();
    values(&memory)[0]
}

rusty_fork_test! {
    #[test]
    fn a_group_shrinks_by_nccl_where_that_can_and_over_the_store_where_not() {
        for (release, origin) in
            [(22809, Origin::Shrink(ShrinkMode::Orderly)), (22602, Origin::UniqueId), (21602, Origin::UniqueId)]
        {
            let machine = machine_with(4, release);
            machine.ranks(4, |rank| {
                let world = rank.world();
                assert_eq!(world.startup().making.unwrap().origin, Origin::UniqueId);
                if rank.rank == 1 {
                    rank.store.wait(&["over"], far()).unwrap();
                    return world.abort(far()).unwrap();
                }
                let rest = world.shrink(&[1], ShrinkMode::Orderly).unwrap();
                assert_eq!(rest.global_ranks(), [0, 2, 3]);
                assert_eq!(rest.name(), "world without 1");
                assert!(rest.id() > world.id() && rest.id().epoch == world.id().epoch);
                assert_eq!(group_sum(&rank, &rest), 8.0);
                let startup = rest.startup();
                let making = startup.making.unwrap();
                assert_eq!(making.origin, origin);
                assert!(startup.rendezvous_us > 0.0 && startup.exchange_us > 0.0 && making.nccl_us > 0.0);
                assert!(making.free_memory_difference.unwrap() != 0, "{startup}");
                // A second time.
                if rank.rank != 2 {
                    let two = rest.shrink(&[1], ShrinkMode::Orderly).unwrap();
                    assert_eq!(group_sum(&rank, &two), 5.0);
                    two.destroy(far()).unwrap();
                }
                rest.barrier(far()).unwrap();
                rest.abort(far()).unwrap();
                rank.store.set("over", b"").unwrap();
                world.abort(far()).unwrap();
            });
            machine.world.finish().unwrap();
        }
    }

    #[test]
    fn survivors_who_leave_out_others_are_told_and_may_try_again() {
        let machine = machine(3);
        machine.ranks(3, |rank| {
            let world = rank.world();
            // No rank can go on alone, so none is done before another comes.
            let wrong = [(rank.rank + 1) % 3];
            let error = world.shrink(&wrong, ShrinkMode::AfterFailure).unwrap_err();
            let GroupErrorKind::Shrink { source: ShrinkError::Differ { excluded, other_excluded, .. }, .. } = error.kind()
            else {
                panic!("{error}")
            };
            assert!(excluded != other_excluded);
            if rank.rank == 1 {
                rank.store.wait(&["over"], far()).unwrap();
                return world.abort(far()).unwrap();
            }
            let rest = world.shrink(&[1], ShrinkMode::AfterFailure).unwrap();
            assert_eq!(rest.startup().making.unwrap().origin, Origin::Shrink(ShrinkMode::AfterFailure));
            assert_eq!(group_sum(&rank, &rest), 4.0);
            rest.destroy(far()).unwrap();
            rank.store.set("over", b"").unwrap();
            world.abort(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    /// The rank that notices the end first tries again at once, and the other one still waits in its first attempt.
    #[test]
    fn survivors_meet_although_one_has_failed_to_begin_a_shrink() {
        let machine = machine(3);
        machine.ranks(3, |rank| {
            let world = rank.builder().timeout(Duration::from_secs(10)).build().unwrap();
            let shrink = |mode| world.shrink(&[2], mode);
            let rest = match rank.rank {
                0 => {
                    rank.store.set("begun", b"").unwrap();
                    shrink(ShrinkMode::Orderly).unwrap()
                }
                1 => {
                    while world.check().is_ok() {
                        thread::sleep(Duration::from_millis(1));
                    }
                    let error = shrink(ShrinkMode::Orderly).unwrap_err();
                    assert!(matches!(error.kind(), GroupErrorKind::Left { rank: 2, .. }), "{error}");
                    shrink(ShrinkMode::AfterFailure).unwrap()
                }
                _ => {
                    rank.store.wait(&["begun"], far()).unwrap();
                    thread::sleep(Duration::from_millis(500));
                    return world.abort(far()).unwrap();
                }
            };
            assert_eq!(group_sum(&rank, &rest), 3.0);
            rest.destroy(far()).unwrap();
            world.abort(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    /// The keys of the first agreement are gone when the other members come.
    #[test]
    fn members_that_others_have_left_out_make_no_second_group_of_the_same_attempt() {
        let machine = machine(4);
        machine.ranks(4, |rank| {
            let world = rank.world();
            if rank.rank < 2 {
                let excluded = if rank.rank == 0 { [2, 3] } else { [3, 2] };
                let rest = world.shrink(&excluded, ShrinkMode::Orderly).unwrap();
                assert_eq!(rest.name(), "world without 2, 3");
                assert_eq!(group_sum(&rank, &rest), 3.0);
                rest.destroy(far()).unwrap();
                rank.store.set(&format!("shrunk/{}", rank.rank), b"").unwrap();
                rank.store.wait(&["over/2", "over/3"], far()).unwrap();
                return world.abort(far()).unwrap();
            }
            rank.store.wait(&["shrunk/0", "shrunk/1"], far()).unwrap();
            let error = world.shrink(&[0, 1], ShrinkMode::Orderly).unwrap_err();
            let GroupErrorKind::Shrink { source: ShrinkError::Differ { excluded, other_excluded, .. }, .. } = error.kind()
            else {
                panic!("{error}")
            };
            assert!([excluded, other_excluded].contains(&&vec![2, 3]), "{error}");
            rank.store.set(&format!("over/{}", rank.rank), b"").unwrap();
            // An abort would end the other member's call.
            rank.store.wait(&["over/2", "over/3"], far()).unwrap();
            world.abort(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    /// The others have made an attempt without it: one that succeeded, or one that failed.
    #[test]
    fn a_member_that_was_left_out_takes_part_in_the_next_shrink() {
        for is_made in [true, false] {
            let machine = machine(4);
            machine.ranks(4, |rank| {
                let world = rank.world();
                let settings = || world.communicator().config().clone();
                if is_made && rank.rank != 2 {
                    let rest = world.shrink(&[2], ShrinkMode::Orderly).unwrap();
                    assert_eq!(group_sum(&rank, &rest), 7.0);
                    rest.destroy(far()).unwrap();
                }
                // One after the other, and so not together.
                if !is_made && rank.rank != 2 {
                    if let Some(before) = [None, Some("tried/0"), None, Some("tried/1")][rank.rank] {
                        rank.store.wait(&[before], far()).unwrap();
                    }
                    let deadline = if rank.rank == 0 { Deadline::after(Duration::from_millis(100)) } else { far() };
                    let error = world.shrink_with(&[2], ShrinkMode::Orderly, settings(), deadline).unwrap_err();
                    assert!(matches!(error.kind(), GroupErrorKind::Absent { ranks, .. } if *ranks == [1, 3]), "{error}");
                }
                rank.store.set(&format!("tried/{}", rank.rank), b"").unwrap();
                rank.store.wait(&["tried/0", "tried/1", "tried/2", "tried/3"], far()).unwrap();
                if rank.rank != 3 {
                    let rest = world.shrink(&[3], ShrinkMode::AfterFailure).unwrap();
                    assert_eq!(rest.global_ranks(), [0, 1, 2]);
                    assert_eq!(group_sum(&rank, &rest), 6.0);
                    rest.destroy(far()).unwrap();
                }
                rank.store.set(&format!("over/{}", rank.rank), b"").unwrap();
                rank.store.wait(&["over/0", "over/1", "over/2", "over/3"], far()).unwrap();
                world.abort(far()).unwrap();
            });
            machine.world.finish().unwrap();
        }
    }

    /// The others may take it for dead.
    #[test]
    fn a_member_that_was_left_out_after_a_failure_is_told_once() {
        let machine = machine(3);
        machine.ranks(3, |rank| {
            let world = rank.world();
            let keys: Vec<_> = (0..3).map(|rank| format!("made/{rank}")).collect();
            let keys: Vec<_> = keys.iter().map(String::as_str).collect();
            if rank.rank == 2 {
                rank.store.wait(&keys[..2], far()).unwrap();
                let error = world.shrink(&[1], ShrinkMode::AfterFailure).unwrap_err();
                let GroupErrorKind::Shrink { source: ShrinkError::Differ { excluded, other_excluded, .. }, .. } = error.kind()
                else {
                    panic!("{error}")
                };
                assert_eq!(([excluded, other_excluded]).map(|list| list[..].to_vec()), [vec![2], vec![1]]);
            } else {
                let rest = world.shrink(&[2], ShrinkMode::AfterFailure).unwrap();
                rest.destroy(far()).unwrap();
            }
            rank.store.set(keys[rank.rank], b"").unwrap();
            rank.store.wait(&keys, far()).unwrap();
            if rank.rank != 1 {
                let rest = world.shrink(&[1], ShrinkMode::AfterFailure).unwrap();
                assert_eq!(group_sum(&rank, &rest), 4.0);
                rest.destroy(far()).unwrap();
            }
            rank.store.set(&format!("over/{}", rank.rank), b"").unwrap();
            rank.store.wait(&["over/0", "over/1", "over/2"], far()).unwrap();
            world.abort(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    /// A survivor that read all records before any other record was written must not decide that all agree.
    #[test]
    fn a_survivor_that_does_not_come_is_named() {
        let machine = machine(3);
        machine.ranks(3, |rank| {
            let world = rank.world();
            if rank.rank == 0 {
                let deadline = Deadline::after(Duration::from_millis(300));
                let config = world.communicator().config().clone();
                let late = world.shrink_with(&[1], ShrinkMode::AfterFailure, config, deadline).unwrap_err();
                assert!(matches!(late.kind(), GroupErrorKind::Absent { ranks, .. } if *ranks == [2]), "{late}");
                let myself = world.shrink(&[0], ShrinkMode::Orderly).unwrap_err();
                assert!(matches!(myself.kind(), GroupErrorKind::Argument { .. }), "{myself}");
                rank.store.set("tried", b"").unwrap();
            }
            // In the barrier they would wait for a rank that waits for them.
            rank.store.wait(&["tried"], far()).unwrap();
            world.barrier(far()).unwrap();
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn work_of_a_revoked_group_is_an_error_and_its_members_go_on() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0; 4]));
            let buffer = Buffer::new(memory.ptr(), 4, F32);
            let reduce = || unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) };
            let is_revoked =
                |error: &GroupError| matches!(error.kind(), GroupErrorKind::Comm(CommError::Revoked { .. }));
            let given_up = (rank.rank == 0).then(|| reduce().unwrap());
            world.revoke(far()).unwrap();
            if let Some(work) = given_up {
                let error = work.wait_until(far()).unwrap_err();
                assert!(is_revoked(&error), "{error}");
                let text = error.to_string();
                let expected = "world: all_reduce (number 1): the group (rank 0 of 2) was revoked: ";
                assert!(text.starts_with(expected), "{text}");
            }
            let error = reduce().unwrap_err();
            assert!(is_revoked(&error), "{error}");
            let again = world.split("again", &Request::Color { color: Some(0), key: 0 }).unwrap().unwrap();
            assert_eq!(group_sum(&rank, &again), 3.0);
            again.destroy(far()).unwrap();
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    /// A member that destroys the group first has made fewer calls than one whose work was revoked. That is no reason
    /// to end the group.
    #[test]
    fn a_revoked_group_is_destroyed_after_unequal_calls_whoever_comes_first() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.builder().heartbeat(Duration::from_millis(50)).build().unwrap();
            let other = world.split("other", &Request::Color { color: Some(0), key: 0 }).unwrap().unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0; 4]));
            let buffer = Buffer::new(memory.ptr(), 4, F32);
            let reduce = |group: &ProcessGroup| unsafe { group.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) };
            if rank.rank == 0 {
                reduce(&world).unwrap();
            }
            world.revoke(far()).unwrap();
            if rank.rank == 0 {
                // The notice of the end of `other` comes after that of `world`.
                reduce(&other).unwrap();
                while other.check().is_ok() {
                    thread::sleep(Duration::from_millis(1));
                }
                other.abort(far()).unwrap();
                world.destroy(far()).unwrap();
                let _ = stream.synchronize();
            } else {
                thread::scope(|scope| {
                    let destroying = scope.spawn(|| world.destroy(far()));
                    let is_announced = || rank.store.list_keys().unwrap().iter().any(|key| key.contains("destroy"));
                    while !is_announced() {
                        thread::sleep(Duration::from_millis(1));
                    }
                    other.destroy(far()).unwrap_err();
                    destroying.join().unwrap().unwrap();
                });
            }
        });
        assert!(process_group::comm::wait_for_dropped(far()));
    }

    /// Also messages on communicators of their own.
    #[test]
    fn messages_of_a_revoked_group_are_errors() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.builder().p2p(P2pPolicy::Lanes(1)).build().unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0; 4]));
            let buffer = Buffer::new(memory.ptr(), 4, F32);
            let receive = || unsafe { world.raw().recv(buffer, 1 - rank.rank, &stream) };
            let work = receive().unwrap();
            world.revoke(far()).unwrap();
            stream.synchronize().unwrap();
            for error in [work.wait_until(far()).unwrap_err(), receive().unwrap_err()] {
                assert!(matches!(error.kind(), GroupErrorKind::Comm(CommError::Revoked { .. })), "{error}");
            }
            world.barrier(far()).unwrap();
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn what_cannot_be_revoked_goes_on() {
        let machine = machine(1);
        machine.ranks(1, |rank| {
            let world = rank.builder().lazy().build().unwrap();
            let error = world.revoke(far()).unwrap_err();
            assert!(matches!(error.kind(), GroupErrorKind::Comm(CommError::Unmade { .. })), "{error}");
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0; 4]));
            let buffer = Buffer::new(memory.ptr(), 4, F32);
            let reduce = || unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) };
            reduce().unwrap().wait_until(far()).unwrap();
            {
                let _inside = Group::begin(world.nccl()).unwrap();
                let error = world.revoke(far()).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Comm(CommError::InsideGroup { .. })), "{error}");
            }
            reduce().unwrap().wait_until(far()).unwrap();
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_group_without_revoking_says_so_and_goes_on() {
        let machine = machine_with(1, 22803);
        let world = machine.ranks(1, |rank| rank.world()).pop().unwrap();
        let error = world.revoke(far()).unwrap_err();
        assert!(matches!(error.kind(), GroupErrorKind::Comm(CommError::Missing(_))), "{error}");
        world.check().unwrap();
        world.destroy(far()).unwrap();
        machine.world.finish().unwrap();
    }
}

const RANKS: usize = 8;
const VICTIMS: [usize; 2] = [2, 5];

/// The body of a rank, when it is started by the test below.
#[test]
#[ignore = "the body of a process that a test starts"]
fn one_rank() {
    let witnesses = env::var("PROCESS_GROUP_TEST_SHRINK").expect("a test below starts this process");
    let is_apart = witnesses == "store";
    let machine = faithful(RANKS, 22809);
    let rank = machine.this_rank();
    let me = rank.rank;
    let builder = ProcessGroup::builder().context(&rank.context).nccl(&machine.nccl);
    let witnesses = if is_apart { Witnesses::Store } else { Witnesses::Kernel };
    let world = builder.witnesses(witnesses).timeout(Duration::from_secs(60)).build().unwrap();
    assert_eq!(group_sum(&rank, &world), 36.0);
    world.barrier(far()).unwrap();
    if VICTIMS.contains(&me) {
        rustix::process::kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
    }
    let (stream, memory) = (rank.stream(), rank.memory(&[1.0; 4]));
    let buffer = Buffer::new(memory.ptr(), 4, F32);
    let lost = unsafe { world.raw().all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }
        .and_then(|work| work.wait_until(far()));
    let GroupErrorKind::Lost { rank: first, .. } = lost.unwrap_err().into_kind() else {
        panic!("nobody is lost")
    };
    let mut gone = BTreeSet::from([first]);
    if is_apart {
        // Until both losses were reported. A group that begins later still learns of them.
        thread::sleep(Duration::from_secs(4));
    }
    // One at a time, or the ranks that another survivor knows of.
    let rest = loop {
        let excluded: Vec<_> = gone.iter().copied().collect();
        match world.shrink(&excluded, ShrinkMode::AfterFailure).map_err(GroupError::into_kind) {
            Ok(rest) => break rest,
            Err(GroupErrorKind::Lost { rank, .. }) => drop(gone.insert(rank)),
            Err(GroupErrorKind::Shrink {
                source: ShrinkError::Differ { excluded, other_excluded, .. },
                ..
            }) => {
                gone.extend(excluded.into_iter().chain(other_excluded));
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(gone, BTreeSet::from(VICTIMS));
    assert_eq!(rest.size(), RANKS - VICTIMS.len());
    assert_eq!(group_sum(&rank, &rest), (36 - VICTIMS[0] - VICTIMS[1] - 2) as f32);
    world.abort(far()).unwrap();
    rest.destroy(far()).unwrap();
}

#[test]
fn survivors_of_eight_of_whom_two_are_killed_have_right_sums() {
    ["kernel", "store"].into_iter().for_each(survive);
}

/// Survivors learn of losses by these witnesses.
fn survive(witnesses: &str) {
    let store = TcpStore::host(0).unwrap();
    let start = |rank| {
        let test = concat!(module_path!(), "::one_rank");
        spawn(test, ("PROCESS_GROUP_TEST_SHRINK", witnesses), rank, RANKS, &store.address())
    };
    let mut victims = Vec::new();
    let mut survivors = Vec::new();
    for rank in 0..RANKS {
        if VICTIMS.contains(&rank) { &mut victims } else { &mut survivors }.push(start(rank));
    }
    all_succeed(survivors);
    assert!(victims.into_iter().all(|mut victim| !victim.wait().unwrap().success()));
}

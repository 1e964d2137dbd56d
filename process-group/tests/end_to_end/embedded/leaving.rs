//! Members that drop or abort a group, or leave it after an error in another group. Members that wait for them are told
//! at once.

use std::{env, sync::Arc, thread, time::Duration};

use cuda_driver::{Stream, graph::CaptureMode};
use process_group::{
    ProcessGroup,
    comm::{DataType::F32, ReduceOp, ShrinkMode, wait_for_dropped},
    group::{Buffer, GroupError, GroupErrorKind, P2pPolicy, Request, Work},
    store::{Deadline, Store, TcpStore},
};
use rustix::process::{Signal, getpid, kill_process};
use rusty_fork::rusty_fork_test;

use super::common::{Machine, Rank, faithful, far, hold, machine, values};
use super::{
    background::{call_differently, until_over},
    hooked::Hooked,
    processes::{all_succeed, spawn},
};

/// Keys of the group "world" in the store.
fn world_key(key: &str) -> String {
    format!("process-group/world/0/{key}")
}

/// Expects that `rank` has left the group.
fn assert_left(error: &GroupError, rank: usize, how: &str) {
    match error.kind() {
        GroupErrorKind::Left { rank: found, how: found_how, .. } => {
            assert_eq!((*found, found_how.as_str()), (rank, how), "{error}");
        }
        other => panic!("expected that rank {rank} has left: {other}"),
    }
}

fn all_reduce(rank: &Rank, group: &ProcessGroup) -> Result<Work, GroupError> {
    all_reduce_with(rank, group, ReduceOp::Sum)
}

fn all_reduce_with(rank: &Rank, group: &ProcessGroup, op: ReduceOp) -> Result<Work, GroupError> {
    let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
    let one = Buffer::new(memory.ptr(), 1, F32);
    let work = unsafe { group.raw().all_reduce(one, one, op, &stream) }?;
    work.keep((memory, stream))?;
    Ok(work)
}

fn everybody(group: &ProcessGroup) -> Request {
    Request::Lists(vec![(0..group.size()).collect()])
}

/// Rank 1 destroys the group, and the others call another collective.
fn destroyed_by_one(machine: &Machine) {
    machine.ranks(3, |rank| {
        let world = rank.world();
        all_reduce(&rank, &world).unwrap().wait_until(far()).unwrap();
        if rank.rank == 1 {
            if let Err(error) = world.destroy(far()) {
                assert_left(&error, 1, "destroyed");
            }
            return;
        }
        let error = all_reduce(&rank, &world).and_then(|work| work.wait_until(far())).unwrap_err();
        assert_left(&error, 1, "destroyed");
        assert_left(&world.barrier(far()).unwrap_err(), 1, "destroyed");
    });
    assert!(wait_for_dropped(far()));
}

/// All ranks capture an all-reduce, and launch the graph once. Then rank 1 leaves with `leave`, and the others launch the
/// graph again.
fn left_before_a_launch(how: &str, leave: fn(ProcessGroup) -> Result<(), GroupError>) {
    let machine = faithful(3, 22809);
    machine.ranks(3, |rank| {
        let world = rank.world();
        let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
        let one = Buffer::new(memory.ptr(), 1, F32);
        let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
        // SAFETY: the memory is alive until the graph's launches have ended.
        unsafe { world.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap();
        let graph = capture.end().unwrap().instantiate().unwrap();
        let launch = || {
            stream.launch(&graph).unwrap();
            world.track_graph_launch(&stream)?.wait_until(far())
        };
        launch().unwrap();
        if rank.rank == 1 {
            if let Err(error) = leave(world) {
                assert_left(&error, 1, how);
            }
            return;
        }
        assert_left(&launch().unwrap_err(), 1, how);
        let _ = stream.synchronize();
    });
    assert!(wait_for_dropped(far()));
}

/// Returns true if the stream becomes idle before the deadline.
fn is_done_by(stream: &Stream, deadline: Deadline) -> bool {
    while !stream.query().unwrap() {
        if deadline.expired() {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

/// A call in which a member waits for another.
type Wait = fn(&Rank, &ProcessGroup) -> Result<(), GroupError>;

/// The key exists once this rank has arrived; `None` if the rank need not wait to be told.
const WAITS: [(&str, Option<&str>, Wait); 5] = [
    ("a barrier", Some("barrier/0/records/count"), |_, group| group.barrier(far())),
    ("a split", Some("split/0/records/count"), |_, group| group.split("all", &everybody(group)).map(drop)),
    ("a shrink", Some("shrink/0/records/0"), |rank, group| match rank.rank {
        2 => group.barrier(far()),
        _ => group.shrink(&[2], ShrinkMode::AfterFailure).map(drop),
    }),
    ("a collective", None, |rank, group| all_reduce(rank, group)?.wait_until(far())),
    ("quiescence", None, |rank, group| {
        all_reduce(rank, group)?;
        group.quiesce(far())
    }),
];

/// The ranks make calls without waiting for them, and destroy the group. Collective `first` is the first that differs.
fn destroyed_after_calls_that_differ(machine: &Machine, calls: [&[ReduceOp]; 2], first: u64) {
    machine.ranks(2, |rank| {
        let world = rank.world();
        let works: Vec<_> =
            calls[rank.rank].iter().map(|op| all_reduce_with(&rank, &world, *op).unwrap()).collect();
        let error = world.destroy(far()).unwrap_err();
        let GroupErrorKind::CollectiveDiverged { divergence, .. } = error.kind() else { panic!("{error}") };
        assert_eq!((divergence.after, divergence.by), (first - 1, first), "{error}");
        drop(works);
    });
    assert!(wait_for_dropped(far()));
}

rusty_fork_test! {
    #[test]
    fn calls_that_differ_are_found_when_the_group_is_destroyed() {
        destroyed_after_calls_that_differ(&machine(2), [&[ReduceOp::Sum], &[ReduceOp::Max]], 1);
    }

    #[test]
    fn calls_that_differ_are_found_when_the_group_is_destroyed_on_a_faithful_machine() {
        destroyed_after_calls_that_differ(&faithful(2, 22809), [&[ReduceOp::Sum], &[ReduceOp::Max]], 1);
    }

    #[test]
    fn a_call_that_one_member_has_skipped_is_found_when_the_group_is_destroyed() {
        destroyed_after_calls_that_differ(&machine(2), [&[ReduceOp::Sum; 3], &[ReduceOp::Sum; 2]], 3);
    }

    #[test]
    fn a_skipped_call_is_found_when_the_group_is_destroyed_on_a_faithful_machine() {
        destroyed_after_calls_that_differ(&faithful(2, 22809), [&[ReduceOp::Sum; 3], &[ReduceOp::Sum; 2]], 3);
    }

    #[test]
    fn a_call_skipped_between_others_is_named_when_the_group_is_destroyed() {
        let calls: [&[ReduceOp]; 2] = [&[ReduceOp::Sum, ReduceOp::Max, ReduceOp::Sum], &[ReduceOp::Sum; 2]];
        destroyed_after_calls_that_differ(&machine(2), calls, 2);
    }

    #[test]
    fn who_launches_a_graph_again_is_told_that_a_member_has_destroyed_the_group() {
        left_before_a_launch("destroyed", |world| world.destroy(far()));
    }

    #[test]
    fn who_launches_a_graph_again_is_told_that_a_member_has_dropped_the_group() {
        left_before_a_launch("dropped", |world| {
            drop(world);
            Ok(())
        });
    }

    #[test]
    fn who_waits_for_a_member_that_drops_or_aborts_the_group_is_told() {
        let machine = faithful(3, 22809);
        for (epoch, (how, (what, arrived, wait))) in
            ["dropped", "aborted"].iter().flat_map(|how| WAITS.map(|wait| (*how, wait))).enumerate()
        {
            println!("{how} in {what}");
            machine.ranks(3, |rank| {
                let world = rank.builder().name(format!("world {epoch}")).build().unwrap();
                if rank.rank != 1 {
                    assert_left(&wait(&rank, &world).unwrap_err(), 1, how);
                    assert_left(&world.barrier(far()).unwrap_err(), 1, how);
                    return;
                }
                if let Some(arrived) = arrived {
                    let arrived = format!("process-group/world {epoch}/0/{arrived}");
                    rank.store.wait(&[&arrived], far()).unwrap();
                }
                if how == "aborted" {
                    world.abort_handle().abort(far()).unwrap();
                }
            });
        }
        assert!(wait_for_dropped(far()));
    }

    #[test]
    fn a_lazy_group_that_is_dropped_before_it_is_connected_keeps_nobody_waiting() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.builder().lazy().build().unwrap();
            if rank.rank == 0 {
                rank.store.wait(&[&world_key("connect/0/records/count")], far()).unwrap();
                return;
            }
            assert_left(&world.connect(far()).unwrap_err(), 0, "dropped");
        });
    }

    /// It has made its group and dropped it before this rank has one.
    #[test]
    fn a_member_that_left_before_another_had_begun_keeps_it_not_waiting() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            if rank.rank == 0 {
                drop(rank.builder().lazy().build().unwrap());
                return rank.store.set("left", b"").unwrap();
            }
            let store = rank.store.clone();
            let late = move |call: &'static str, key: &str| match (call, key) {
                // Not the check whether the group exists already.
                ("compare_set", "process-group/world/0/number") => {
                    store.wait(&["left", &world_key("flight/trouble/0")], far())?;
                    // Until this rank's heartbeat thread has read that.
                    thread::sleep(Duration::from_millis(200));
                    Ok(())
                }
                _ => Ok(()),
            };
            let world = rank.builder().store(Arc::new(Hooked::new(&rank.store, late))).lazy().build().unwrap();
            assert_left(&world.barrier(far()).unwrap_err(), 0, "dropped");
        });
    }

    /// A member may query its work after another member has finished and dropped the group.
    #[test]
    fn what_was_done_before_a_member_left_is_good() {
        let machine = faithful(2, 22809);
        machine.ranks(2, |rank| {
            let world = rank.builder().heartbeat(Duration::from_millis(100)).build().unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
            let one = Buffer::new(memory.ptr(), 1, F32);
            let work = unsafe { world.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap();
            if rank.rank == 0 {
                return work.wait_until(far()).unwrap();
            }
            stream.synchronize().unwrap();
            assert_left(&loop {
                match world.check() {
                    Err(error) => break error,
                    Ok(()) => thread::sleep(Duration::from_millis(1)),
                }
            }, 0, "dropped");
            // Also after the communicator was given up.
            for _ in 0..2 {
                assert!(work.is_completed().unwrap());
                work.wait_until(far()).unwrap();
                world.quiesce(far()).unwrap();
                assert_eq!(values(&memory), [2.0]);
                thread::sleep(Duration::from_millis(400));
            }
            let error = unsafe { world.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap_err();
            assert_left(&error, 0, "dropped");
        });
    }

    /// The other had called it as well, so it might still complete.
    #[test]
    fn what_a_member_gave_up_when_it_left_is_not_taken_for_done() {
        let machine = faithful(2, 22809);
        machine.ranks(2, |rank| {
            let world = rank.builder().heartbeat(Duration::from_millis(100)).build().unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
            let one = Buffer::new(memory.ptr(), 1, F32);
            let open = (rank.rank == 1).then(|| hold(&stream));
            let work = unsafe { world.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap();
            if rank.rank == 0 {
                rank.store.wait(&["enqueued"], far()).unwrap();
                drop(world);
                assert!(wait_for_dropped(far()));
                stream.synchronize().unwrap();
                rank.store.set("left", b"").unwrap();
                return;
            }
            rank.store.set("enqueued", b"").unwrap();
            rank.store.wait(&["left"], far()).unwrap();
            drop(open);
            assert_left(&work.wait_until(far()).unwrap_err(), 0, "dropped");
            assert_left(&work.is_completed().unwrap_err(), 0, "dropped");
            stream.synchronize().unwrap();
        });
    }

    /// The abort also reaches the communicators for messages, long before the heartbeat would.
    #[test]
    fn an_abort_after_another_member_has_left_ends_every_communicator() {
        let machine = faithful(2, 22809);
        machine.ranks(2, |rank| {
            let builder = rank.builder().p2p(P2pPolicy::Lanes(2)).heartbeat(Duration::from_secs(3600));
            let world = builder.build().unwrap();
            world.connect_to(1 - rank.rank, far()).unwrap();
            if rank.rank == 0 {
                rank.store.wait(&["enqueued"], far()).unwrap();
                return world.abort(far()).unwrap();
            }
            let (stream, memory) = (rank.stream(), rank.memory(&[0.0]));
            let work = unsafe { world.raw().recv(Buffer::new(memory.ptr(), 1, F32), 0, &stream) }.unwrap();
            rank.store.set("enqueued", b"").unwrap();
            assert_left(&until_over(&world), 0, "aborted");
            world.abort_handle().abort(far()).unwrap();
            let is_done = is_done_by(&stream, Deadline::after(Duration::from_secs(20)));
            let error = work.wait_until(far()).unwrap_err();
            // The memory is freed once nothing uses it.
            world.abort(far()).unwrap();
            assert!(is_done, "the message still waits");
            assert_left(&error, 0, "aborted");
        });
    }

    /// The other has seen at once that the calls differ, and has aborted. Nothing else shows that this rank's
    /// call is not done.
    #[test]
    fn calls_that_differ_are_not_taken_for_done_after_a_member_has_left() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.builder().heartbeat(Duration::from_secs(3600)).build().unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0; 4]));
            let all = Buffer::new(memory.ptr(), 4, F32);
            let work = call_differently(&rank, &world, all, &stream);
            stream.synchronize().unwrap();
            if rank.rank == 0 {
                rank.store.wait(&["enqueued"], far()).unwrap();
                return world.abort(far()).unwrap();
            }
            rank.store.set("enqueued", b"").unwrap();
            until_over(&world);
            for _ in 0..100 {
                assert!(work.is_completed().is_err(), "it is taken for done");
                thread::sleep(Duration::from_millis(5));
            }
        });
    }

    #[test]
    fn who_waits_for_a_member_that_has_destroyed_the_group_is_told() {
        destroyed_by_one(&faithful(3, 22809));
    }

    /// A strict world fails the call of the others.
    #[test]
    fn who_fails_because_a_member_has_destroyed_the_group_is_told() {
        destroyed_by_one(&machine(3));
    }

    /// All calls are equal, so their hashes do not differ.
    #[test]
    fn a_member_that_skipped_a_call_is_named_by_a_comparison_and_when_it_destroys_the_group() {
        let machine = faithful(3, 22809);
        for (epoch, last) in ["compare_calls", "destroy"].into_iter().enumerate() {
            machine.ranks(3, |rank| {
                let world = rank.builder().epoch(epoch as u64).build().unwrap();
                world.compare_calls(far()).unwrap();
                all_reduce(&rank, &world).unwrap();
                world.compare_calls(far()).unwrap();
                // A rank whose comparison has not returned would learn that rank 1 has destroyed the group.
                rank.store.set(&format!("{last}/{}", rank.rank), b"").unwrap();
                let all = [0, 1, 2].map(|rank| format!("{last}/{rank}"));
                rank.store.wait(&all.each_ref().map(String::as_str), far()).unwrap();
                for _ in 0..if rank.rank == 1 { 8 } else { 9 } {
                    all_reduce(&rank, &world).unwrap();
                }
                // A destruction by rank 1 that is known earlier would refuse the others' calls.
                rank.store.set(&format!("{last}/called/{}", rank.rank), b"").unwrap();
                let all = [0, 1, 2].map(|rank| format!("{last}/called/{rank}"));
                rank.store.wait(&all.each_ref().map(String::as_str), far()).unwrap();
                let (end, error) = match last {
                    "destroy" => (None, world.destroy(far()).unwrap_err()),
                    _ => {
                        let error = world.compare_calls(far()).unwrap_err();
                        (Some(world.check().unwrap_err()), error)
                    }
                };
                let GroupErrorKind::CollectiveDiverged { divergence, .. } = error.kind() else { panic!("{error}") };
                assert_eq!((&divergence.ranks[..], divergence.after, divergence.by), (&[1][..], 9, 10), "{error}");
                let text = format!("rank 1 called {last} after 9 collectives at");
                assert!(error.to_string().contains(&text), "{error}");
                assert!(end.is_none_or(|end| end.kind().to_string() == error.kind().to_string()));
            });
            assert!(wait_for_dropped(far()));
        }
    }

    #[test]
    fn a_group_that_all_members_destroy_is_left_by_nobody_and_others_go_on() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.world();
            for _ in 0..3 {
                let pair = world.split("pair", &everybody(&world)).unwrap().unwrap();
                all_reduce(&rank, &pair).unwrap().wait_until(far()).unwrap();
                pair.destroy(far()).unwrap();
            }
            let pair = world.split("pair", &everybody(&world)).unwrap().unwrap();
            if rank.rank == 0 {
                drop(pair);
            } else {
                assert_left(&pair.barrier(far()).unwrap_err(), 0, "dropped");
            }
            // Only one group is over.
            world.barrier(far()).unwrap();
            all_reduce(&rank, &world).unwrap().wait_until(far()).unwrap();
            let log = rank.store.get(&world_key("flight/troubles"), far()).unwrap();
            assert_eq!(log, b"1");
            world.destroy(far()).unwrap();
        });
        assert!(wait_for_dropped(far()));
        machine.world.finish().unwrap();
    }
}

const RANKS: usize = 4;
const VICTIM: usize = 3;

/// The body of a rank, when it is started by the test below.
#[test]
#[ignore = "the body of a process that a test starts"]
fn one_rank() {
    env::var("PROCESS_GROUP_TEST_LEAVING").expect("a test below starts this process");
    let machine = faithful(RANKS, 22809);
    let rank = machine.this_rank();
    let me = rank.rank;
    let builder = ProcessGroup::builder().context(&rank.context).nccl(&machine.nccl);
    let world = builder.timeout(Duration::from_secs(60)).build().unwrap();
    let split = |name, color| {
        world.split(name, &Request::Color { color: Some(color as u32), key: 0 }).unwrap().unwrap()
    };
    let (tp, dp) = (split("tp", me / 2), split("dp", me % 2));
    if me == VICTIM {
        // After the others have reached their waits.
        let waits =
            ["0/1", "1/0", "1/1"].map(|pair| world_key(&format!("split/{pair}/barrier/0/records/count")));
        let store =
            TcpStore::connect(&format!("127.0.0.1:{}", env::var("MASTER_PORT").unwrap()), far()).unwrap();
        store.wait(&waits.each_ref().map(String::as_str), far()).unwrap();
        kill_process(getpid(), Signal::KILL).unwrap();
    }
    match me {
        // Shares a group with the dead rank, and drops all of them.
        2 => {
            let error = tp.barrier(far()).unwrap_err();
            assert!(matches!(error.kind(), GroupErrorKind::Lost { rank: VICTIM, .. }), "{error}");
        }
        1 => {
            let error = dp.barrier(far()).unwrap_err();
            assert!(matches!(error.kind(), GroupErrorKind::Lost { rank: VICTIM, .. }), "{error}");
        }
        // Waits for rank 2, which will not come.
        _ => {
            assert_left(&dp.barrier(far()).unwrap_err(), 2, "dropped");
            let error = world.check().unwrap_err();
            assert!(matches!(error.kind(), GroupErrorKind::Lost { rank: VICTIM, .. }), "{error}");
        }
    }
}

/// The rank that shares only the world with a dead one waits for a third, which has ended because of the
/// death.
#[test]
fn who_shares_no_pair_with_the_dead_does_not_wait_for_those_who_do() {
    let store = TcpStore::host(0).unwrap();
    let test = concat!(module_path!(), "::one_rank");
    let start = |rank| spawn(test, ("PROCESS_GROUP_TEST_LEAVING", "1"), rank, RANKS, &store.address());
    let mut ranks: Vec<_> = (0..RANKS).map(start).collect();
    let mut victim = ranks.pop().unwrap();
    all_succeed(ranks);
    assert!(!victim.wait().unwrap().success());
}

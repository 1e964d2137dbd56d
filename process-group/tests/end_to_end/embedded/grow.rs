//! Groups that grow: new ranks join the members of a group.

use std::{
    env,
    net::TcpListener,
    process::Child,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use gpu_sim::{Action, Injection};
use process_group::{
    ProcessGroup,
    comm::{CommError, DataType::F32, Origin, ReduceOp, wait_for_dropped},
    group::{Buffer, Builder, Disagreement, GroupError, GroupErrorKind, P2pPolicy, Request},
    store::{Store, StoreError, TcpStore},
};
use rustix::process::{Signal, getpid, kill_process};
use rusty_fork::rusty_fork_test;

use super::common::{Machine, Rank, faithful, far, machine, machine_with, values};
use super::hooked::Hooked;
use super::processes::{all_succeed, spawn_with};

/// The tests' release, above the first one that grows.
const RELEASE: i32 = 22907;

/// Returns the sum over the group of 1 from each rank.
fn sum(rank: &Rank, group: &ProcessGroup) -> f32 {
    let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
    let one = Buffer::new(memory.ptr(), 1, F32);
    let work = unsafe { group.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap();
    work.wait_until(far()).unwrap();
    values(&memory)[0]
}

/// Returns the group of the first `members` ranks; `None` on the others.
fn first(rank: &Rank, members: usize) -> Option<ProcessGroup> {
    (rank.rank < members).then(|| rank.builder().world_size(members).build().unwrap())
}

/// Joins a larger group, as a member of `old` or as a new rank.
fn larger(old: Option<&ProcessGroup>, builder: Builder) -> Result<ProcessGroup, GroupError> {
    match old {
        Some(old) => old.grow(builder),
        None => builder.join_grown(),
    }
}

rusty_fork_test! {
    #[test]
    fn new_ranks_come_behind_the_members_and_the_old_group_may_end() {
        let machine = machine_with(4, RELEASE);
        machine.ranks(4, |rank| {
            let old = first(&rank, 2);
            let builder = |size| rank.builder().epoch(size as u64).world_size(size).p2p(P2pPolicy::Lanes(1));
            let three = (rank.rank < 3).then(|| {
                let grown = larger(old.as_ref(), builder(3)).unwrap();
                assert_eq!((grown.rank(), grown.size(), grown.members().len()), (rank.rank, 3, 3));
                assert_eq!(grown.startup().making.unwrap().origin, Origin::Grow);
                assert_eq!(sum(&rank, &grown), 3.0);
                grown
            });
            if let Some(old) = old {
                assert_eq!(sum(&rank, &old), 2.0);
                old.destroy(far()).unwrap();
            }
            // A group that was grown grows.
            let four = larger(three.as_ref(), builder(4)).unwrap();
            assert_eq!(sum(&rank, &four), 4.0);
            four.windows_supported().unwrap();
            let half = four.split("half", &Request::Color { color: Some(rank.rank as u32 % 2), key: 0 }).unwrap().unwrap();
            assert_eq!(sum(&rank, &half), 2.0);
            half.destroy(far()).unwrap();
            if let Some(three) = three {
                three.destroy(far()).unwrap();
            }
            four.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn texts_tell_the_old_group_from_the_grown_one() {
        let machine = machine_with(2, RELEASE);
        machine.ranks(2, |rank| {
            let old = first(&rank, 1);
            let grown = larger(old.as_ref(), rank.builder().epoch(1)).unwrap();
            for (group, name) in [(old, "world"), (Some(grown), "world@1")] {
                let Some(group) = group else { continue };
                assert_eq!(group.name(), name);
                let text = format!("{group:?}");
                assert!(text.contains(&format!(" {name}: rank")), "{text}");
                group.destroy(far()).unwrap();
            }
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn members_take_the_store_of_their_group() {
        let machine = machine_with(2, RELEASE);
        machine.ranks(2, |rank| {
            let old = first(&rank, 1);
            let builder = ProcessGroup::builder().name("larger").world_size(2).timeout(Duration::from_secs(60));
            let grown = match &old {
                Some(old) => old.grow(builder).unwrap(),
                None => rank.builder().name("larger").join_grown().unwrap(),
            };
            assert_eq!(sum(&rank, &grown), 2.0);
            grown.destroy(far()).unwrap();
            if let Some(old) = old {
                old.destroy(far()).unwrap();
            }
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_builder_that_does_not_fit_is_refused_before_anything() {
        let machine = machine_with(2, RELEASE);
        machine.ranks(1, |rank| {
            let old = first(&rank, 1).unwrap();
            let builder = || rank.builder().epoch(1).world_size(2);
            for (builder, text) in [
                (builder().world_size(1), "world size 1, expected more than 1"),
                (builder().rank(1), "the rank is 0"),
                (builder().epoch(0), "take another one"),
            ] {
                let error = old.grow(builder).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Setting { .. }) && error.to_string().contains(text), "{error}");
            }
            old.suspend(far()).unwrap();
            let error = old.grow(builder()).unwrap_err();
            assert!(matches!(error.kind(), GroupErrorKind::Comm(CommError::Suspended { .. })), "{error}");
            old.destroy(far()).unwrap();
        });
        assert_eq!(machine.world.calls("ncclCommGetUniqueId") + machine.world.calls("ncclCommGrow"), 0);
        machine.world.finish().unwrap();
    }

    #[test]
    fn releases_that_do_not_grow_say_so_before_any_call() {
        let machine = machine(3);
        machine.ranks(3, |rank| {
            let old = first(&rank, 2);
            let error = larger(old.as_ref(), rank.builder().epoch(1)).unwrap_err();
            let is_missing = matches!(error.kind(), GroupErrorKind::Comm(CommError::Missing(_)));
            assert!(is_missing && error.to_string().contains("2.29.2"), "{error}");
            if let Some(old) = old {
                assert_eq!(sum(&rank, &old), 2.0);
                old.destroy(far()).unwrap();
            }
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_rank_that_does_not_come_is_named_and_the_members_go_on() {
        let machine = machine_with(3, RELEASE);
        machine.ranks(3, |rank| {
            let old = first(&rank, 2);
            if let Some(old) = &old {
                let soon = rank.builder().epoch(1).timeout(Duration::from_millis(300));
                let error = old.grow(soon).unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Absent { ranks, .. } if *ranks == [2]), "{error}");
                assert_eq!(sum(&rank, old), 2.0);
            }
            let grown = larger(old.as_ref(), rank.builder().epoch(2)).unwrap();
            assert_eq!(sum(&rank, &grown), 3.0);
            grown.destroy(far()).unwrap();
            if let Some(old) = old {
                old.destroy(far()).unwrap();
            }
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn ranks_that_do_not_fit_get_one_error_without_a_call_of_nccl() {
        let machine = machine_with(4, RELEASE);
        let errors = machine.ranks(4, |rank| {
            let (a, b) = (first(&rank, 2), rank.builder().name("b").world_size(3));
            let b = (rank.rank < 3).then(|| b.build().unwrap());
            let old = if rank.rank == 0 { a.as_ref() } else { b.as_ref() };
            let error = larger(old, rank.builder().epoch(1)).unwrap_err();
            // A rank that joins as in a new job.
            let other = match rank.rank {
                3 => rank.builder().epoch(2).build().unwrap_err(),
                _ => b.as_ref().unwrap().grow(rank.builder().epoch(2)).unwrap_err(),
            };
            let GroupErrorKind::Disagreement { source: Disagreement::Setting { setting, .. }, .. } = other.kind() else {
                panic!("{other}")
            };
            assert_eq!(setting, "communicator");
            for group in a.into_iter().chain(b) {
                group.destroy(far()).unwrap();
            }
            error.kind().to_string()
        });
        assert!(errors[0].contains("rank 1 grows group") && errors.iter().all(|error| *error == errors[0]), "{errors:?}");
        assert_eq!(machine.world.calls("ncclCommGetUniqueId") + machine.world.calls("ncclCommGrow"), 0);
        machine.world.finish().unwrap();
    }

    #[test]
    fn each_call_of_nccl_can_fail_and_every_rank_knows_the_one_that_failed() {
        let machine = machine_with(3, RELEASE);
        process_group::comm::set_drop_error_hook(|_| ());
        for (epoch, (call, nth)) in [("ncclCommGetUniqueId", 1), ("ncclCommGrow", 1), ("ncclCommGrow", 3)].into_iter().enumerate() {
            let name = format!("{call} {nth}");
            let errors = machine.ranks(3, |rank| {
                let epoch = 2 * epoch as u64;
                let old = (rank.rank < 2).then(|| {
                    let old = rank.builder().epoch(epoch).world_size(2).build().unwrap();
                    if rank.rank == 0 {
                        let fault = Injection::new(call, Action::Fail(2)).nth(nth);
                        machine.world.faults().inject(fault).unwrap();
                    }
                    old
                });
                let error = larger(old.as_ref(), rank.builder().epoch(epoch + 1)).unwrap_err();
                if let Some(old) = old {
                    // NCCL may have used its connections.
                    assert!(old.communicator().check().is_err(), "{name}");
                    // An abort ends the call on a member that is still in it.
                    old.barrier(far()).unwrap();
                    old.abort(far()).unwrap();
                }
                error
            });
            let failed = |error: &GroupError| matches!(error.kind(), GroupErrorKind::Comm(CommError::Nccl { call: found, .. }) if *found == call);
            let culprit = errors.iter().position(failed).unwrap_or_else(|| panic!("{name}: {errors:?}"));
            for (rank, error) in errors.iter().enumerate().filter(|(rank, _)| *rank != culprit) {
                assert!(matches!(error.kind(), GroupErrorKind::Unmade { rank, .. } if *rank == culprit), "{name}, rank {rank}: {error}");
            }
            assert!(wait_for_dropped(far()), "{name}");
            machine.world.faults().clear();
        }
        machine.world.finish().unwrap();
    }

    #[test]
    fn a_member_that_does_something_else_ends_it_before_the_deadline() {
        let machine = machine_with(3, RELEASE);
        process_group::comm::set_drop_error_hook(|_| ());
        machine.these_ranks(3, &[0, 1], |rank| {
            let old = rank.builder().world_size(2).work_timeout(Duration::from_millis(500)).build().unwrap();
            let error = match rank.rank {
                0 => old.grow(rank.builder().epoch(1)).unwrap_err(),
                _ => {
                    let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
                    let one = Buffer::new(memory.ptr(), 1, F32);
                    let work = unsafe { old.raw().all_reduce(one, one, ReduceOp::Sum, &stream) }.unwrap();
                    work.wait_until(far()).unwrap_err()
                }
            };
            assert!(matches!(error.kind(), GroupErrorKind::Overdue { rank: 1, .. }), "{error}");
        });
        assert!(wait_for_dropped(far()));
    }

    /// The members wait inside NCCL for the new rank.
    #[test]
    fn the_end_of_the_old_group_ends_it_before_the_deadline() {
        // The hook of a store has no borrows.
        let machine: &'static Machine = Box::leak(Box::new(machine_with(3, RELEASE)));
        process_group::comm::set_drop_error_hook(|_| ());
        machine.ranks(3, |rank| {
            let builder = || rank.builder().heartbeat(Duration::from_millis(100));
            if rank.rank == 2 {
                let store = rank.store.clone();
                let late = move |call: &'static str, key: &str| {
                    if call == "check" && key.ends_with("grow/unique_id") {
                        store.wait(&[key], far())?;
                        let error = Injection::new("ncclCommGetAsyncError", Action::Fail(2));
                        machine.world.faults().inject(error).unwrap();
                        store.wait(&["over/0", "over/1"], far())?;
                    }
                    Ok(())
                };
                let builder = builder().store(Arc::new(Hooked::new(&rank.store, late))).epoch(1);
                let error = builder.join_grown().unwrap_err();
                assert!(matches!(error.kind(), GroupErrorKind::Unmade { rank: 0 | 1, .. }), "{error}");
                return;
            }
            let old = builder().world_size(2).build().unwrap();
            let began = Instant::now();
            let error = old.grow(builder().epoch(1)).unwrap_err();
            assert!(began.elapsed() < Duration::from_secs(20), "{:?}: {error}", began.elapsed());
            rank.store.set(&format!("over/{}", rank.rank), b"").unwrap();
            let is_told = matches!(error.kind(), GroupErrorKind::MemberFailed { .. } | GroupErrorKind::Unmade { rank: 0 | 1, .. });
            assert!(is_told, "{error}");
            old.abort(far()).unwrap();
        });
        assert!(wait_for_dropped(far()));
    }

    #[test]
    fn a_subgroup_grows_and_its_members_are_named_by_their_ranks_in_it() {
        let machine = machine_with(3, RELEASE);
        process_group::comm::set_drop_error_hook(|_| ());
        machine.ranks(3, |rank| {
            let world = rank.builder().heartbeat(Duration::from_millis(100)).build().unwrap();
            let pair = world.split("pair", &Request::Lists(vec![vec![1, 2]])).unwrap();
            let builder = |epoch| rank.builder().name("larger").epoch(epoch).rank((rank.rank + 2) % 3);
            let grown = larger(pair.as_ref(), builder(0)).unwrap();
            assert_eq!((grown.rank(), sum(&rank, &grown)), ((rank.rank + 2) % 3, 3.0));
            let records = "process-group/larger/1/join/records/count";
            match (rank.rank, &pair) {
                // Leaves while the others wait for it.
                (2, Some(pair)) => {
                    rank.store.wait(&[records], far()).unwrap();
                    while rank.store.add(records, 0).unwrap() < 2 {
                        thread::sleep(Duration::from_millis(1));
                    }
                    pair.abort_handle().abort(far()).unwrap();
                }
                (_, Some(pair)) => {
                    let error = pair.grow(builder(1)).unwrap_err();
                    assert!(matches!(error.kind(), GroupErrorKind::Left { rank: 2, .. }), "{error}");
                }
                _ => {
                    let error = builder(1).join_grown().unwrap_err();
                    let is_named = matches!(error.kind(), GroupErrorKind::Store(StoreError::GivenUp { rank: 1, .. }));
                    assert!(is_named, "{error}");
                }
            }
            world.barrier(far()).unwrap();
        });
        assert!(wait_for_dropped(far()));
    }
}

/// The body of a rank in the tests below. Rank 0 hosts the store for both groups unless a test hosts it.
#[test]
#[ignore = "the body of a process that a test starts"]
fn one_rank() {
    let case = env::var("PROCESS_GROUP_TEST_GROW").expect("a test below starts this process");
    process_group::comm::set_drop_error_hook(|_| ());
    let machine = faithful(3, RELEASE);
    let rank = machine.this_rank();
    let builder = || {
        let builder = ProcessGroup::builder().context(&rank.context).nccl(&machine.nccl);
        builder.timeout(Duration::from_secs(60)).heartbeat(Duration::from_millis(500))
    };
    let old = (rank.rank < 2).then(|| builder().world_size(2).build().unwrap());
    if case == "dies" && rank.rank == 2 {
        machine.world.faults().inject(Injection::new("ncclCommGrow", Action::Kill)).unwrap();
    }
    let larger_builder = builder().epoch(1).world_size(3).timeout(Duration::from_secs(20));
    let larger_builder = match case == "dies early" && rank.rank == 2 {
        true => {
            let address = format!("127.0.0.1:{}", env::var("MASTER_PORT").unwrap());
            let die = |_: &'static str, key: &str| {
                if key.ends_with("/peers/2") {
                    kill_process(getpid(), Signal::KILL).unwrap();
                }
                Ok(())
            };
            let store = Arc::new(TcpStore::connect(&address, far()).unwrap());
            larger_builder.store(Arc::new(Hooked::new(&store, die)))
        }
        false => larger_builder,
    };
    let grown = larger(old.as_ref(), larger_builder);
    if case != "lives" {
        let error = grown.unwrap_err();
        let is_named = match case.as_str() {
            "dies" => matches!(error.kind(), GroupErrorKind::Lost { rank: 2, .. }),
            _ => matches!(error.kind(), GroupErrorKind::Absent { ranks, .. } if *ranks == [2]),
        };
        assert!(is_named, "{error}");
        let old = old.unwrap();
        old.check().unwrap();
        old.barrier(far()).unwrap();
        return old.abort(far()).unwrap();
    }
    let grown = grown.unwrap();
    if let Some(old) = old {
        let began = Instant::now();
        old.destroy(far()).unwrap();
        assert!(began.elapsed() < Duration::from_secs(8), "the store stays for the new group");
    }
    assert_eq!(sum(&rank, &grown), 3.0);
    grown.destroy(far()).unwrap();
}

fn start(rank: usize, port: u16, case: &str, hosts: &str) -> Child {
    let variables = [("PROCESS_GROUP_TEST_GROW", case), ("TORCHELASTIC_USE_AGENT_STORE", hosts)];
    spawn_with(concat!(module_path!(), "::one_rank"), &variables, rank, 3, &port.to_string())
}

#[test]
fn the_host_of_the_store_hosts_it_for_the_grown_group() {
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    all_succeed((0..3).map(|rank| start(rank, port, "lives", "False")).collect());
}

/// Every member that is left gets the same error.
fn a_new_rank_dies(case: &str) {
    let store = TcpStore::host(0).unwrap();
    let port = store.address().rsplit(':').next().unwrap().parse().unwrap();
    let mut ranks: Vec<_> = (0..3).map(|rank| start(rank, port, case, "True")).collect();
    let mut victim = ranks.pop().unwrap();
    all_succeed(ranks);
    assert!(!victim.wait().unwrap().success());
}

#[test]
fn a_new_rank_that_dies_in_the_call_is_named() {
    a_new_rank_dies("dies");
}

/// It has met the others, but their processes do not watch it yet.
#[test]
fn a_new_rank_that_dies_before_it_is_watched_is_named() {
    a_new_rank_dies("dies early");
}

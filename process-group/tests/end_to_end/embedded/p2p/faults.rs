//! Failures while communicators for messages are made: of a call, of the store, of a follower.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Barrier,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use gpu_sim::{Action, Injection};
use process_group::{
    comm::{CommError, wait_for_dropped},
    group::{GroupError, GroupErrorKind, P2pPolicy, Request},
    store::{Deadline, StoreError},
};
use rusty_fork::rusty_fork_test;

use super::super::{
    common::{Machine, far, machine},
    hooked::Hooked,
};
use super::exchange;

/// Texts and versions, which errors query, and calls after the communicator is made, whose failures are
/// reported elsewhere.
const CANNOT_FAIL_IT: [&str; 6] = [
    "ncclGetErrorString",
    "ncclGetLastError",
    "ncclGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuCtxPopCurrent_v2",
];

rusty_fork_test! {
    #[test]
    fn a_followers_refusal_fails_the_making_on_all_and_every_communicator_is_told_of() {
        let machine = machine(2);
        process_group::comm::set_drop_error_hook(|_| ());
        let seen = AtomicUsize::new(0);
        let seen = &*Box::leak(Box::new(seen));
        machine.ranks(2, |rank| {
            let builder = rank.builder().p2p(P2pPolicy::Lanes(3)).follow(move |communicator| {
                communicator.check()?;
                seen.fetch_add(1, Ordering::Relaxed);
                Ok(())
            });
            let world = builder.build().unwrap();
            world.split("again", &Request::Color { color: Some(0), key: 0 }).unwrap().unwrap().destroy(far()).unwrap();
            world.destroy(far()).unwrap();
            let me = rank.rank;
            let error = rank.builder().epoch(1).follow(move |communicator| {
                let setting = CommError::Setting { setting: "follower", problem: communicator.name().into() };
                if me == 1 { Err(setting) } else { Ok(()) }
            }).build().unwrap_err();
            match me {
                0 => assert!(matches!(error.kind(), GroupErrorKind::Unmade { rank: 1, .. }), "{error}"),
                _ => assert!(matches!(error.kind(), GroupErrorKind::Comm(CommError::Setting { .. })), "{error}"),
            }
        });
        // Two ranks, two groups, each with its own communicator and three lanes.
        assert_eq!(seen.load(Ordering::Relaxed), 2 * 2 * 4);
        assert!(wait_for_dropped(far()));
        machine.world.finish().unwrap();
    }

    /// Every call of NCCL and of the driver that makes a communicator fails in turn, on either end.
    #[test]
    fn whatever_fails_in_the_making_is_a_typed_error_on_both_ends() {
        let machine = machine(2);
        process_group::comm::set_drop_error_hook(|_| ());
        let epoch = AtomicUsize::new(0);
        let counted = |machine: &Machine| -> BTreeMap<String, u64> {
            let ours = |(name, _): &(String, u64)| name.starts_with("nccl") || name.starts_with("cu");
            machine.world.faults().all_calls().into_iter().filter(ours).collect()
        };
        // The calls that make a communicator, counted while nothing else runs.
        let attempt = |policy: P2pPolicy, fault: Option<(&str, u64)>| {
            let (epoch, ready) = (epoch.fetch_add(1, Ordering::Relaxed) as u64, Barrier::new(2));
            let before = std::sync::Mutex::new(BTreeMap::new());
            let results = machine.ranks(2, |rank| {
                let world = rank.builder().epoch(epoch).lazy().p2p(policy).timeout(Duration::from_secs(20)).build().unwrap();
                if ready.wait().is_leader() {
                    if let Some((name, nth)) = fault {
                        machine.world.faults().inject(Injection::new(name, Action::Fail(2)).nth(nth)).unwrap();
                    }
                    *before.lock().unwrap() = counted(&machine);
                }
                ready.wait();
                let made = world.connect_to(1 - rank.rank, far());
                ready.wait();
                (made, world)
            });
            let after = counted(&machine);
            machine.world.faults().clear();
            let before = before.into_inner().unwrap();
            let new = |(name, count): (&String, &u64)| {
                let calls = count - before.get(name).unwrap_or(&0);
                (calls > 0).then(|| (name.clone(), calls))
            };
            (results, after.iter().filter_map(new).collect::<BTreeMap<_, _>>())
        };
        let mut struck = 0;
        for policy in [P2pPolicy::PerPair, P2pPolicy::Lanes(2)] {
            let (good, calls) = attempt(policy, None);
            for (made, world) in good {
                made.unwrap();
                drop(world);
            }
            assert!(wait_for_dropped(far()));
            for (name, count) in calls.iter().filter(|(name, _)| !CANNOT_FAIL_IT.contains(&name.as_str())) {
                for nth in 1..=*count {
                    let (results, _) = attempt(policy, Some((name, nth)));
                    let failures: Vec<_> = results.iter().filter_map(|(made, _)| made.as_ref().err()).collect();
                    // The group's watchdog calls this too, and may have hit the fault.
                    let is_watched = name.starts_with("cu") || name == "ncclCommGetAsyncError";
                    if is_watched && failures.is_empty() {
                        continue;
                    }
                    // Either both ends have it, or neither. The end that failed reports it, so neither waits
                    // for the deadline.
                    assert_eq!(failures.len(), 2, "{policy} {name} {nth}: {results:?}");
                    for error in &failures {
                        assert!(!matches!(error.kind(), GroupErrorKind::Absent { .. }), "{policy} {name} {nth}: {error}");
                        let late = format!("{error:?}").contains("DeadlineExceeded") || error.to_string().contains("not done");
                        assert!(!late, "{policy} {name} {nth}: {error}");
                    }
                    let own = |error: &&GroupError| !matches!(error.kind(), GroupErrorKind::Unmade { .. });
                    assert!(failures.iter().any(own), "{policy} {name} {nth}: {failures:?}");
                    // The group of a pair's communicator stays usable.
                    if policy == P2pPolicy::PerPair {
                        results.iter().for_each(|(_, world)| world.check().unwrap());
                    }
                    results.into_iter().for_each(|(_, world)| _ = world.abort(far()));
                    assert!(wait_for_dropped(far()));
                    struck += 1;
                }
            }
        }
        println!("{struck} calls were made to fail");
        assert!(struck >= 8, "only {struck} calls were made to fail");
        // The machine is still usable.
        machine.ranks(2, |rank| {
            let world = rank.builder().epoch(1 << 20).lazy().build().unwrap();
            exchange(&rank, &world, 1 - rank.rank).unwrap();
            world.destroy(far()).unwrap();
        });
    }

    /// One end loses the store at each of its calls in turn. It gets an error. The other end learns that the
    /// first has not come, has not done its part, or has left the group.
    #[test]
    fn a_store_that_is_lost_in_the_making_keeps_nobody_waiting() {
        let machine = machine(2);
        process_group::comm::set_drop_error_hook(|_| ());
        // The group's heartbeat thread also calls the store now and then.
        let mut survived = 0;
        for calls in 0.. {
            let ready = Barrier::new(2);
            let results = machine.ranks(2, |rank| {
                // The rank loses the store after some calls.
                let left = Arc::new(AtomicI64::new(i64::MAX));
                let counted = left.clone();
                let mortal = Hooked::new(&rank.store, move |_, _| match counted.fetch_sub(1, Ordering::Relaxed) {
                    1.. => Ok(()),
                    _ => Err(StoreError::Argument("the store is lost".into())),
                });
                let builder = rank.builder().epoch(calls).lazy().p2p(P2pPolicy::Auto);
                let builder = if rank.rank == 0 { builder.store(Arc::new(mortal)) } else { builder };
                let world = builder.build().unwrap();
                ready.wait();
                left.store(calls as i64, Ordering::Relaxed);
                let deadline = Deadline::after(Duration::from_millis(if rank.rank == 0 { 60_000 } else { 500 }));
                let made = world.connect_to(1 - rank.rank, deadline);
                left.store(i64::MAX, Ordering::Relaxed);
                made
            });
            assert!(wait_for_dropped(far()));
            let kinds: Vec<_> = results.iter().map(|result| result.as_ref().map_err(GroupError::kind)).collect();
            match &kinds[..] {
                [Ok(()), Ok(())] => survived += 1,
                // In doubt, it ends the group.
                [Err(GroupErrorKind::Store(_) | GroupErrorKind::MemberFailed { rank: 0, .. }), other] => assert!(
                    matches!(
                        other,
                        Ok(_)
                            | Err(
                                GroupErrorKind::Absent { .. }
                                    | GroupErrorKind::Unmade { .. }
                                    | GroupErrorKind::Left { .. }
                                    | GroupErrorKind::MemberFailed { rank: 0, .. }
                            )
                    ),
                    "{calls}: {other:?}"
                ),
                // A late end finds that the other has given up.
                [Err(GroupErrorKind::Absent { .. } | GroupErrorKind::Unmade { .. }), Err(_)] => {}
                other => panic!("{calls}: {other:?}"),
            }
            if survived == 2 {
                assert!(calls > 10, "{calls} calls of the store");
                break;
            }
        }
    }
}

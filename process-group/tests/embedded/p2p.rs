//! On which communicators messages go: how many are made, that both ends choose alike, and what happens when one cannot
//! be made.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Barrier,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use cuda_driver::graph::CaptureMode;
use gpu_sim::{Action, Injection};
use process_group::{
    ProcessGroup,
    comm::{CommError, DataType::F32, ReduceOp, wait_for_dropped},
    group::{Buffer, Disagreement, Explanation, GroupError, P2pPolicy, PeerChannel, Request, lane},
    store::{self, Deadline, HashStore, Store, StoreError},
};
use rusty_fork::rusty_fork_test;

use super::common::{Machine, Rank, far, machine, machine_with, soon, values};

const INIT: &str = "ncclCommInitRankConfig";
const SPLIT: &str = "ncclCommSplit";

/// Sends this rank's number to `peer` and receives that of `peer`, not grouped, on two streams.
fn exchange(rank: &Rank, group: &ProcessGroup, peer: usize) -> Result<(), GroupError> {
    let me = group.rank();
    let (from, to) = (rank.memory(&[me as f32]), rank.memory(&[-1.0]));
    let (from_buffer, to_buffer) = (Buffer::new(from.ptr(), 1, F32), Buffer::new(to.ptr(), 1, F32));
    let (out, back) = (group.send_stream(peer)?, group.recv_stream(peer)?);
    // On one communicator the messages are in one order: both ends begin with the lower rank's.
    let send = || unsafe { group.send(from_buffer, peer, out) };
    let recv = || unsafe { group.recv(to_buffer, peer, back) };
    let works = if me < peer { [send()?, recv()?] } else { [recv()?, send()?] };
    works.iter().try_for_each(|work| work.wait_timeout(far()))?;
    assert_eq!(values(&to), [peer as f32]);
    Ok(())
}

/// All pairs exchange, in the order that all members have.
fn all_pairs(rank: &Rank, group: &ProcessGroup) {
    let me = group.rank();
    for low in 0..group.size() {
        for high in low + 1..group.size() {
            match (low == me, high == me) {
                (true, _) => exchange(rank, group, high).unwrap(),
                (_, true) => exchange(rank, group, low).unwrap(),
                _ => {}
            }
        }
    }
}

fn all_reduce(rank: &Rank, group: &ProcessGroup) -> Result<f32, GroupError> {
    let memory = rank.memory(&[group.rank() as f32]);
    let buffer = Buffer::new(memory.ptr(), 1, F32);
    let stream = rank.stream();
    unsafe { group.all_reduce(buffer, buffer, ReduceOp::Sum, &stream) }?.wait_timeout(far())?;
    Ok(values(&memory)[0])
}

/// Texts and versions, which errors ask for; and what follows when everything is done, and is reported elsewhere.
const CANNOT_FAIL_IT: [&str; 6] = [
    "ncclGetErrorString",
    "ncclGetLastError",
    "ncclGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuCtxPopCurrent_v2",
];

/// A store that is lost to its rank after some calls.
struct Mortal {
    store: Arc<HashStore>,
    left: AtomicI64,
}

impl Mortal {
    fn alive(&self) -> store::Result<&HashStore> {
        match self.left.fetch_sub(1, Ordering::Relaxed) {
            1.. => Ok(&self.store),
            _ => Err(StoreError::Argument("the store is lost".into())),
        }
    }
}

impl Store for Mortal {
    fn set(&self, key: &str, value: &[u8]) -> store::Result<()> {
        self.alive()?.set(key, value)
    }
    fn get(&self, key: &str, deadline: Deadline) -> store::Result<Vec<u8>> {
        self.alive()?.get(key, deadline)
    }
    fn check(&self, keys: &[&str]) -> store::Result<bool> {
        self.alive()?.check(keys)
    }
    fn wait(&self, keys: &[&str], deadline: Deadline) -> store::Result<()> {
        self.alive()?.wait(keys, deadline)
    }
    fn add(&self, key: &str, delta: i64) -> store::Result<i64> {
        self.alive()?.add(key, delta)
    }
    fn compare_set(&self, key: &str, expected: &[u8], new: &[u8]) -> store::Result<Vec<u8>> {
        self.alive()?.compare_set(key, expected, new)
    }
    fn append(&self, key: &str, value: &[u8]) -> store::Result<()> {
        self.alive()?.append(key, value)
    }
    fn multi_get(&self, keys: &[&str], deadline: Deadline) -> store::Result<Vec<Vec<u8>>> {
        self.alive()?.multi_get(keys, deadline)
    }
    fn multi_set(&self, entries: &[(&str, &[u8])]) -> store::Result<()> {
        self.alive()?.multi_set(entries)
    }
    fn delete(&self, key: &str) -> store::Result<bool> {
        self.alive()?.delete(key)
    }
    fn num_keys(&self) -> store::Result<u64> {
        self.alive()?.num_keys()
    }
    fn list_keys(&self) -> store::Result<Vec<String>> {
        self.alive()?.list_keys()
    }
    fn queue_push(&self, key: &str, value: &[u8]) -> store::Result<()> {
        self.alive()?.queue_push(key, value)
    }
    fn queue_pop(&self, key: &str, deadline: Deadline) -> store::Result<Vec<u8>> {
        self.alive()?.queue_pop(key, deadline)
    }
    fn queue_try_pop(&self, key: &str) -> store::Result<Option<Vec<u8>>> {
        self.alive()?.queue_try_pop(key)
    }
    fn queue_len(&self, key: &str) -> store::Result<u64> {
        self.alive()?.queue_len(key)
    }
}

fn made(machine: &Machine) -> (u64, u64) {
    (machine.world.calls(INIT), machine.world.calls(SPLIT))
}

rusty_fork_test! {
    #[test]
    fn an_eager_group_has_no_communicator_beyond_its_own() {
        for policy in [P2pPolicy::Auto, P2pPolicy::Shared] {
            let machine = machine(4);
            machine.ranks(4, |rank| {
                let world = rank.builder().p2p(policy).build().unwrap();
                assert!(world.is_connected());
                all_pairs(&rank, &world);
                let report = world.p2p();
                assert_eq!((report.policy, report.communicators, report.ctas), (policy, 0, None));
                assert_eq!(report.explanations, [Explanation::Serialised]);
                let others = report.peers.iter().enumerate().filter(|(peer, _)| *peer != rank.rank);
                assert!(others.into_iter().all(|(_, channel)| *channel == PeerChannel::Group));
                world.destroy(far()).unwrap();
            });
            assert_eq!(made(&machine), (4, 0));
            machine.world.finish().unwrap();
        }
    }

    #[test]
    fn a_lazy_group_has_one_for_each_pair_that_speaks_before_the_first_collective() {
        let machine = machine(4);
        machine.ranks(4, |rank| {
            let world = rank.builder().lazy().build().unwrap();
            assert!(!world.is_connected());
            assert!(matches!(world.communicator().check(), Err(CommError::Unmade { .. })));
            world.check().unwrap();
            let me = rank.rank;
            // The pairs 0-1 and 2-3, twice: made once.
            exchange(&rank, &world, me ^ 1).unwrap();
            exchange(&rank, &world, me ^ 1).unwrap();
            assert!(!world.is_connected());
            assert_eq!(world.p2p().explanations, [Explanation::CommunicatorsOfPairs]);
            assert_eq!(all_reduce(&rank, &world).unwrap(), 6.0);
            assert!(world.is_connected());
            // What was chosen stays, and who speaks first now needs none.
            all_pairs(&rank, &world);
            let report = world.p2p();
            assert_eq!(report.communicators, 1);
            for (peer, channel) in report.peers.iter().enumerate() {
                let expected = match peer {
                    peer if peer == me => PeerChannel::Oneself,
                    peer if peer == me ^ 1 => PeerChannel::Pair,
                    _ => PeerChannel::Group,
                };
                assert_eq!(*channel, expected);
            }
            world.destroy(far()).unwrap();
        });
        // Two ends of each of two pairs, and the group's four.
        assert_eq!(made(&machine), (8, 0));
        machine.world.finish().unwrap();
    }

    #[test]
    fn pairs_have_their_own_whatever_came_before() {
        for lazy in [false, true] {
            let machine = machine(3);
            machine.ranks(3, |rank| {
                let builder = rank.builder().p2p(P2pPolicy::PerPair);
                let world = if lazy { builder.lazy() } else { builder }.build().unwrap();
                all_reduce(&rank, &world).unwrap();
                all_pairs(&rank, &world);
                let report = world.p2p();
                assert_eq!(report.communicators, 2);
                // 132 multiprocessors, for the group's and two pairs'.
                assert_eq!(report.ctas, Some((1, 32)));
                world.destroy(far()).unwrap();
            });
            assert_eq!(made(&machine), (3 + 2 * 3, 0));
            machine.world.finish().unwrap();
        }
    }

    #[test]
    fn lanes_are_made_by_all_members_with_the_groups_communicator() {
        for (release, lazy) in [(22809, false), (22809, true), (21705, false), (21705, true)] {
            let machine = machine_with(4, release);
            machine.ranks(4, |rank| {
                let builder = rank.builder().p2p(P2pPolicy::Lanes(6));
                let world = if lazy { builder.lazy() } else { builder }.build().unwrap();
                all_pairs(&rank, &world);
                let report = world.p2p();
                assert_eq!((report.communicators, report.ctas), (6, Some((1, 18))));
                assert!(report.explanations.is_empty(), "{:?}", report.explanations);
                let me = rank.rank;
                for (peer, channel) in report.peers.iter().enumerate().filter(|(peer, _)| *peer != me) {
                    let (send, receive) = (lane(4, me, peer, 6), lane(4, peer, me, 6));
                    assert_eq!(*channel, PeerChannel::Lane { send, receive });
                }
                assert_eq!(all_reduce(&rank, &world).unwrap(), 6.0);
                world.destroy(far()).unwrap();
            });
            let expected = if release >= 21800 { (4, 24) } else { (28, 0) };
            assert_eq!(made(&machine), expected, "release {release}");
            machine.world.finish().unwrap();
        }
    }

    #[test]
    fn batches_and_subgroups_keep_to_the_policy() {
        for (lazy, policy) in [(false, P2pPolicy::Lanes(2)), (true, P2pPolicy::Auto), (true, P2pPolicy::PerPair)] {
            let machine = machine(4);
            machine.ranks(4, |rank| {
                let builder = rank.builder().p2p(policy);
                let world = if lazy { builder.lazy() } else { builder }.build().unwrap();
                let me = rank.rank;
                let (from, to, stream) = (rank.memory(&[me as f32]), rank.memory(&[0.0]), rank.stream());
                let (from, into) = (Buffer::new(from.ptr(), 1, F32), Buffer::new(to.ptr(), 1, F32));
                // In a circle, which a batch alone can do.
                world.batch(&stream, |batch| unsafe {
                    batch.send(from, (me + 1) % 4)?;
                    batch.recv(into, (me + 3) % 4)
                }).unwrap().wait_timeout(far()).unwrap();
                assert_eq!(values(&to), [((me + 3) % 4) as f32]);
                assert!(world.is_connected());
                assert!(!world.p2p().peers.contains(&PeerChannel::Pair));
                let pair = world.split("pair", &Request::Color { color: Some(me as u32 / 2), key: 0 });
                let pair = pair.unwrap().unwrap();
                assert_eq!((pair.is_connected(), pair.p2p().policy), (!lazy, policy));
                exchange(&rank, &pair, 1 - pair.rank()).unwrap();
                assert_eq!(all_reduce(&rank, &pair).unwrap(), 1.0);
                let expected = if let P2pPolicy::Lanes(lanes) = policy { lanes as usize } else { 1 };
                assert_eq!(pair.p2p().communicators, expected);
                pair.destroy(far()).unwrap();
                world.destroy(far()).unwrap();
            });
            machine.world.finish().unwrap();
        }
    }

    #[test]
    fn what_is_never_used_is_never_made_and_ends_like_any_other() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.builder().lazy().build().unwrap();
            world.barrier(far()).unwrap();
            let again = world.split("again", &Request::Color { color: Some(0), key: 0 }).unwrap().unwrap();
            let third = world.split("third", &Request::Color { color: Some(0), key: 0 }).unwrap().unwrap();
            again.destroy(far()).unwrap();
            third.abort(far()).unwrap();
            world.quiesce(far()).unwrap();
            world.destroy(far()).unwrap();
            let dropped = rank.builder().epoch(1).lazy().build().unwrap();
            drop(dropped);
        });
        assert!(wait_for_dropped(far()));
        assert_eq!(made(&machine), (0, 0));
        // What says farewell in the background may hold the device a moment longer.
        assert_eq!(machine.world.calls("ncclCommAbort") + machine.world.calls("ncclCommDestroy"), 0);
    }

    #[test]
    fn who_does_not_come_to_the_first_collective_is_named_and_may_come_to_the_next() {
        let machine = machine(3);
        machine.ranks(3, |rank| {
            let world = rank.builder().lazy().build().unwrap();
            if rank.rank != 1 {
                let error = world.connect(soon()).unwrap_err();
                assert!(matches!(&error, GroupError::Absent { ranks, .. } if *ranks == [1]), "{error}");
            }
            world.barrier(far()).unwrap();
            if rank.rank == 1 {
                // Too late for that one, as the others know.
                let error = world.connect(soon()).unwrap_err();
                assert!(matches!(&error, GroupError::Absent { ranks, .. } if *ranks == [1]), "{error}");
            }
            world.connect(far()).unwrap();
            assert_eq!(all_reduce(&rank, &world).unwrap(), 3.0);
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn who_does_not_answer_a_message_is_named_and_the_group_goes_on() {
        let machine = machine(3);
        machine.ranks(3, |rank| {
            let world = rank.builder().lazy().build().unwrap();
            if rank.rank == 0 {
                let error = world.connect_to(2, soon()).unwrap_err();
                assert!(matches!(&error, GroupError::Absent { ranks, .. } if *ranks == [2]), "{error}");
            }
            world.barrier(far()).unwrap();
            if rank.rank == 2 {
                world.connect_to(0, soon()).unwrap_err();
            }
            all_pairs(&rank, &world);
            assert_eq!(all_reduce(&rank, &world).unwrap(), 3.0);
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn nothing_is_made_for_what_is_captured() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = rank.builder().lazy().p2p(P2pPolicy::PerPair).build().unwrap();
            let (stream, memory) = (rank.stream(), rank.memory(&[1.0]));
            let buffer = Buffer::new(memory.ptr(), 1, F32);
            let capture = stream.begin_capture(CaptureMode::ThreadLocal).unwrap();
            for refused in [
                unsafe { world.all_reduce(buffer, buffer, ReduceOp::Sum, &stream) },
                unsafe { world.send(buffer, 1 - rank.rank, &stream) },
            ] {
                let error = refused.unwrap_err();
                assert!(matches!(error, GroupError::UnmadeInCapture { .. }), "{error}");
            }
            drop(capture.end().unwrap());
            assert_eq!((world.sequence(), world.dump().entries.len()), (0, 0));
            let outside = world.connect_to(2, far()).unwrap_err();
            assert!(matches!(outside, GroupError::NoSuchRank { rank: 2, size: 2 }), "{outside}");
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
    }

    #[test]
    fn members_that_were_told_differently_are_told_so() {
        let machine = machine(3);
        let different = [("p2p policy", "lanes(2)", "auto"), ("initialisation", "lazy", "eager")];
        for (epoch, (name, told, others)) in different.into_iter().enumerate() {
            machine.ranks(3, |rank| {
                let builder = rank.builder().epoch(epoch as u64);
                let builder = match (rank.rank, epoch) {
                    (1, 0) => builder.p2p(P2pPolicy::Lanes(2)),
                    (1, _) => builder.lazy(),
                    _ => builder,
                };
                let error = builder.build().unwrap_err();
                let GroupError::Disagreement { source: Disagreement::Setting { setting, rank: who, value, other, other_value }, .. } = error
                else { panic!("{error}") };
                assert_eq!((&*setting, who, &*value, other, &*other_value), (name, 1, told, 0, others));
            });
        }
        let refused = machine.ranks(1, |rank| rank.builder().p2p(P2pPolicy::Lanes(0)).build().unwrap_err());
        assert!(matches!(refused[0], GroupError::Setting { .. }), "{}", refused[0]);
        machine.world.finish().unwrap();
    }

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
                0 => assert!(matches!(error, GroupError::Unmade { rank: 1, .. }), "{error}"),
                _ => assert!(matches!(error, GroupError::Comm(CommError::Setting { .. })), "{error}"),
            }
        });
        // Two ranks, two groups, each with its own and three lanes.
        assert_eq!(seen.load(Ordering::Relaxed), 2 * 2 * 4);
        assert!(wait_for_dropped(far()));
        machine.world.finish().unwrap();
    }

    #[test]
    fn an_abort_ends_every_communicator_of_the_group() {
        for policy in [P2pPolicy::Lanes(2), P2pPolicy::PerPair] {
            let machine = super::common::faithful(2, 22809);
            machine.ranks(2, |rank| {
                let world = rank.builder().p2p(policy).build().unwrap();
                exchange(&rank, &world, 1 - rank.rank).unwrap();
                let (stream, memory) = (rank.stream(), rank.memory(&[0.0]));
                let buffer = Buffer::new(memory.ptr(), 1, F32);
                // Nobody sends.
                let work = unsafe { world.recv(buffer, 1 - rank.rank, &stream) }.unwrap();
                assert!(work.wait_timeout(soon()).is_err());
                let end = world.abort_handle();
                end.abort(far()).unwrap();
                let error = work.wait_timeout(far()).unwrap_err();
                assert!(matches!(error, GroupError::Comm(CommError::Closed { .. })), "{error}");
                world.abort(far()).unwrap();
                stream.synchronize().unwrap();
            });
            machine.world.finish().unwrap();
        }
    }

    /// Every call of NCCL and of the driver that the making of a communicator takes is made to fail, on either end.
    #[test]
    fn whatever_fails_in_the_making_is_a_typed_error_on_both_ends() {
        let machine = machine(2);
        process_group::comm::set_drop_error_hook(|_| ());
        let epoch = AtomicUsize::new(0);
        let counted = |machine: &Machine| -> BTreeMap<String, u64> {
            let ours = |(name, _): &(String, u64)| name.starts_with("nccl") || name.starts_with("cu");
            machine.world.faults().all_calls().into_iter().filter(ours).collect()
        };
        // What making takes: the calls of it alone, counted while nothing else runs.
        let attempt = |policy: P2pPolicy, fault: Option<(&str, u64)>| {
            let (epoch, ready) = (epoch.fetch_add(1, Ordering::Relaxed) as u64, Barrier::new(2));
            let before = std::sync::Mutex::new(BTreeMap::new());
            let results = machine.ranks(2, |rank| {
                let world = rank.builder().epoch(epoch).lazy().p2p(policy).timeout(Duration::from_secs(20)).build().unwrap();
                if ready.wait().is_leader() {
                    if let Some((name, nth)) = fault {
                        machine.world.faults().inject(Injection::new(name, Action::Fail(2)).nth(nth));
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
                    // The group's watchdog asks the driver too, and may have met it.
                    if name.starts_with("cu") && failures.is_empty() {
                        continue;
                    }
                    // Either both have it, or none; and who failed says so: nobody waits for the deadline.
                    assert_eq!(failures.len(), 2, "{policy} {name} {nth}: {results:?}");
                    for error in &failures {
                        assert!(!matches!(error, GroupError::Absent { .. }), "{policy} {name} {nth}: {error}");
                        let late = format!("{error:?}").contains("DeadlineExceeded") || error.to_string().contains("not done");
                        assert!(!late, "{policy} {name} {nth}: {error}");
                    }
                    let own = |error: &&GroupError| !matches!(error, GroupError::Unmade { .. });
                    assert!(failures.iter().any(own), "{policy} {name} {nth}: {failures:?}");
                    for (_, world) in results {
                        // The group of a pair's communicator goes on.
                        if policy == P2pPolicy::PerPair {
                            world.check().unwrap();
                        }
                        let _ = world.abort(far());
                    }
                    assert!(wait_for_dropped(far()));
                    struck += 1;
                }
            }
        }
        println!("{struck} calls were made to fail");
        assert!(struck >= 8, "only {struck} calls were made to fail");
        // The machine is as good as before.
        machine.ranks(2, |rank| {
            let world = rank.builder().epoch(1 << 20).lazy().build().unwrap();
            exchange(&rank, &world, 1 - rank.rank).unwrap();
            world.destroy(far()).unwrap();
        });
    }

    /// One end loses the store at each of its calls in the making: it is told so, and the other end, by its deadline, that
    /// the first has not come, or has not done its part.
    #[test]
    fn a_store_that_is_lost_in_the_making_keeps_nobody_waiting() {
        let machine = machine(2);
        process_group::comm::set_drop_error_hook(|_| ());
        // The group's thread that answers questions calls the store too, now and then.
        let mut survived = 0;
        for calls in 0.. {
            let ready = Barrier::new(2);
            let results = machine.ranks(2, |rank| {
                let mortal = Arc::new(Mortal { store: rank.store.clone(), left: AtomicI64::new(i64::MAX) });
                let builder = rank.builder().epoch(calls).lazy().p2p(P2pPolicy::Auto);
                let builder = if rank.rank == 0 { builder.store(mortal.clone()) } else { builder };
                let world = builder.build().unwrap();
                ready.wait();
                mortal.left.store(calls as i64, Ordering::Relaxed);
                let deadline = Deadline::after(Duration::from_millis(if rank.rank == 0 { 60_000 } else { 500 }));
                let made = world.connect_to(1 - rank.rank, deadline);
                mortal.left.store(i64::MAX, Ordering::Relaxed);
                made
            });
            assert!(wait_for_dropped(far()));
            match &results[..] {
                [Ok(()), Ok(())] => survived += 1,
                [Err(GroupError::Store(_)), other] => assert!(
                    matches!(other, Ok(()) | Err(GroupError::Absent { .. } | GroupError::Unmade { .. })),
                    "{calls}: {other:?}"
                ),
                // Who is late finds that the other has given up.
                [Err(GroupError::Absent { .. } | GroupError::Unmade { .. }), Err(_)] => {}
                other => panic!("{calls}: {other:?}"),
            }
            if survived == 2 {
                assert!(calls > 10, "{calls} calls of the store");
                break;
            }
        }
    }

    #[test]
    fn two_threads_make_a_pairs_communicator_once() {
        let machine = machine(2);
        machine.ranks(2, |rank| {
            let world = Arc::new(rank.builder().lazy().build().unwrap());
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| world.connect_to(1 - rank.rank, far()).unwrap());
                }
            });
            assert_eq!(world.p2p().communicators, 1);
            Arc::into_inner(world).unwrap().destroy(far()).unwrap();
        });
        assert_eq!(made(&machine), (2, 0));
        machine.world.finish().unwrap();
    }
}

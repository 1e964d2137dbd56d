//! Commits and retirements by ranks that are processes: the orders in which they commit for several groups, and the
//! remains when one of them is killed.

use std::{sync::Arc, thread, time::Duration};

use cuda_driver::Driver;
use gpu_sim::{Action, Injection, World};
use nccl_sys::ncclResult_t;
use process_group::{
    ProcessGroup,
    comm::Nccl,
    group::{GroupErrorKind, Request},
    link,
    store::{Store, barrier},
};
use symm_mem::{
    CommitOptions, Domain, Error, ErrorKind, Geometry, Poison, Refusal, RetireReport, SymmetricGroup,
    SymmetricPool,
    rendezvous::{Rendezvous, RendezvousOptions},
};

use super::{NCCL_2_28_9, job::soon};
use crate::processes::{End, Fatal, Told, descriptors, far, kill_each, kill_until_it_survives, run_all};

const RANKS: usize = 4;

/// Name of the test that runs one rank.
const BODY: &str = concat!(module_path!(), "::one_rank");

/// The rank that is killed in some cases.
const VICTIM: usize = 1;

/// The case in which the victim dies in `ncclCommWindowRegister`, where rank 0 gets an error of a remote rank.
const REMOTE: &str = "remote";

/// Deadline of calls from which a rank may be missing. Half of it passes if the missing rank is not known to be lost.
/// All ranks that are to come are ready when it begins.
const SHORT: Duration = Duration::from_secs(24);

/// One rank as a process.
struct Member {
    rank: usize,
    machine: World,
    world: ProcessGroup,
    store: Arc<Fatal>,
    pool: SymmetricPool,
}

impl Member {
    fn join(told: &Told) -> Self {
        let rank = told.rank;
        let machine = World::builder().devices(RANKS).capacity(256 << 20).nccl_release(NCCL_2_28_9);
        let machine = machine.start().unwrap();
        // SAFETY: the functions are those of the living world, and nothing of it outlives the world.
        let (cuda, nccl) = unsafe {
            (cuda_driver::sys::Api::from_parts(machine.cuda()), nccl_sys::Api::from_parts(machine.nccl()))
        };
        let context =
            Driver::new(cuda.unwrap()).unwrap().device(rank as u32).unwrap().retain_primary().unwrap();
        let world = ProcessGroup::builder()
            .rank(rank)
            .world_size(RANKS)
            .store(Arc::new(told.store()))
            .context(&context)
            .nccl(&Nccl::new(nccl.unwrap()))
            .timeout(Duration::from_secs(60))
            // A survivor waits two of them for the cause of an error.
            .heartbeat(Duration::from_secs(if told.case.contains(REMOTE) { 10 } else { 1 }))
            .build()
            .unwrap();
        let store = Arc::new(Fatal::new(told.store()));
        let domain = Domain::new(store.clone(), 7, rank as u32, 0..RANKS as u32).unwrap();
        let geometry = Geometry { first_segment: 2 << 20, largest_segment: 2 << 20 };
        let pool = SymmetricPool::new(&domain, &context, geometry).unwrap();
        Self { rank, machine, world, store, pool }
    }

    fn meet(&self, name: &str) {
        barrier(&self.store.inner, name, self.rank, RANKS, far()).unwrap();
    }

    /// Splits off the group of the ranks with the same `color`.
    fn split(&self, name: &str, color: usize) -> ProcessGroup {
        let request = Request::Color { color: Some(color as u32), key: self.rank as i64 };
        self.world.split(name, &request).unwrap().unwrap()
    }

    /// On the victim: dies at the `nth` call of `what` from now.
    fn doom(&self, what: &str, nth: u64) {
        let what = if what == REMOTE { "ncclCommWindowRegister" } else { what };
        if self.rank == VICTIM {
            self.store.doom(what, nth, RANKS, &self.machine);
        }
    }

    /// Aborts all groups, and checks that nothing is left.
    fn leave(self, others: Vec<ProcessGroup>) {
        let Self { machine, world, store, pool, .. } = self;
        drop((pool, store));
        for group in others.into_iter().chain([world]) {
            group.abort(soon()).unwrap();
        }
        process_group::comm::wait_for_dropped(soon());
        machine.finish().unwrap();
    }
}

/// The body of a rank; the tests below start it.
#[test]
#[ignore = "the body of a process that a test starts"]
fn one_rank() {
    let told = Told::hear();
    match told.case.split_once(' ').unwrap_or((&told.case, "")) {
        ("next", _) => link::sweep(),
        ("order", dp_first) => commit_in_order(&told, dp_first),
        (deed, at) => {
            let before = descriptors();
            let (what, nth) = at.split_once(' ').unwrap();
            match deed {
                "commit" => commit_with_a_victim(&told, what, nth.parse().unwrap()),
                _ => retire_with_a_victim(&told, what, nth.parse().unwrap()),
            }
            // Threads that are about to end still close their descriptors.
            let late = soon();
            while descriptors() > before && !late.expired() {
                thread::sleep(Duration::from_millis(10));
            }
            assert!(descriptors() <= before, "{}: descriptors are left", told.case);
        }
    }
}

/// Commits for the rank's neighbours (TP) and for its stride (DP); DP comes first if the rank's digit of `dp_first`
/// is 1.
fn commit_in_order(told: &Told, dp_first: &str) {
    let member = Member::join(told);
    let (tp, dp) = (member.split("tp", member.rank / 2), member.split("dp", member.rank % 2));
    let block = member.pool.allocate(1 << 20).unwrap();
    let circle = matches!(dp_first, "1001" | "0110");
    let options =
        CommitOptions::default().verify(true).deadline(if circle { SHORT } else { Duration::from_secs(100) });
    let groups = match dp_first.as_bytes()[member.rank] {
        b'1' => [&dp, &tp],
        _ => [&tp, &dp],
    };
    member.meet("ready");
    let results = groups.map(|group| member.pool.commit(group, options));
    let said = format!("{:?}", results[0].as_ref().map_err(Error::refusal).map(|it| it.windows));
    match (&results, circle) {
        ([Ok(first), Ok(second)], false) => assert_eq!((first.windows, second.windows), (1, 1)),
        ([Err(first), Err(second)], true) => {
            let Some(Refusal::SyncTimeout { circle, .. }) = first.refusal() else { panic!("{first}") };
            assert!(circle.iter().map(|waiting| waiting.rank).eq(0..RANKS as u32), "{first}");
            // A rank that arrives late finds the decision that was made without it.
            assert_eq!(second.name(), "SyncTimeout", "{second}");
            member
                .store
                .inner
                .set(&format!("said/{}", member.rank), format!("{circle:?}").as_bytes())
                .unwrap();
            let of = |rank| member.store.inner.get(&format!("said/{rank}"), far()).unwrap();
            assert_eq!(of(0), of(member.rank), "every rank of the circle is told the same");
        }
        _ => panic!("rank {} in the order {dp_first}: {results:?}, {said}", member.rank),
    }
    member.meet("end");
    drop(block);
    member.leave(vec![tp, dp]);
}

/// Commits once successfully, and once while a rank is killed at the `nth` call of `what`: a call of the store or of
/// the library.
fn commit_with_a_victim(told: &Told, what: &str, nth: u64) {
    let member = Member::join(told);
    let first = member.pool.allocate(2 << 20).unwrap();
    let long = CommitOptions::default().verify(true).deadline(Duration::from_secs(100));
    assert_eq!(member.pool.commit(&member.world, long).unwrap().windows, 1);
    let second = member.pool.allocate(2 << 20).unwrap();
    member.meet("ready");
    member.doom(what, nth);
    if what == REMOTE {
        // Rank 0 gets an error before it notices the loss, as if another survivor had aborted its communicator.
        let fail = Action::Fail(ncclResult_t::ncclRemoteError.0);
        let fault = match member.rank {
            0 => Some(Injection::new("ncclCommWindowRegister", fail)),
            VICTIM => Some(Injection::new("ncclGroupStart", Action::Delay(Duration::from_millis(500)))),
            _ => None,
        };
        fault.into_iter().for_each(|fault| member.machine.faults().inject(fault).unwrap());
    }
    let result = member.pool.commit(&member.world, long.deadline(SHORT));
    if member.rank == VICTIM {
        member.store.survived(&told.case, result.is_ok());
    }
    match result.as_ref().map_err(Error::kind) {
        // It died inside the registration.
        Err(ErrorKind::GroupOver { cause }) if what.starts_with("nccl") || what == REMOTE => {
            assert!(
                matches!(cause.kind(), GroupErrorKind::Lost { rank: VICTIM, .. }),
                "{what} {nth}: {cause}"
            );
        }
        result if what.starts_with("nccl") || what == REMOTE => panic!("{what} {nth}: {result:?}"),
        // It died after it had read the verdict, or before any rank could notice; or the watchdog was faster.
        Ok(_) | Err(ErrorKind::GroupOver { .. }) => {}
        Err(ErrorKind::Refused(Refusal::SyncTimeout { missing, .. })) => {
            assert!(missing.iter().any(|absentee| absentee.rank == VICTIM as u32), "{missing:?}");
        }
        Err(ErrorKind::Poisoned { poison: Poison::MembersLost { missing, .. }, .. }) => {
            assert!(missing.contains(&(VICTIM as u32)), "{missing:?}");
        }
        // Another rank noticed the loss first.
        Err(ErrorKind::Refused(Refusal::MemberLost { rank, .. })) => {
            assert_eq!(*rank, VICTIM as u32, "{what} {nth}");
        }
        // A watchdog was faster, on a rank that had not arrived yet: it names the lost rank.
        Err(ErrorKind::Refused(Refusal::PeerPrepareFailed { cause, .. })) => {
            assert!(cause.contains(&format!("rank {VICTIM}")), "{what} {nth}: {cause}");
        }
        Err(other) => panic!("{what} {nth}: {other}"),
    }
    drop((result, first, second));
    member.leave(Vec::new());
}

/// Retires one of two segments that is in windows of two groups and mapped by all peers, while a rank is killed at
/// the `nth` call of `what`.
fn retire_with_a_victim(told: &Told, what: &str, nth: u64) {
    let member = Member::join(told);
    let tp = member.split("tp", member.rank / 2);
    let [first, second] = [0, 1].map(|_| member.pool.allocate(2 << 20).unwrap());
    let long = Duration::from_secs(100);
    for group in [&member.world, &tp] {
        assert_eq!(member.pool.commit(group, CommitOptions::default().deadline(long)).unwrap().windows, 2);
    }
    let meeting = RendezvousOptions::default().deadline(long);
    let rendezvous = Rendezvous::of(&member.world, meeting).unwrap();
    drop((rendezvous.rendezvous(&first).unwrap(), first));
    member.meet("ready");
    member.doom(what, nth);
    let groups: [&dyn SymmetricGroup; 2] = [&member.world, &tp];
    let result = member.pool.retire(&[0], &groups, SHORT);
    if member.rank == VICTIM {
        member.store.survived(&told.case, result.is_ok());
    }
    // The survivors were told the same, except that each lists its own groups.
    let said = match result.as_ref().map_err(Error::kind) {
        // It died after it had read the verdict.
        Ok(RetireReport { bytes, windows, .. }) => format!("{bytes} bytes of {windows} windows"),
        Err(ErrorKind::Refused(refusal)) => {
            let is_named = match refusal {
                Refusal::SyncTimeout { missing, .. } => missing.iter().any(|it| it.rank == VICTIM as u32),
                Refusal::MemberLost { rank, .. } | Refusal::QuiesceFailed { rank, .. } => {
                    *rank == VICTIM as u32
                }
                // A rank that begins after the group has ended reports that.
                Refusal::PeerPrepareFailed { cause, .. } => cause.contains(&format!("rank {VICTIM}")),
                _ => false,
            };
            assert!(is_named, "{what} {nth}: {refusal}");
            refusal.to_string()
        }
        Err(ErrorKind::Poisoned { poison, groups }) => {
            let silent: &[u32] = match poison {
                Poison::MembersLost { missing, .. } => missing,
                // It had reported that its windows were gone.
                Poison::RetirementFailed { cause, .. } if cause.contains(&format!("rank {VICTIM}")) => &[],
                other => panic!("{what} {nth}: {other}"),
            };
            assert!(silent.is_empty() || silent.contains(&(VICTIM as u32)), "{what} {nth}: {poison}");
            // The groups of a rank that did not report are poisoned. Of the groups of a rank that did, only those are
            // poisoned that were seen to have ended.
            let [world, pair] = [&member.world, &tp].map(|group| groups.contains(&group.id()));
            let is_pair_of = |rank: u32| rank as usize / 2 == member.rank / 2;
            let is_right = match silent {
                [] => !pair || is_pair_of(VICTIM as u32),
                silent => world && pair == silent.iter().copied().any(is_pair_of),
            };
            assert!(
                is_right && groups.len() == usize::from(world) + usize::from(pair),
                "{what} {nth}: {poison}, {groups:?}"
            );
            format!("{poison}, for the world {world}")
        }
        Err(other) => panic!("{what} {nth}: {other}"),
    };
    member.store.inner.set(&format!("said/{}", member.rank), said.as_bytes()).unwrap();
    for survivor in (0..RANKS).filter(|rank| *rank != VICTIM) {
        let heard = member.store.inner.get(&format!("said/{survivor}"), far()).unwrap();
        assert_eq!(heard, said.as_bytes(), "{what} {nth}: {} beside {said}", String::from_utf8_lossy(&heard));
    }
    drop((result, second, rendezvous));
    member.leave(vec![tp]);
}

#[test]
fn processes_commit_in_any_order_or_are_all_told_of_the_circle() {
    let orders = ["0000", "0010", "1011", "1111", "1001", "0110"];
    let cases = orders.iter().map(|order| format!("order {order}"));
    run_all(BODY, cases, RANKS, |case, ended| {
        assert_eq!(ended, [End::Well; RANKS], "{case}");
        true
    });
}

#[test]
fn a_rank_that_is_killed_at_any_step_of_a_commit_leaves_nothing_and_keeps_nobody() {
    let calls = ["ncclGroupStart 1", "ncclCommWindowRegister 1", "ncclGroupEnd 1", "remote 1"];
    let cases = (1..=6).map(|nth| format!("store {nth}")).chain(calls.map(str::to_owned));
    let cases: Vec<String> = cases.map(|case| format!("commit {case}")).collect();
    kill_each(BODY, &cases, RANKS, VICTIM);
    kill_until_it_survives(BODY, "commit ", RANKS, VICTIM);
}

#[test]
fn a_rank_that_is_killed_at_any_step_of_a_retirement_leaves_nothing_and_keeps_nobody() {
    let calls =
        ["cuCtxSynchronize 1", "cuMemUnmap 1", "ncclCommWindowDeregister 1", "ncclCommWindowDeregister 2"];
    let cases = (1..=6).map(|nth| format!("store {nth}")).chain(calls.map(str::to_owned));
    let cases: Vec<String> = cases.map(|case| format!("retire {case}")).collect();
    kill_each(BODY, &cases, RANKS, VICTIM);
    kill_until_it_survives(BODY, "retire ", RANKS, VICTIM);
}

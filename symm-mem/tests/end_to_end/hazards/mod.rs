//! Hazards of memory that several ranks share, and the tests that cause them.
//!
//! This file covers every way in which a commit's records can differ, at every member, for groups of two to five
//! ranks: all members are given the same error, with rank, ordinal and both values. An index lists the tests of every
//! hazard and every error in all files; a test checks that they exist.

mod beside;
mod captures;
mod index;
mod lifetimes;
mod processes;
mod promises;
mod readers;
mod signals;

use std::{collections::BTreeMap, thread, time::Duration};

use bootstrap::agreement::{Answer as StoreAnswer, Input};
use process_group::store::Store as _;
use symm_mem::agreement::{
    Capabilities, Capability, CommitOutcome, CommitPlan, CommitRecord, Divergence, Ending, GroupId, GroupLog,
    LogPoint, Operation, OperationKind, PeerOffer, Poison, Policy, PoolId, RankList, Readiness, Refusal,
    RegistrationOutcome, Segment, WindowSupport,
};
use symm_mem::{Domain, Geometry, SymmetricPool};

use super::{
    embedded::job::{self, commit_key, options, soon},
    orders::{At, Commit, Next, Store, ready},
};

const NCCL: i32 = 22809;

/// A rank's contribution to a commit.
#[derive(Clone)]
struct Side {
    epoch: u64,
    /// Sizes of the allocations that have a segment of their own.
    sizes: Vec<u64>,
    /// Sizes of the allocations in the first segment, before it had the second one.
    blocks: Vec<u64>,
    retired: Vec<u32>,
    readiness: Readiness,
    library: u32,
    windows: WindowSupport,
    left: Option<u64>,
    outcome: RegistrationOutcome,
}

const MIB: u64 = 1 << 20;

fn side() -> Side {
    Side {
        epoch: 0,
        sizes: vec![2 * MIB, 4 * MIB],
        blocks: Vec::new(),
        retired: Vec::new(),
        readiness: Readiness::Ready,
        library: 22809,
        windows: WindowSupport::Available,
        left: None,
        outcome: RegistrationOutcome::Registered,
    }
}

impl Side {
    /// The sizes of all its allocations, in their order.
    fn allocations(&self) -> Vec<u64> {
        let (first, others) = self.sizes.split_at(self.sizes.len().min(1));
        [first, &self.blocks, others].concat()
    }

    fn hash_at(&self, length: u64) -> u64 {
        self.allocations().iter().take(length as usize).fold(1, |hash, bytes| hash * 31 + bytes)
    }

    fn begin(&self, rank: u32, members: u32) -> Commit {
        let pool = PoolId { domain: 1, generation: 1, instance: 1, pool: 0 };
        let mut log =
            GroupLog::new(pool, GroupId { uid: 1, epoch: self.epoch }, rank, (0..members).collect());
        self.retired.iter().for_each(|ordinal| log.retire(*ordinal));
        let point = |length: u64| LogPoint { length, hash: self.hash_at(length) };
        let segment = |(ordinal, bytes): (u32, &u64)| Segment {
            ordinal,
            bytes: *bytes,
            flags: 0,
            log: point(u64::from(ordinal) + 1 + if ordinal > 0 { self.blocks.len() as u64 } else { 0 }),
        };
        let record = CommitRecord {
            policy: Policy::Strict,
            readiness: self.readiness.clone(),
            domain: RankList((0..members).collect()),
            capabilities: Capabilities { library: self.library, windows: self.windows.clone() },
            enqueued: Vec::new(),
            address_space_left: self.left,
            committed: log.committed(),
            log: point(self.allocations().len() as u64),
            log_since: 0,
            segments: (0..)
                .zip(&self.sizes)
                .map(segment)
                .filter(|it| !self.retired.contains(&it.ordinal))
                .collect(),
            peers: PeerOffer::Missing { cause: "these ranks have no memory".to_owned() },
        };
        Commit::new(log.begin(record, Duration::from_secs(30)).0)
    }

    fn operation(&self, sequence: u64) -> Option<Operation> {
        let bytes = *self.allocations().get(sequence as usize)?;
        let call_site = "train.rs:7".to_owned();
        Some(Operation { kind: OperationKind::Allocate, bytes, place: None, tag: None, call_site })
    }
}

/// Runs a commit of all members, except the absent ones (`None`). Returns the result of each member that takes part.
fn commit(sides: &[Option<Side>]) -> Vec<Ending> {
    let mut store = Store::default();
    let mut now = Duration::ZERO;
    let mut ends: BTreeMap<usize, Ending> = BTreeMap::new();
    let begin = |(rank, side): (usize, &Option<Side>)| {
        let machine = side.as_ref()?.begin(rank as u32, sides.len() as u32);
        Some((rank, machine, At::Ready(None)))
    };
    let mut running: Vec<(usize, Commit, At)> = sides.iter().enumerate().filter_map(begin).collect();
    while !running.is_empty() {
        let next = running.iter().position(|(_, _, at)| store.lets_go_on(at));
        let chosen = next.unwrap_or_else(|| {
            let until = |(_, _, at): &(usize, Commit, At)| match at {
                At::Key(_, until) => *until,
                _ => Duration::MAX,
            };
            let first = (0..running.len()).min_by_key(|at| until(&running[*at])).expect("one is left");
            now = now.max(until(&running[first]));
            running[first].2 = ready(StoreAnswer::Expired);
            first
        });
        now += Duration::from_micros(1);
        let (rank, machine, at) = &mut running[chosen];
        let side = sides[*rank].as_ref().expect("who is absent does not run");
        let input = store.input(at);
        let answer = match machine.step(input, &mut store, now) {
            Next::Ended(result) => {
                ends.insert(*rank, result.expect_err("something is wrong"));
                running.remove(chosen);
                continue;
            }
            Next::Store(request) => {
                *at = store.answer(request);
                continue;
            }
            Next::Act(CommitPlan::Hashes { range, .. }) => {
                CommitOutcome::hashes(range, |length| Some(side.hash_at(length)))
            }
            Next::Act(CommitPlan::Recall { sequence, .. }) => {
                let length = side.allocations().len() as u64;
                CommitOutcome::recalled(sequence, length, |sequence| side.operation(sequence))
            }
            Next::Act(CommitPlan::Register { .. }) => CommitOutcome::Registered(side.outcome.clone()),
            Next::Act(CommitPlan::Open { .. }) => panic!("nobody has offered memory"),
        };
        *at = At::Ready(Some(Input::Acted(answer)));
    }
    ends.into_values().collect()
}

/// For groups of two to five ranks, each rank in turn is the one that differs. All members must be given one error,
/// which `is_right` checks; it gets the culprit and the number of ranks.
fn everywhere(differ: impl Fn(&mut Side), is_right: impl Fn(&Ending, u32, u32) -> bool) {
    for members in 2..=5u32 {
        for culprit in 0..members {
            let mut sides = vec![Some(side()); members as usize];
            differ(sides[culprit as usize].as_mut().expect("all are there"));
            let ends = commit(&sides);
            assert_eq!(ends.len(), members as usize);
            for end in &ends {
                assert_eq!(end, &ends[0], "{members} members, rank {culprit} differs");
            }
            assert!(
                is_right(&ends[0], culprit, members),
                "{members} members, rank {culprit} differs: {:?}",
                ends[0]
            );
        }
    }
}

fn refusal(end: &Ending) -> &Refusal {
    match end {
        Ending::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

/// The culprit's value, and the value of the others. With two ranks, the first rank has the first entry.
fn both<V: Clone>(values: &symm_mem::agreement::ValuesByRank<V>, culprit: u32, members: u32) -> (V, V) {
    let of = |rank: u32| {
        let entry =
            values.entries.iter().find(|entry| entry.ranks.contains(&rank)).expect("every rank has a value");
        entry.value.clone()
    };
    assert_eq!(values.entries.len(), 2);
    (of(culprit), of((culprit + 1) % members))
}

/// The operation of the culprit and of the others, at the first difference.
fn parted(refusal: &Refusal, culprit: u32, members: u32) -> (u64, Option<u64>, Option<u64>) {
    let Some(Divergence::At { sequence, operations, .. }) = refusal.divergence() else { panic!("{refusal}") };
    let (odd, usual) = both(operations, culprit, members);
    (*sequence, odd.map(|it| it.bytes), usual.map(|it| it.bytes))
}

#[test]
fn an_extra_segment() {
    everywhere(
        |side| side.sizes.push(6 * MIB),
        |end, culprit, members| {
            let Refusal::SegmentCountMismatch { ordinal: 2, common: 2, counts, shapes, .. } = refusal(end)
            else {
                return false;
            };
            let (odd, usual) = both(shapes, culprit, members);
            let text = refusal(end).to_string();
            both(counts, culprit, members) == (3, 2)
                && text.contains(&format!("rank {culprit}: 3"))
                && text.contains("no segment")
                && (odd.map(|it| it.bytes), usual) == (Some(6 * MIB), None)
                && parted(refusal(end), culprit, members) == (2, Some(6 * MIB), None)
        },
    );
}

#[test]
fn nothing_new_where_others_have_something() {
    // A rank with nothing new to commit takes part all the same.
    everywhere(
        |side| side.sizes.clear(),
        |end, culprit, members| {
            let Refusal::SegmentCountMismatch { ordinal: 0, common: 0, counts, .. } = refusal(end) else {
                return false;
            };
            both(counts, culprit, members) == (0, 2)
        },
    );
}

#[test]
fn another_size() {
    everywhere(
        |side| side.sizes[1] = 8 * MIB,
        |end, culprit, members| {
            let Refusal::SegmentShapeMismatch { ordinal: 1, common: 1, shapes, .. } = refusal(end) else {
                return false;
            };
            let (odd, usual) = both(shapes, culprit, members);
            (odd.bytes, usual.bytes) == (8 * MIB, 4 * MIB)
                && parted(refusal(end), culprit, members) == (1, Some(8 * MIB), Some(4 * MIB))
        },
    );
}

#[test]
fn the_same_sizes_by_another_way() {
    // The segments are equal everywhere, but one rank made another allocation before the second.
    everywhere(
        |side| side.blocks = vec![MIB],
        |end, culprit, members| {
            let Refusal::AllocationDiverged { ordinal: Some(1), common: 1, logs, .. } = refusal(end) else {
                return false;
            };
            let (odd, usual) = both(logs, culprit, members);
            (odd.length, usual.length) == (3, 2)
                && odd.hash != usual.hash
                && parted(refusal(end), culprit, members) == (1, Some(MIB), Some(4 * MIB))
        },
    );
}

#[test]
fn different_retirements() {
    everywhere(
        |side| side.retired = vec![0],
        |end, culprit, members| {
            let Ending::Poisoned(Poison::CommittedLogDiverged { logs }) = end else { return false };
            let (odd, usual) = both(logs, culprit, members);
            (odd.length, usual.length) == (1, 0)
        },
    );
}

#[test]
fn another_epoch() {
    everywhere(
        |side| side.epoch = 3,
        |end, culprit, members| {
            // The ranks do not meet, since each epoch has its own keys. A rank that gives up sees where the others
            // wait.
            let Refusal::EpochMismatch { epochs } = refusal(end) else { return false };
            both(epochs, culprit, members) == (3, 0)
        },
    );
}

#[test]
fn another_library() {
    everywhere(
        |side| side.library = 22907,
        |end, culprit, members| {
            let Refusal::CapabilityMismatch { what: Capability::Library, values } = refusal(end) else {
                return false;
            };
            both(values, culprit, members) == ("22907".to_owned(), "22809".to_owned())
        },
    );
}

#[test]
fn another_environment() {
    everywhere(
        |side| {
            side.windows =
                WindowSupport::Unavailable { reason: "NCCL_WIN_ENABLE is 0 on a member".to_owned() }
        },
        |end, culprit, members| {
            let Refusal::CapabilityMismatch { what: Capability::Windows, values } = refusal(end) else {
                return false;
            };
            let (odd, usual) = both(values, culprit, members);
            odd.contains("NCCL_WIN_ENABLE") && usual == "available"
        },
    );
}

#[test]
fn a_rank_that_fails_before() {
    let cause = "segment is not virtual memory";
    everywhere(
        |side| side.readiness = Readiness::Failed { ordinal: Some(1), cause: cause.to_owned() },
        |end, culprit, _| {
            *refusal(end)
                == Refusal::PeerPrepareFailed { rank: culprit, ordinal: Some(1), cause: cause.to_owned() }
        },
    );
}

#[test]
fn a_rank_that_captures_or_is_inside_a_group() {
    everywhere(
        |side| side.readiness = Readiness::Capturing,
        |end, culprit, _| *refusal(end) == Refusal::CommitDuringCapture { ranks: vec![culprit] },
    );
    everywhere(
        |side| side.readiness = Readiness::GroupOpen,
        |end, culprit, _| *refusal(end) == Refusal::CommitInsideGroup { ranks: vec![culprit] },
    );
}

#[test]
fn a_rank_without_address_space() {
    everywhere(
        |side| side.left = Some(5 * MIB),
        |end, culprit, _| {
            *refusal(end) == Refusal::AddressSpaceExhausted { rank: culprit, needed: 6 * MIB, left: 5 * MIB }
        },
    );
}

#[test]
fn a_registration_that_fails() {
    let cause = "unhandled cuda error";
    everywhere(
        |side| side.outcome = RegistrationOutcome::Failed { ordinal: Some(0), cause: cause.to_owned() },
        |end, culprit, _| {
            let cause = cause.to_owned();
            *end == Ending::Poisoned(Poison::RegistrationFailed { rank: culprit, ordinal: Some(0), cause })
        },
    );
    everywhere(
        |side| side.outcome = RegistrationOutcome::Blocked,
        |end, culprit, _| *end == Ending::Poisoned(Poison::RegistrationBlocked { ranks: vec![culprit] }),
    );
}

#[test]
fn no_window_after_success() {
    let why = "success without a window";
    everywhere(
        |side| side.outcome = RegistrationOutcome::Unsupported { reason: why.to_owned() },
        |end, culprit, members| {
            let with = (0..members).filter(|rank| *rank != culprit).collect();
            let reason = why.to_owned();
            *end == Ending::Poisoned(Poison::WindowsUnsupported { with, without: vec![culprit], reason })
        },
    );
}

#[test]
fn a_rank_that_does_not_come() {
    for members in 2..=5u32 {
        for culprit in 0..members {
            let mut sides = vec![Some(side()); members as usize];
            sides[culprit as usize] = None;
            let ends = commit(&sides);
            assert_eq!(ends.len() as u32, members - 1);
            for end in &ends {
                assert_eq!(end, &ends[0]);
                let Refusal::SyncTimeout { missing, waited_ms: 11_250, circle } = refusal(end) else {
                    panic!("{end:?}")
                };
                let [absentee] = &missing[..] else { panic!("{missing:?}") };
                assert_eq!((absentee.rank, absentee.elsewhere.len()), (culprit, 0));
                assert!(circle.is_empty());
            }
        }
    }
}

#[test]
fn subgroups_may_commit_more_often() {
    job::run(
        4,
        NCCL,
        |_| {},
        |rank| {
            let (pool, bucket) = rank.pool_with_bucket();
            // Some pairs of ranks have counted more commits than others when all meet.
            for _ in 0..rank.rank / 2 * 2 {
                pool.commit(&rank.tp, options()).expect("the pair agrees");
            }
            let report = pool.commit(&rank.world, options()).expect("all agree");
            assert_eq!((report.new_windows, report.windows), (1, 1));
            rank.sum(&bucket, &rank.world);
            drop((bucket, pool));
            rank.leave();
        },
    );
}

#[test]
fn a_commit_that_waits_holds_no_lock() {
    job::run(
        2,
        NCCL,
        |_| {},
        |rank| {
            let (pool, bucket) = rank.pool_with_bucket();
            let (other, block) = rank.pool_with_bucket();
            let (store, goes) = (rank.world.job_store(), "the other goes on");
            let commit = || pool.commit(&rank.world, options()).expect("the ranks agree");
            let commit_other = || other.commit(&rank.tp, options()).expect("the ranks agree");
            if rank.rank == 0 {
                thread::scope(|scope| {
                    let waiting = scope.spawn(commit);
                    store
                        .wait(&[&commit_key(&pool, rank.world.id(), "records/0")], soon())
                        .expect("the commit begins");
                    // Looked up, allocated, freed and committed while the commit waits for rank 1.
                    assert!(pool.lookup(bucket.ptr(), 4, rank.world.id()).expect("in one segment").is_some());
                    drop([&pool, &other].map(|pool| pool.allocate(4096).expect("there is room")));
                    store.set(goes, b"1").expect("the store is there");
                    assert_eq!(commit_other().new_windows, 1);
                    assert_eq!(waiting.join().expect("no panic").new_windows, 1);
                });
            } else {
                store.wait(&[goes], soon()).expect("rank 0 is not blocked");
                drop(other.allocate(4096).expect("there is room"));
                assert_eq!(commit_other().new_windows, 1);
                assert_eq!(commit().new_windows, 1);
                drop(pool.allocate(4096).expect("there is room"));
            }
            rank.sum(&block, &rank.tp);
            drop((block, other));
            assert_eq!(commit().new_windows, 0);
            drop((bucket, pool));
            rank.leave();
        },
    );
}

#[test]
fn a_group_without_a_communicator_is_refused() {
    job::run(
        2,
        NCCL,
        |_| {},
        |rank| {
            let lazy = rank.builder().lazy().build().expect("all ranks join");
            let domain = Domain::of(&lazy).expect("a rank of the job");
            let pool =
                SymmetricPool::new(&domain, &rank.context, Geometry::default()).expect("virtual memory");
            let error = pool.commit(&lazy, options()).expect_err("there is no communicator yet");
            assert!(
                matches!(error.refusal(), Some(Refusal::PeerPrepareFailed { rank: 0, ordinal: None, .. })),
                "{error}"
            );
            lazy.abort(soon()).expect("there is nothing to wait for");
            drop(pool);
            rank.leave();
        },
    );
}

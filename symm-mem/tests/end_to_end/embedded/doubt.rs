//! A member that loses the store in a meeting. It learns the decision of the others, or its group ends.

use std::{
    sync::{
        Arc, Barrier, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use process_group::store::{PrefixStore, Result, Store, StoreError};
use symm_mem::{Domain, Error, ErrorKind, Geometry, SymmetricBlock, SymmetricPool};

use super::{
    NCCL_2_28_3, NCCL_2_28_9,
    job::{Rank, commit_key, options, run, soon},
};
use crate::common::intercept::{Intercept, Intercepted, MEETING_CALLS};

/// Makes a store fail for some time, from a chosen request on. Counts only the requests that meetings make.
struct Outage {
    /// Requests that still succeed, plus one.
    left: AtomicU64,
    duration: Duration,
    began: OnceLock<Instant>,
}

impl<S: Store> Intercept<S> for Outage {
    fn before(&self, _: &S, call: &'static str, _: &str) -> Result<()> {
        if !MEETING_CALLS.contains(&call) {
            return Ok(());
        }
        let left = self.left.load(Ordering::SeqCst);
        if left > 1 {
            self.left.store(left.saturating_sub(u64::from(left != u64::MAX)), Ordering::SeqCst);
            return Ok(());
        }
        if self.began.get_or_init(Instant::now).elapsed() >= self.duration {
            return Ok(());
        }
        let (address, operation) = ("a test's host".to_owned(), "get".to_owned());
        Err(StoreError::Unresponsive { address, operation, waited: Duration::from_secs(1) })
    }
}

type FailingStore = Intercepted<PrefixStore, Outage>;

impl FailingStore {
    fn new(rank: &Rank, duration: Duration) -> Arc<Self> {
        let intercept = Outage { left: AtomicU64::new(u64::MAX), duration, began: OnceLock::new() };
        Arc::new(Self { inner: rank.world.store(), intercept })
    }

    /// Fails from the `nth` request from now on.
    fn arm(&self, nth: u64) {
        self.intercept.left.store(nth, Ordering::SeqCst);
    }

    fn disarm(&self) {
        self.intercept.left.store(u64::MAX, Ordering::SeqCst);
    }

    /// Returns true if a request has failed.
    fn has_failed(&self) -> bool {
        self.intercept.began.get().is_some()
    }
}

/// A pool with a block whose ranks agree through `store`.
fn pool_over(store: &Arc<FailingStore>, rank: &Rank) -> (SymmetricPool, SymmetricBlock) {
    let domain = Domain::new(store.clone(), 900, rank.rank, [0, 1]).expect("the store answers");
    let geometry = Geometry { first_segment: 2 << 20, largest_segment: 2 << 20 };
    let pool = SymmetricPool::new(&domain, &rank.context, geometry).expect("virtual memory");
    let block = pool.allocate(2 << 20).expect("there is room");
    (pool, block)
}

/// The state of a rank after a meeting.
#[derive(Debug)]
struct After {
    /// True if the call reported that the meeting changed the members' registrations. `None` if it did not report that.
    changed: Option<bool>,
    /// True if a request of its store has failed.
    cut: bool,
    poisoned: bool,
    /// True if the group has ended.
    over: bool,
}

/// The kind of a meeting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meeting {
    Commit,
    Retire,
}

/// Two ranks meet, and the store of rank 1 fails from its `nth` request on.
fn meet_without_store(meeting: Meeting, release: i32, nth: u64) -> Vec<After> {
    let barrier = Barrier::new(2);
    run(
        2,
        release,
        |_| {},
        |rank| {
            let store = FailingStore::new(&rank, Duration::MAX);
            let (pool, block) = pool_over(&store, &rank);
            let short = options().deadline(Duration::from_millis(800));
            let arm = || {
                if rank.rank == 1 {
                    store.arm(nth);
                }
            };
            let changed = match meeting {
                Meeting::Commit => {
                    arm();
                    let result = pool.commit(&rank.world, short);
                    drop(block);
                    match result.map_err(Error::into_kind) {
                        Ok(report) => Some(report.new_segments > 0),
                        Err(ErrorKind::Refused(_)) => Some(false),
                        Err(ErrorKind::Poisoned { .. }) => Some(true),
                        // It was not told the agreement.
                        Err(_) => None,
                    }
                }
                Meeting::Retire => {
                    pool.commit(&rank.world, options()).expect("the ranks agree");
                    drop(block);
                    arm();
                    match pool.retire(&[0], &[&rank.world], short.deadline).map_err(Error::into_kind) {
                        Ok(_) | Err(ErrorKind::Poisoned { .. }) => Some(true),
                        Err(ErrorKind::Refused(_)) => Some(false),
                        Err(_) => None,
                    }
                }
            };
            let poisoned = pool.poison(rank.world.id()).is_some();
            let after =
                After { changed, cut: store.has_failed(), poisoned, over: rank.world.check().is_err() };
            store.disarm();
            barrier.wait();
            drop(pool);
            let Rank { world, tp, dp, .. } = rank;
            for group in [dp, tp, world] {
                let _ = group.abort(soon());
            }
            after
        },
    )
}

/// Fails the store of rank 1 from each third request on. Rank 1 must not report a healthy group if it does not know the
/// result on rank 0. Each failure costs seconds here. The simulation covers every request.
fn at_each_third_request(meeting: Meeting, release: i32) {
    let mut doubted = 0;
    for nth in (2..).step_by(3) {
        let ranks = meet_without_store(meeting, release, nth);
        let [other, lost] = &ranks[..] else { panic!("two ranks") };
        if !lost.cut {
            assert!(
                doubted > 0,
                "{meeting:?} takes {nth} requests, of which {doubted} leave a rank in doubt"
            );
            return;
        }
        let case = format!("{meeting:?}, request {nth}: {ranks:?}");
        assert_eq!(lost.poisoned, lost.over, "{case}");
        if lost.changed.is_none() {
            assert!(lost.poisoned || other.changed != Some(true), "{case}");
            doubted += u32::from(lost.poisoned);
        }
    }
}

#[test]
fn who_loses_the_store_in_a_commit_knows_what_was_agreed_or_has_no_group() {
    at_each_third_request(Meeting::Commit, NCCL_2_28_9);
}

#[test]
fn who_loses_the_store_in_a_commit_without_windows_knows_what_was_agreed_or_has_no_group() {
    at_each_third_request(Meeting::Commit, NCCL_2_28_3);
}

#[test]
fn who_loses_the_store_in_a_retirement_knows_what_was_agreed_or_has_no_group() {
    at_each_third_request(Meeting::Retire, NCCL_2_28_9);
}

#[test]
fn a_store_that_answers_again_before_the_deadline_ends_the_doubt() {
    for nth in 3..9 {
        run(
            2,
            NCCL_2_28_9,
            |_| {},
            |rank| {
                let store = FailingStore::new(&rank, Duration::from_millis(120));
                let (pool, block) = pool_over(&store, &rank);
                if rank.rank == 1 {
                    store.arm(nth);
                }
                let report = pool.commit(&rank.world, options()).expect("the ranks agree");
                assert_eq!((report.new_windows, rank.world.check().is_ok()), (1, true), "request {nth}");
                rank.sum(&block, &rank.world);
                drop((block, pool));
                rank.leave();
            },
        );
    }
}

#[test]
fn a_store_that_fails_before_anything_is_posted_costs_the_commit_alone() {
    let barrier = Barrier::new(2);
    run(
        2,
        NCCL_2_28_9,
        |_| {},
        |rank| {
            let store = FailingStore::new(&rank, Duration::MAX);
            let (pool, block) = pool_over(&store, &rank);
            if rank.rank == 1 {
                store.arm(1);
            }
            let error = pool.commit(&rank.world, options().deadline(Duration::from_secs(1)));
            let error = error.expect_err("rank 1 does not reach the store");
            match (rank.rank, error.kind()) {
                (0, _) => assert_eq!(error.name(), "SyncTimeout"),
                (_, ErrorKind::Store { poisoned: false, .. }) => {}
                _ => panic!("{error}"),
            }
            assert!(pool.poison(rank.world.id()).is_none() && rank.world.check().is_ok());
            store.disarm();
            barrier.wait();
            assert_eq!(pool.commit(&rank.world, options()).expect("the ranks agree").new_windows, 1);
            rank.sum(&block, &rank.world);
            drop((block, pool));
            rank.leave();
        },
    );
}

/// Two processes run as rank 0. The first one has posted its record, and the test runs the second one.
#[test]
fn a_second_process_with_the_same_rank_is_in_doubt() {
    let barrier = Barrier::new(2);
    run(
        2,
        NCCL_2_28_9,
        |_| {},
        |rank| {
            let (pool, block) = rank.pool_with_bucket();
            if rank.rank == 0 {
                let record = commit_key(&pool, rank.world.id(), "records/0");
                rank.world.job_store().set(&record, b"the record of the first process").expect("it answers");
                let error = pool.commit(&rank.world, options()).expect_err("the rank is taken");
                let ErrorKind::Store { poisoned: true, source: StoreError::RankTaken { rank: 0, .. } } =
                    error.kind()
                else {
                    panic!("{error}")
                };
                assert!(pool.poison(rank.world.id()).is_some());
            }
            barrier.wait();
            drop((block, pool));
            let Rank { world, tp, dp, .. } = rank;
            for group in [dp, tp, world] {
                let _ = group.abort(soon());
            }
        },
    );
}

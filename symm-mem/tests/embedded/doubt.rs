//! A member that loses the store in a meeting: it finds out what the others agreed on, or its group is over.

use std::{
    sync::{
        Arc, Barrier, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use process_group::store::{Deadline, Result, Store, StoreError};
use symm_mem::{CommitError, Domain, Geometry, RetireError, SymmetricBlock, SymmetricPool};

use super::{
    NCCL_2_28_3, NCCL_2_28_9,
    job::{Rank, options, run, soon},
};

/// A store that fails from its `nth` request on, for some time. Only the requests that meetings make are counted.
struct Cut {
    inner: Arc<dyn Store>,
    left: AtomicU64,
    lasts: Duration,
    since: OnceLock<Instant>,
}

impl Cut {
    fn new(rank: &Rank, lasts: Duration) -> Arc<Self> {
        let (inner, left) = (Arc::new(rank.world.store()), AtomicU64::new(u64::MAX));
        Arc::new(Self { inner, left, lasts, since: OnceLock::new() })
    }

    /// Fails from the `nth` request from now on.
    fn arm(&self, nth: u64) {
        self.left.store(nth, Ordering::SeqCst);
    }

    fn disarm(&self) {
        self.left.store(u64::MAX, Ordering::SeqCst);
    }

    /// Whether the request to fail at was made.
    fn has_failed(&self) -> bool {
        self.since.get().is_some()
    }

    fn count(&self) -> Result<()> {
        let left = self.left.load(Ordering::SeqCst);
        if left > 1 {
            self.left.store(left.saturating_sub(u64::from(left != u64::MAX)), Ordering::SeqCst);
            return Ok(());
        }
        if self.since.get_or_init(Instant::now).elapsed() >= self.lasts {
            return Ok(());
        }
        let (address, operation) = ("a test's host".to_owned(), "get".to_owned());
        Err(StoreError::Unresponsive { address, operation, waited: Duration::from_secs(1) })
    }
}

impl Store for Cut {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.count()?;
        self.inner.set(key, value)
    }
    fn get(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        self.count()?;
        self.inner.get(key, deadline)
    }
    fn check(&self, keys: &[&str]) -> Result<bool> {
        self.count()?;
        self.inner.check(keys)
    }
    fn wait(&self, keys: &[&str], deadline: Deadline) -> Result<()> {
        self.inner.wait(keys, deadline)
    }
    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        self.count()?;
        self.inner.add(key, delta)
    }
    fn compare_set(&self, key: &str, expected: &[u8], new: &[u8]) -> Result<Vec<u8>> {
        self.count()?;
        self.inner.compare_set(key, expected, new)
    }
    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        self.inner.append(key, value)
    }
    fn multi_get(&self, keys: &[&str], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        self.count()?;
        self.inner.multi_get(keys, deadline)
    }
    fn multi_set(&self, entries: &[(&str, &[u8])]) -> Result<()> {
        self.inner.multi_set(entries)
    }
    fn delete(&self, key: &str) -> Result<bool> {
        self.inner.delete(key)
    }
    fn num_keys(&self) -> Result<u64> {
        self.inner.num_keys()
    }
    fn list_keys(&self) -> Result<Vec<String>> {
        self.inner.list_keys()
    }
    fn queue_push(&self, key: &str, value: &[u8]) -> Result<()> {
        self.inner.queue_push(key, value)
    }
    fn queue_pop(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        self.inner.queue_pop(key, deadline)
    }
    fn queue_try_pop(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.inner.queue_try_pop(key)
    }
    fn queue_len(&self, key: &str) -> Result<u64> {
        self.inner.queue_len(key)
    }
}

/// A pool with a block whose ranks agree through `store`.
fn pool_over(store: &Arc<Cut>, rank: &Rank) -> (SymmetricPool, SymmetricBlock) {
    let domain = Domain::new(store.clone(), 900, rank.rank, [0, 1]).expect("the store answers");
    let geometry = Geometry { first_segment: 2 << 20, largest_segment: 2 << 20 };
    let pool = SymmetricPool::new(&domain, &rank.context, geometry).expect("virtual memory");
    let block = pool.allocate(2 << 20).expect("there is room");
    (pool, block)
}

/// What a rank holds of its group after a meeting.
#[derive(Debug)]
struct After {
    /// Whether it was told that the meeting has changed what the members hold, if it was told anything.
    changed: Option<bool>,
    /// Whether the request at which its store was to fail was made.
    cut: bool,
    poisoned: bool,
    /// Whether the group is over.
    over: bool,
}

/// What a meeting of two ranks is.
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
            let store = Cut::new(&rank, Duration::MAX);
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
                    match result {
                        Ok(report) => Some(report.new_segments > 0),
                        Err(CommitError::Refused { .. }) => Some(false),
                        Err(CommitError::Poisoned { .. }) => Some(true),
                        // Nobody has told it what was agreed.
                        Err(_) => None,
                    }
                }
                Meeting::Retire => {
                    pool.commit(&rank.world, options()).expect("the ranks agree");
                    drop(block);
                    arm();
                    match pool.retire(&[0], &[&rank.world], short.deadline) {
                        Ok(_) | Err(RetireError::Poisoned { .. }) => Some(true),
                        Err(RetireError::Refused { .. }) => Some(false),
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

/// For each third request of rank 1: whatever rank 0 was told, rank 1 does not hold a group for healthy of which it does not
/// know what the others hold. A doubt lasts for seconds here; the simulation does it at every request.
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
                let store = Cut::new(&rank, Duration::from_millis(120));
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
            let store = Cut::new(&rank, Duration::MAX);
            let (pool, block) = pool_over(&store, &rank);
            if rank.rank == 1 {
                store.arm(1);
            }
            let error = pool.commit(&rank.world, options().deadline(Duration::from_secs(1)));
            match (rank.rank, error.expect_err("rank 1 does not reach the store")) {
                (0, error) => assert_eq!(error.name(), "SyncTimeout"),
                (_, CommitError::Store { poisoned: false, .. }) => {}
                (_, error) => panic!("{error}"),
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

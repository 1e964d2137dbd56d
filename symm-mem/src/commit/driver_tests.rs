//! Tests [`super::driver`], which runs a commit, over a real store. Ranks are threads, and NCCL is simulated.

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use process_group::store::{Deadline, HashStore, Store, StoreError, TcpStore};

use super::driver::{Local, StoreSession, run};
use crate::agreement::{
    Agreed, Capabilities, Ending, GroupId, GroupLog, Input, LogPoint, NoWindows, Operation, OperationKind,
    Outcome, Output, Poison, Policy, PoolId, Readiness, Refusal, Segment, Situation, WindowSupport,
};
use crate::common::intercept::{Intercept, Intercepted, MEETING_CALLS};

/// A rank whose registration returns `outcome` after all registering ranks have called it.
struct Rank {
    outcome: Outcome,
    all: Option<Arc<Barrier>>,
    hashes: Vec<u64>,
}

impl Local for Rank {
    fn hash_at(&self, length: u64) -> Option<u64> {
        self.hashes.get(length as usize).copied()
    }

    fn operation(&self, sequence: u64) -> Option<Operation> {
        (sequence + 1 < self.hashes.len() as u64).then(|| Operation {
            kind: OperationKind::Allocate,
            bytes: self.hashes[sequence as usize + 1],
            place: None,
            tag: None,
            call_site: "train.rs:12".to_owned(),
        })
    }

    fn register(&mut self, _segments: u32, _: &[u32], _deadline: Deadline, _verdict_key: String) -> Outcome {
        if let Some(all) = &self.all {
            all.wait();
        }
        self.outcome.clone()
    }
}

fn situation(segments: &[u64], deadline: Duration) -> Situation {
    let log = LogPoint { length: segments.len() as u64, hash: *segments.last().unwrap_or(&0) };
    Situation {
        policy: Policy::Strict,
        deadline,
        readiness: Readiness::Ready,
        domain: vec![0, 1, 2],
        capabilities: Capabilities { library: 22809, windows: WindowSupport::Available },
        enqueued: Vec::new(),
        address_space_left: None,
        log,
        log_since: 0,
        segments: (0..)
            .zip(segments)
            .map(|(ordinal, hash)| {
                let log = LogPoint { length: u64::from(ordinal) + 1, hash: *hash };
                Segment { ordinal, bytes: 64 << 20, flags: 0, log }
            })
            .collect(),
    }
}

/// Commits on one thread for each rank, with the given segments and outcome of each.
fn commit(
    store: &dyn Store,
    members: usize,
    ranks: Vec<(Vec<u64>, Outcome)>,
    deadline: Duration,
) -> Vec<Result<Agreed, Ending>> {
    let registers = ranks.iter().filter(|(_, outcome)| *outcome != Outcome::Blocked).count();
    let all = Arc::new(Barrier::new(registers));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(ranks)
            .map(|(rank, (segments, outcome))| {
                let all = (outcome != Outcome::Blocked).then(|| all.clone());
                scope.spawn(move || {
                    let pool = PoolId { domain: 1, generation: 1, instance: 1, pool: 0 };
                    let group = GroupId { uid: 1, epoch: 0 };
                    let mut log = GroupLog::new(pool, group, rank, (0..members as u32).collect());
                    let (machine, _) = log.begin(situation(&segments, deadline));
                    let hashes = [vec![0], segments].concat();
                    let (conclusion, failure) =
                        run(machine, store, deadline, &mut Rank { outcome, all, hashes });
                    assert!(failure.is_none(), "{failure:?}");
                    conclusion.result
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn all_get_windows() {
    let store = HashStore::new();
    let ranks = vec![(vec![7, 8], Outcome::Registered); 4];
    let agreed = Agreed { segments: 2, joined: Vec::new(), without: None, pending: None };
    assert_eq!(commit(&store, 4, ranks, LONG), vec![Ok(agreed); 4]);
}

#[test]
fn all_do_without() {
    let store = HashStore::new();
    let reason = "no peer access".to_owned();
    let ranks = vec![(vec![7], Outcome::Unsupported { reason: reason.clone() }); 3];
    let without = Some(NoWindows::Unsupported { reason });
    assert_eq!(
        commit(&store, 3, ranks, LONG),
        vec![Ok(Agreed { segments: 1, joined: Vec::new(), without, pending: None }); 3]
    );
}

#[test]
fn an_extra_segment_is_named_to_all_with_its_allocation() {
    let store = HashStore::new();
    let mut ranks = vec![(vec![7, 8], Outcome::Registered); 4];
    ranks[2].0.push(9);
    let results = commit(&store, 4, ranks, LONG);
    let Err(Ending::Refused(refusal @ Refusal::SegmentCountMismatch { ordinal: 2, .. })) = &results[0] else {
        panic!("{results:?}")
    };
    let text = refusal.to_string();
    assert!(text.contains("rank 2: allocated 9 bytes at train.rs:12"), "{text}");
    assert!(results.iter().all(|result| result == &results[0]), "{results:?}");
}

#[test]
fn a_failed_registration_poisons_all() {
    let store = HashStore::new();
    let mut ranks = vec![(vec![7], Outcome::Blocked); 3];
    ranks[1].1 = Outcome::Failed { ordinal: Some(0), cause: "unhandled cuda error".to_owned() };
    for result in commit(&store, 3, ranks, LONG) {
        assert!(
            matches!(&result, Err(Ending::Poisoned(Poison::RegistrationFailed { rank: 1, .. }))),
            "{result:?}"
        );
    }
}

#[test]
fn who_is_missing_is_named() {
    let store = HashStore::new();
    let ranks = vec![(vec![7], Outcome::Registered); 2];
    // The ranks wait half of the deadline, which also has to cover the start of their threads.
    let results = commit(&store, 3, ranks, Duration::from_secs(6));
    let Err(Ending::Refused(Refusal::SyncTimeout { missing, .. })) = &results[0] else {
        panic!("{results:?}")
    };
    assert_eq!(missing.iter().map(|absentee| absentee.rank).collect::<Vec<_>>(), [2]);
    assert_eq!(results[0], results[1]);
}

/// Removes the key `read/0` before the `left`-th store call from now.
struct Removal {
    left: AtomicU64,
}

impl Intercept<TcpStore> for Removal {
    fn before(&self, store: &TcpStore, call: &'static str, _key: &str) -> Result<(), StoreError> {
        if MEETING_CALLS.contains(&call) && self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            assert!(store.delete("read/0")?);
        }
        Ok(())
    }
}

#[test]
fn a_key_that_another_member_removes_is_not_waited_for() {
    // `Fetch` checks whether all keys exist. If they do, it reads all values at once: the key is removed before this
    // second call. If one is missing, it checks each key and reads its value: the key is removed after its check.
    for (keys, call) in [(["read/0", "read/1"].as_slice(), 2), (["read/0", "read/1", "never"].as_slice(), 3)]
    {
        let inner = TcpStore::host(0).expect("a port is free");
        keys[..2].iter().for_each(|key| inner.set(key, b"1").expect("it answers"));
        let store = Intercepted { inner, intercept: Removal { left: call.into() } };
        let mut line = StoreSession::new(&store);
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        let Input::Values(values) = line.ask(&Output::Fetch { keys }, None, || true) else {
            panic!("{:?}", line.failure)
        };
        assert_eq!(values[..2], [None, Some(b"1".to_vec())]);
    }
}

#[test]
fn a_record_is_posted_once_and_never_replaced() {
    let store = TcpStore::host(0).expect("a port is free");
    let post = |value: &[u8]| Output::Post { key: "record/0".into(), value: value.to_vec() };
    let mut line = StoreSession::new(&store);
    // The second request models a client that repeats a request after it lost the answer to the first.
    for _ in 0..2 {
        assert_eq!(line.ask(&post(b"mine"), None, || true), Input::Stored);
    }
    // Another value is already stored, so the request fails although it could be repeated for 60 seconds.
    let patience = Some(Duration::from_secs(60));
    assert_eq!(line.ask(&post(b"another's"), patience, || true), Input::StoreFailed);
    assert!(
        matches!(&line.failure, Some(StoreError::Taken { key, .. }) if key == "record/0"),
        "{:?}",
        line.failure
    );
    assert_eq!(store.get("record/0", Deadline::now()).expect("it is there"), b"mine");
}

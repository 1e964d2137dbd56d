//! Tests [`super::driver`], which runs a commit, over a real store. Each rank is a thread, and its registration returns
//! a given outcome without NCCL.

use std::{
    sync::{Arc, Barrier},
    thread,
    time::Duration,
};

use process_group::store::{Deadline, HashStore, Store, StoreError};

use super::driver::{Local, run};
use crate::{
    agreement::{
        Agreed, Capabilities, Ending, GroupId, GroupLog, LogPoint, NoWindows, OfferedMemory, Operation,
        OperationKind, Outcome, PeerMappings, PeerOffer, Poison, Policy, PoolId, RankList, Readiness, Record,
        Refusal, Segment, WindowSupport,
    },
    sharing::{self, Export, Handle, Site},
};

/// A rank whose registration returns `outcome`. If `all` is set, the registration first waits until all ranks with this
/// barrier have begun their registrations, as in NCCL, where the registration is a collective call.
struct Rank {
    outcome: Outcome,
    all: Option<Arc<Barrier>>,
    /// At index n, the hash of the first n operations of the rank's allocation log.
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

    fn register(&mut self, _: &Agreed, _deadline: Deadline, _verdict_key: String) -> Outcome {
        if let Some(all) = &self.all {
            all.wait();
        }
        self.outcome.clone()
    }

    fn open(&mut self, _: &Agreed, _deadline: Deadline) -> sharing::Outcome {
        sharing::Outcome::Mapped
    }
}

fn record(rank: u32, segments: &[u64]) -> Record {
    let export = Export { bytes: 64 << 20, handle: Handle::DESCRIPTOR, token: 0 };
    let exports = vec![export; segments.len()];
    let memory = OfferedMemory { site: Site::simulated(rank), next: 0, pad: None, segments: exports };
    let log = LogPoint { length: segments.len() as u64, hash: *segments.last().unwrap_or(&0) };
    Record {
        policy: Policy::Strict,
        readiness: Readiness::Ready,
        domain: RankList(vec![0, 1, 2]),
        capabilities: Capabilities { library: 22809, windows: WindowSupport::Available },
        enqueued: Vec::new(),
        address_space_left: None,
        committed: LogPoint::default(),
        log,
        log_since: 0,
        segments: (0..)
            .zip(segments)
            .map(|(ordinal, hash)| {
                let log = LogPoint { length: u64::from(ordinal) + 1, hash: *hash };
                Segment { ordinal, bytes: 64 << 20, flags: 0, log }
            })
            .collect(),
        peers: PeerOffer::Offered { memory },
    }
}

/// Runs a commit of a group of `members` ranks. Each entry of `ranks` is a rank on its own thread. The entry has the
/// hash of the rank's allocation log after each of its segments, and the outcome of its registration. Ranks with an
/// outcome other than [`Outcome::Blocked`] share a barrier. Members without an entry do not take part.
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
                    let (start, _) = log.begin(record(rank, &segments), deadline);
                    let hashes = [vec![0], segments].concat();
                    let (result, failure) = run(start, store, || Ok(()), &mut Rank { outcome, all, hashes });
                    assert!(failure.is_none(), "{failure:?}");
                    result
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
    let agreed = Agreed {
        segments: 2,
        joined: Vec::new(),
        without: None,
        pending: None,
        peers: PeerMappings::Opened {},
    };
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
        vec![
            Ok(Agreed {
                segments: 1,
                joined: Vec::new(),
                without,
                pending: None,
                peers: PeerMappings::Opened {}
            });
            3
        ]
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
    // Each rank waits for the others for three eighths of the deadline, here 2.25 s. Within this time, the threads of
    // both ranks must start, so that only rank 2 is missing.
    let results = commit(&store, 3, ranks, Duration::from_secs(6));
    let Err(Ending::Refused(Refusal::SyncTimeout { missing, .. })) = &results[0] else {
        panic!("{results:?}")
    };
    assert_eq!(missing.iter().map(|absentee| absentee.rank).collect::<Vec<_>>(), [2]);
    assert_eq!(results[0], results[1]);
}

/// Two processes run as rank 0. The first one has posted its record, and the test runs the second one.
#[test]
fn a_second_process_with_the_same_rank_is_in_doubt() {
    let store = HashStore::new();
    let pool = PoolId { domain: 1, generation: 1, instance: 1, pool: 0 };
    let mut log = GroupLog::new(pool, GroupId { uid: 1, epoch: 0 }, 0, vec![0, 1]);
    let (start, _) = log.begin(record(0, &[7]), Duration::from_millis(1));
    assert_eq!(start.member.deadline, Some(Duration::from_millis(1)));
    store.set(&format!("{}/records/0", start.member.name), b"the record of the first process").unwrap();
    let mut rank = Rank { outcome: Outcome::Registered, all: None, hashes: vec![0, 7] };
    let (result, failure) = run(start, &store, || Ok(()), &mut rank);
    assert_eq!(result, Err(Ending::StoreFailed { in_doubt: true }));
    assert!(matches!(failure, Some(StoreError::RankTaken { rank: 0, .. })), "{failure:?}");
}

//! Ranks that wait for each other at two pools, make other domains than the rest, or list other ranks.

use std::{fmt, sync::Arc, time::Duration};

use process_group::{ProcessGroup, store::Store};
use symm_mem::{
    CommunicatorGroup, Domain, ErrorKind, Geometry, GroupId, PoolId, Refusal, SymmetricPool,
    agreement::{MeetingId, MeetingKind, MemberList, PROTOCOL_VERSION, RankList, Waiting},
};

use super::{
    job::{Rank, commit_key, options, pool_key, soon},
    on_ranks, windows,
};
use crate::common::intercept::{Intercept, Intercepted};

/// Deadlines of the rank that gives up first, and of the ranks that wait for it.
const SHORT: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(120);

fn make(rank: &Rank, domain: &Domain) -> SymmetricPool {
    let geometry = Geometry { first_segment: 2 << 20, largest_segment: 2 << 20 };
    SymmetricPool::new(domain, &rank.context, geometry).expect("the device has virtual memory")
}

fn domain_of(rank: &Rank, uid: u64, ranks: &[u32]) -> Domain {
    let store = Arc::new(rank.world.job_store());
    Domain::new(store, uid, rank.rank, ranks.iter().copied()).expect("a member")
}

/// A call that all ranks of a domain make together.
#[derive(Debug, Clone, Copy)]
enum Call {
    Commit,
    Retire,
    Length,
}

const CALLS: [Call; 3] = [Call::Commit, Call::Retire, Call::Length];

impl Call {
    fn make(self, pool: &SymmetricPool, group: &ProcessGroup, deadline: Duration) -> Result<(), Refusal> {
        let result = self.call(pool, group, deadline);
        let done = through(&self.arrival(pool, group, group.global_rank()));
        group.job_store().set(&done, b"1").expect("the store is there");
        result
    }

    fn call(self, pool: &SymmetricPool, group: &ProcessGroup, deadline: Duration) -> Result<(), Refusal> {
        let result = match self {
            Self::Commit => pool.commit(group, options().deadline(deadline)).map(drop),
            Self::Retire => pool.retire(&[0], &[], deadline).map(drop),
            Self::Length => pool.allocate_agreed(1 << (10 + group.rank()), deadline).map(drop),
        };
        result.map_err(|error| error.refusal().unwrap_or_else(|| panic!("{error}")).clone())
    }

    fn kind(self, group: &ProcessGroup) -> MeetingKind {
        match self {
            Self::Commit => MeetingKind::Commit { group: group.id() },
            Self::Retire => MeetingKind::Retire {},
            Self::Length => MeetingKind::Length {},
        }
    }

    /// Store key of the arrival at the first call of a pool: the record of rank `of`, or the `count`.
    fn arrival(self, pool: &SymmetricPool, group: &ProcessGroup, of: impl fmt::Display) -> String {
        let what = match self {
            Self::Commit => return commit_key(pool, group.id(), &format!("records/{of}")),
            Self::Retire => "retire",
            Self::Length => "length",
        };
        format!("{}/{what}/0/records/{of}", pool_key(pool))
    }
}

/// A key that a rank sets after the call whose record has the key `record`.
fn through(record: &str) -> String {
    format!("through {record}")
}

/// Waits until a rank has posted its record, or is through with the call: the keys of an agreement are removed after
/// it.
fn await_record(rank: &Rank, record: &str) {
    let (store, deadline) = (rank.world.job_store(), soon());
    let has = |key: &str| store.check(&[key]).expect("the store is there");
    while !has(record) && !has(&through(record)) {
        assert!(!deadline.expired(), "nobody comes to {record}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Rank 0 commits one pool first, rank 1 the other. Both are told so, for pools of one domain and of two.
#[test]
fn commits_of_two_pools_that_cross_are_told_as_a_circle() {
    for one_domain in [true, false] {
        on_ranks(2, |rank| {
            let second = Domain::of(&rank.tp).expect("a rank of the job");
            let pools =
                [make(&rank, &rank.domain), make(&rank, if one_domain { &rank.domain } else { &second })];
            let blocks = pools.each_ref().map(|pool| pool.allocate(1 << 20).expect("there is room"));
            let groups = [&rank.world, if one_domain { &rank.world } else { &rank.tp }];
            let commit = |at: usize, deadline| Call::Commit.make(&pools[at], groups[at], deadline);
            let refusals = if rank.rank == 0 {
                let arrival = Call::Commit.arrival(&pools[1], groups[1], 1);
                rank.world.job_store().wait(&[&arrival], soon()).expect("rank 1 is at its first pool");
                [0, 1].map(|at| commit(at, SHORT))
            } else {
                let [second, first] = [1, 0].map(|at| commit(at, LONG));
                [first, second]
            };
            for (at, refusal) in refusals.into_iter().enumerate() {
                let refusal = refusal.expect_err("the ranks are at different pools");
                let Refusal::SyncTimeout { missing, circle, .. } = &refusal else { panic!("{refusal}") };
                let absent: Vec<u32> = missing.iter().map(|it| it.rank).collect();
                assert_eq!(absent, [1 - at as u32], "{refusal}");
                let pool = |it: MeetingId| (it.domain, it.generation, it.pool);
                let told: Vec<_> =
                    circle.iter().map(|it| (it.rank, MeetingId::at(&it.place).map(pool))).collect();
                let of = |at: usize| {
                    let PoolId { domain, generation, pool, .. } = pools[at].id();
                    Some((domain, generation, pool))
                };
                assert_eq!(told, [(0, of(0)), (1, of(1))], "{refusal}");
                let text = refusal.to_string();
                assert!(pools.iter().all(|pool| text.contains(&pool.id().to_string())), "{text}");
            }
            for at in [0, 1] {
                assert_eq!(windows(&pools[at].commit(groups[at], options())), (1, 1));
                rank.sum(&blocks[at], groups[at]);
            }
            drop((blocks, pools));
            rank.leave();
        });
    }
}

/// Rank 0 makes one call of a pool first, rank 1 the other one. Both are told the circle.
#[test]
fn calls_of_two_kinds_that_cross_are_told_as_a_circle() {
    for calls in [[Call::Commit, Call::Retire], [Call::Commit, Call::Length], [Call::Retire, Call::Length]] {
        on_ranks(2, |rank| {
            let pool = make(&rank, &rank.domain);
            drop(pool.allocate(1 << 20).expect("there is room"));
            let call = |at: usize, deadline| calls[at].make(&pool, &rank.world, deadline);
            let refusals = if rank.rank == 0 {
                let arrival = calls[1].arrival(&pool, &rank.world, 1);
                rank.world.job_store().wait(&[&arrival], soon()).expect("rank 1 is at its first call");
                [0, 1].map(|at| call(at, SHORT))
            } else {
                let [second, first] = [1, 0].map(|at| call(at, LONG));
                [first, second]
            };
            for (at, refusal) in refusals.into_iter().enumerate() {
                let refusal = refusal.expect_err("the ranks are at different calls");
                let Refusal::SyncTimeout { missing, circle, .. } = &refusal else {
                    panic!("{calls:?}: {refusal}")
                };
                let absent: Vec<u32> = missing.iter().map(|it| it.rank).collect();
                assert_eq!(absent, [1 - at as u32], "{calls:?}: {refusal}");
                let kind = |it: &Waiting| MeetingId::at(&it.place).map(|it| it.kind);
                let told: Vec<_> = circle.iter().map(|it| (it.rank, kind(it))).collect();
                let [one, other] = calls.map(|call| Some(call.kind(&rank.world)));
                assert_eq!(told, [(0, one), (1, other)], "{calls:?}: {refusal}");
            }
            drop(pool);
            rank.leave();
        });
    }
}

/// Rank 0 makes the domain once more than rank 1.
#[test]
fn a_domain_too_many_is_told_with_both_generations() {
    for call in CALLS {
        on_ranks(2, |rank| {
            if rank.rank == 0 {
                drop(Domain::of(&rank.world).expect("a rank of the job"));
            }
            for attempt in [0, 1] {
                let pool = make(&rank, &Domain::of(&rank.world).expect("a rank of the job"));
                drop(pool.allocate(1 << 20).expect("there is room"));
                let mut deadline = LONG;
                if rank.rank == 0 {
                    let theirs = call.arrival(&pool, &rank.world, 1);
                    let theirs = theirs.replace(
                        &format!(".{}/", pool.id().generation),
                        &format!(".{}/", pool.id().generation - 1),
                    );
                    await_record(&rank, &theirs);
                    deadline = SHORT;
                }
                let refusal = call.make(&pool, &rank.world, deadline).expect_err("nobody is there");
                let Refusal::GenerationMismatch { domain, generations, circle, .. } = &refusal else {
                    panic!("{refusal}")
                };
                let entries: Vec<_> =
                    generations.entries.iter().map(|side| (side.ranks.clone(), side.value)).collect();
                // On the second attempt, rank 1 enters the meeting that rank 0 has given up, and rank 0 finds no rank
                // in its own.
                let (least, waiting) = match (attempt, rank.rank) {
                    (0, _) | (_, 1) => (2, 2),
                    _ => (3, 0),
                };
                let wanted = [(vec![0], least + 1), (vec![1], least)];
                let found = (*domain, &entries[..], circle.len());
                assert_eq!(found, (pool.id().domain, &wanted[..], waiting), "{refusal}");
                let text = refusal.to_string();
                assert!(text.contains(&format!("rank 0: {}; rank 1: {least}", least + 1)), "{text}");
                assert!(text.contains("and commit its pools in one order (commit_all)"), "{text}");
            }
            rank.leave();
        });
    }
}

/// All orders of three ranks.
const ORDERS: [[u32; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// The ranks enter a call in this order, each with its own list for the domain. Returns each rank's error.
fn come(rank: &Rank, call: Call, order: [u32; 3], uid: u64, lists: [&[u32]; 3]) -> Result<(), Refusal> {
    let pool = make(rank, &domain_of(rank, uid, lists[rank.rank as usize]));
    drop(pool.allocate(2 << 20).expect("there is room"));
    let place = order.iter().position(|it| *it == rank.rank).expect("one of them");
    if let Some(before) = place.checked_sub(1) {
        let record = call.arrival(&pool, &rank.world, order[before]);
        await_record(rank, &record);
    }
    call.make(&pool, &rank.world, LONG)
}

#[test]
fn a_rank_whose_domain_lacks_another_is_named_to_all() {
    let lists: [&[u32]; 3] = [&[0, 1], &[0, 1, 2], &[0, 1, 2]];
    for call in [Call::Retire, Call::Length] {
        let told = on_ranks(3, |rank| {
            let told = (0..).zip(ORDERS).map(|(at, order)| come(&rank, call, order, 700 + at, lists));
            let told: Vec<_> = told.map(|told| told.expect_err("the ranks differ")).collect();
            rank.leave();
            told
        });
        for (refusal, order) in told[0].iter().zip(ORDERS) {
            let Refusal::MembersMismatch { what: MemberList::Domain, lists } = refusal else {
                panic!("{refusal}")
            };
            let odd = lists.entries.iter().find(|side| side.ranks == [0]).map(|side| side.value.clone());
            assert_eq!(odd, Some(RankList(vec![0, 1])), "{call:?} in order {order:?}: {refusal}");
            assert!(lists.entries.iter().any(|side| side.value.0 == [0, 1, 2]), "{refusal}");
        }
        assert!(told.iter().all(|it| *it == told[0]), "{call:?}: {told:?}");
    }
}

/// Ranks 0 and 1 agree without rank 2, which has another domain, unless rank 2 came and refused before they decided.
/// Rank 2 never takes their agreement for its own.
#[test]
fn a_rank_that_is_in_no_other_domain_does_not_take_their_decision() {
    let lists: [&[u32]; 3] = [&[0, 1], &[0, 1], &[0, 1, 2]];
    for call in [Call::Retire, Call::Length] {
        let told = on_ranks(3, |rank| {
            let told = (0..).zip(ORDERS).map(|(at, order)| come(&rank, call, order, 800 + at, lists));
            let told: Vec<_> = told.collect();
            rank.leave();
            told
        });
        for (at, order) in ORDERS.iter().enumerate() {
            for (rank, told) in told.iter().enumerate() {
                match &told[at] {
                    Ok(()) if rank < 2 => {}
                    Err(Refusal::MembersMismatch { what: MemberList::Domain, lists }) => {
                        let own = lists.entries.iter().find(|side| side.ranks == [2]);
                        assert_eq!(own.map(|side| side.value.0.len()), Some(3), "{lists:?}");
                    }
                    told => panic!("{call:?} in order {order:?}, rank {rank}: {told:?}"),
                }
            }
            assert_eq!(told[0][at], told[1][at], "{call:?} in order {order:?}");
        }
    }
}

/// A group that one rank considers outside of its domain: the others do not wait for that rank.
#[test]
fn a_group_outside_of_one_domain_is_told_to_the_others() {
    on_ranks(3, |rank| {
        let ranks: &[u32] = if rank.rank == 0 { &[0, 1] } else { &[0, 1, 2] };
        let pool = make(&rank, &domain_of(&rank, 900, ranks));
        drop(pool.allocate(1 << 20).expect("there is room"));
        for _ in 0..2 {
            let error = pool.commit(&rank.world, options()).expect_err("the ranks differ");
            match error.kind() {
                ErrorKind::GroupOutsideDomain { outside, .. } if rank.rank == 0 => {
                    assert_eq!(outside, &[2])
                }
                ErrorKind::Refused(Refusal::PeerPrepareFailed { rank: 0, cause, .. }) => {
                    assert!(rank.rank > 0 && cause.contains("members [2] are outside"), "{error}");
                }
                _ => panic!("rank {}: {error}", rank.rank),
            }
        }
        // For a group inside both domains, the lists are compared.
        if rank.rank < 2 {
            let refusal = Call::Commit.make(&pool, &rank.tp, LONG).expect_err("the lists differ");
            let Refusal::MembersMismatch { what: MemberList::Domain, lists } = &refusal else {
                panic!("{refusal}")
            };
            assert_eq!((lists.entries.len(), lists.minority()), (2, vec![1]), "{refusal}");
        }
        drop(pool);
        rank.leave();
    });
}

#[test]
fn a_list_of_ranks_that_does_not_fit_the_communicator_is_refused_on_all() {
    on_ranks(2, |rank| {
        let communicator = rank.world.communicator();
        let commit = |pool: &SymmetricPool, uid: u64, ranks: &[u32]| {
            let group =
                CommunicatorGroup { id: GroupId { uid, epoch: 0 }, ranks: ranks.to_vec(), communicator };
            pool.commit(&group, options())
        };
        let wrong: [&[u32]; 5] = [&[1], &[0], &[1, 0], &[0, 0], &[0, 1, 1]];
        for (uid, wrong) in (70..).zip(wrong) {
            let (pool, bucket) = rank.pool_with_bucket();
            for _ in 0..2 {
                let ranks: &[u32] = if rank.rank == 1 { wrong } else { &[0, 1] };
                let error = commit(&pool, uid, ranks).expect_err("the lists differ");
                match error.refusal() {
                    Some(Refusal::PeerPrepareFailed { rank: 1, cause, .. }) => {
                        assert!(cause.contains(&format!("{wrong:?}")), "{cause}");
                    }
                    _ => panic!("{wrong:?}: {error}"),
                }
            }
            // With the right list, the same group is still usable.
            assert_eq!(windows(&commit(&pool, uid, &[0, 1])), (1, 1));
            drop((bucket, pool));
        }
        // The same on all ranks, and wrong.
        let pool = rank.pool();
        let error = commit(&pool, 80, &[1, 0]).expect_err("the order is that of no communicator");
        assert!(matches!(error.refusal(), Some(Refusal::PeerPrepareFailed { .. })), "{error}");
        drop(pool);
        rank.leave();
    });
}

/// Rank 1 refuses two commits without waiting. Rank 0 has finished both before rank 2 arrives, and must not have
/// removed the keys that rank 2 needs.
#[test]
fn a_rank_that_comes_late_is_told_of_commits_that_another_has_refused_alone() {
    on_ranks(3, |rank| {
        let (pool, bucket) = rank.pool_with_bucket();
        let commit = |ranks: &[u32], deadline| {
            let (id, communicator) = (GroupId { uid: 90, epoch: 0 }, rank.world.communicator());
            let group = CommunicatorGroup { id, ranks: ranks.to_vec(), communicator };
            pool.commit(&group, options().deadline(deadline))
        };
        let (list, deadline): (&[u32], _) = match rank.rank {
            0 => (&[0, 1, 2], LONG),
            1 => (&[1, 0, 2], LONG),
            _ => (&[0, 1, 2], SHORT),
        };
        let store = rank.world.job_store();
        if rank.rank == 2 {
            store.wait(&["rank 0 is through"], soon()).expect("rank 0 waits for nobody");
        }
        for _ in 0..2 {
            let error = commit(list, deadline).expect_err("rank 1 has another list");
            let refusal = error.refusal();
            assert!(matches!(refusal, Some(Refusal::PeerPrepareFailed { rank: 1, .. })), "{error}");
        }
        if rank.rank == 0 {
            store.set("rank 0 is through", b"").expect("the store is there");
        }
        assert_eq!(windows(&commit(&[0, 1, 2], LONG)), (1, 1));
        drop((bucket, pool));
        rank.leave();
    });
}

/// Shows a store as the next version of the protocol sees it. That version's messages carry a number that is one
/// higher.
struct NextVersion;

impl NextVersion {
    /// Changes the version of a message of the crate; the messages that all agreements share stay as they are.
    fn shift(mut bytes: Vec<u8>, by: i16) -> Vec<u8> {
        if let [b'S', b'Y', low, high, ..] = bytes.as_mut_slice() {
            [*low, *high] = u16::from_le_bytes([*low, *high]).wrapping_add_signed(by).to_le_bytes();
        }
        bytes
    }
}

impl<S> Intercept<S> for NextVersion {
    fn write(&self, value: &[u8]) -> Vec<u8> {
        Self::shift(value.to_vec(), 1)
    }
    fn read(&self, value: Vec<u8>) -> Vec<u8> {
        Self::shift(value, -1)
    }
}

/// The rank that arrives last decides. Ranks of different versions cannot read each other's messages.
#[test]
fn two_versions_of_the_protocol_are_told_alike_on_both_sides() {
    for (call, order) in CALLS.into_iter().flat_map(|call| [(call, [0, 1]), (call, [1, 0])]) {
        let told = on_ranks(2, |rank| {
            let store = rank.world.job_store();
            let store: Arc<dyn Store> = if rank.rank == 1 {
                Arc::new(Intercepted { inner: store, intercept: NextVersion })
            } else {
                Arc::new(store)
            };
            let domain = Domain::new(store.clone(), 950, rank.rank, 0..2).expect("a member");
            let pool = make(&rank, &domain);
            drop(pool.allocate(1 << 20).expect("there is room"));
            if rank.rank == order[1] {
                // The other rank is counted first, so that this rank counts last and decides.
                let count = call.arrival(&pool, &rank.world, "count");
                store.wait(&[&count], soon()).expect("the other comes before");
            }
            let refusal = call.make(&pool, &rank.world, LONG).expect_err("the ranks cannot read each other");
            drop(pool);
            rank.leave();
            refusal
        });
        let Refusal::VersionMismatch { versions } = &told[0] else { panic!("{call:?}: {}", told[0]) };
        assert_eq!(told[0], told[1], "{call:?}");
        // Rank 1 counts one less, as its store shifts versions.
        let own = PROTOCOL_VERSION - u16::from(order[1] == 1);
        let entries: Vec<_> = versions.entries.iter().map(|side| (side.ranks.clone(), side.value)).collect();
        assert_eq!(entries, [(vec![0], own), (vec![1], own + 1)], "{call:?}");
        let text = told[0].to_string();
        assert!(text.contains(&format!("rank 0: {own}; rank 1: {}", own + 1)), "{text}");
    }
}

//! Ranks that wait for each other at two pools, make other domains than the rest, or name other ranks.

use std::{fmt, sync::Arc, time::Duration};

use process_group::{
    ProcessGroup,
    store::{Deadline, PrefixStore, Store, StoreError},
};
use symm_mem::{
    AgreedError, CommitError, CommunicatorGroup, Domain, Geometry, GroupId, Refusal, RetireError,
    SymmetricPool,
    agreement::{Membership, PROTOCOL_VERSION, RankList},
};

use super::{
    job::{Rank, options, soon},
    on_ranks, windows,
};

/// How long who gives up first is given, and who waits for that.
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

/// What ranks of a domain do together.
#[derive(Debug, Clone, Copy)]
enum Call {
    Commit,
    Retire,
    Length,
}

const CALLS: [Call; 3] = [Call::Commit, Call::Retire, Call::Length];

impl Call {
    fn make(self, pool: &SymmetricPool, group: &ProcessGroup, deadline: Duration) -> Result<(), Refusal> {
        let refusal = match self {
            Self::Commit => match pool.commit(group, options().deadline(deadline)) {
                Err(CommitError::Refused { refusal, .. }) => refusal,
                other => return other.map(drop).map_err(|error| panic!("{error}")),
            },
            Self::Retire => match pool.retire(&[0], &[], deadline) {
                Err(RetireError::Refused { refusal, .. }) => refusal,
                other => return other.map(drop).map_err(|error| panic!("{error}")),
            },
            Self::Length => match pool.allocate_agreed(1 << (10 + group.rank()), deadline) {
                Err(AgreedError::Refused { refusal, .. }) => refusal,
                other => return other.map(drop).map_err(|error| panic!("{error}")),
            },
        };
        Err(refusal)
    }

    /// A key of the members' arrival in the first call of a pool: the record of the rank of this number, or `count`.
    fn arrival(self, pool: &SymmetricPool, group: &ProcessGroup, of: impl fmt::Display) -> String {
        let (pool, GroupId { uid, epoch }) = (pool.id(), group.id());
        let what = match self {
            Self::Commit => format!("{uid}.{epoch}"),
            Self::Retire => "retire".to_owned(),
            Self::Length => "length".to_owned(),
        };
        format!("symm/{:x}.{}/{}/{what}/0/records/{of}", pool.domain, pool.generation, pool.pool)
    }
}

/// Rank 0 commits the one pool first, rank 1 the other. Both are told so, wherever the pools' domains come from.
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
                rank.world.job_store().wait(&["symm/at/1"], soon()).expect("rank 1 is at its first pool");
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
                let told: Vec<_> = circle.iter().map(|it| (it.rank, it.place.pool)).collect();
                assert_eq!(told, [(0, pools[0].id()), (1, pools[1].id())], "{refusal}");
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
                    rank.world.job_store().wait(&[&theirs], soon()).expect("rank 1 waits");
                    deadline = SHORT;
                }
                let refusal = call.make(&pool, &rank.world, deadline).expect_err("nobody is there");
                let Refusal::GenerationMismatch { domain, generations, circle, .. } = &refusal else {
                    panic!("{refusal}")
                };
                let sides: Vec<_> =
                    generations.sides.iter().map(|side| (side.ranks.clone(), side.value)).collect();
                // Where rank 1 comes next, rank 0 has been before and has not met it; and rank 0 finds nobody waiting.
                let (least, waiting) = match (attempt, rank.rank) {
                    (0, _) | (_, 1) => (2, 2),
                    _ => (3, 0),
                };
                let wanted = [(vec![0], least + 1), (vec![1], least)];
                let found = (*domain, &sides[..], circle.len());
                assert_eq!(found, (pool.id().domain, &wanted[..], waiting), "{refusal}");
                let text = refusal.to_string();
                assert!(text.contains(&format!("rank 0: {}; rank 1: {least}", least + 1)), "{text}");
            }
            rank.leave();
        });
    }
}

/// All orders of three.
const ORDERS: [[u32; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// The ranks come in this order to a call in which each has its own list for the domain. What each is told.
fn come(rank: &Rank, call: Call, order: [u32; 3], uid: u64, lists: [&[u32]; 3]) -> Result<(), Refusal> {
    let pool = make(rank, &domain_of(rank, uid, lists[rank.rank as usize]));
    drop(pool.allocate(2 << 20).expect("there is room"));
    let place = order.iter().position(|it| *it == rank.rank).expect("one of them");
    if let Some(before) = place.checked_sub(1) {
        let record = call.arrival(&pool, &rank.world, order[before]);
        rank.world.job_store().wait(&[&record], soon()).expect("it comes before");
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
            let Refusal::MembersMismatch { what: Membership::Domain, lists } = refusal else {
                panic!("{refusal}")
            };
            let odd = lists.sides.iter().find(|side| side.ranks == [0]).map(|side| side.value.clone());
            assert_eq!(odd, Some(RankList(vec![0, 1])), "{call:?} in order {order:?}: {refusal}");
            assert!(lists.sides.iter().any(|side| side.value.0 == [0, 1, 2]), "{refusal}");
        }
        assert!(told.iter().all(|it| *it == told[0]), "{call:?}: {told:?}");
    }
}

/// Ranks 0 and 1 are alone for themselves, and go on. Rank 2 takes nothing for agreed in which it had no part.
#[test]
fn a_rank_that_is_in_no_other_domain_does_not_take_their_decision() {
    let lists: [&[u32]; 3] = [&[0, 1], &[0, 1], &[0, 1, 2]];
    for call in [Call::Retire, Call::Length] {
        on_ranks(3, |rank| {
            for (at, order) in (0..).zip(ORDERS) {
                let told = come(&rank, call, order, 800 + at, lists);
                match told {
                    Ok(()) if rank.rank < 2 => {}
                    Err(Refusal::MembersMismatch { what: Membership::Domain, lists }) if rank.rank == 2 => {
                        let own = lists.sides.iter().find(|side| side.ranks == [2]);
                        assert_eq!(own.map(|side| side.value.0.len()), Some(3), "{lists:?}");
                    }
                    told => panic!("{call:?} in order {order:?}, rank {}: {told:?}", rank.rank),
                }
            }
            rank.leave();
        });
    }
}

/// A group that one rank takes to be outside of its domain: the others do not wait for it.
#[test]
fn a_group_outside_of_one_domain_is_told_to_the_others() {
    on_ranks(3, |rank| {
        let ranks: &[u32] = if rank.rank == 0 { &[0, 1] } else { &[0, 1, 2] };
        let pool = make(&rank, &domain_of(&rank, 900, ranks));
        drop(pool.allocate(1 << 20).expect("there is room"));
        for _ in 0..2 {
            let error = pool.commit(&rank.world, options()).expect_err("the ranks differ");
            match &error {
                CommitError::GroupOutsideDomain { outside, .. } if rank.rank == 0 => {
                    assert_eq!(outside, &[2])
                }
                CommitError::Refused {
                    refusal: Refusal::PeerPrepareFailed { rank: 0, cause, .. }, ..
                } => {
                    assert!(rank.rank > 0 && cause.contains("members [2] are outside"), "{error}");
                }
                error => panic!("rank {}: {error}", rank.rank),
            }
        }
        // In a group that is inside of both, their lists are compared.
        if rank.rank < 2 {
            let refusal = Call::Commit.make(&pool, &rank.tp, LONG).expect_err("the lists differ");
            let Refusal::MembersMismatch { what: Membership::Domain, lists } = &refusal else {
                panic!("{refusal}")
            };
            assert_eq!((lists.sides.len(), lists.minority()), (2, vec![1]), "{refusal}");
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
            // With the right list the same group goes on.
            assert_eq!(windows(&commit(&pool, uid, &[0, 1])), (1, 1));
            drop((bucket, pool));
        }
        // Alike on all, and wrong on all.
        let pool = rank.pool();
        let error = commit(&pool, 80, &[1, 0]).expect_err("the order is that of no communicator");
        assert!(matches!(error.refusal(), Some(Refusal::PeerPrepareFailed { .. })), "{error}");
        drop(pool);
        rank.leave();
    });
}

/// Rank 1 refuses two commits without waiting. Rank 0 is through both before rank 2 comes, and must not have removed what
/// rank 2 is to be told.
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

/// A store as a release sees it whose messages are one version on.
struct OtherRelease(PrefixStore);

impl OtherRelease {
    /// The message of another version; what every version reads stays as it is.
    fn shift(mut bytes: Vec<u8>, by: i16) -> Vec<u8> {
        if let [b'S', b'Y', low, high, ..] = bytes.as_mut_slice() {
            let version = u16::from_le_bytes([*low, *high]);
            if version != u16::MAX {
                [*low, *high] = version.wrapping_add_signed(by).to_le_bytes();
            }
        }
        bytes
    }
}

type Stored<T> = Result<T, StoreError>;

impl Store for OtherRelease {
    fn set(&self, key: &str, value: &[u8]) -> Stored<()> {
        self.0.set(key, &Self::shift(value.to_vec(), 1))
    }
    fn get(&self, key: &str, deadline: Deadline) -> Stored<Vec<u8>> {
        Ok(Self::shift(self.0.get(key, deadline)?, -1))
    }
    fn check(&self, keys: &[&str]) -> Stored<bool> {
        self.0.check(keys)
    }
    fn wait(&self, keys: &[&str], deadline: Deadline) -> Stored<()> {
        self.0.wait(keys, deadline)
    }
    fn add(&self, key: &str, delta: i64) -> Stored<i64> {
        self.0.add(key, delta)
    }
    fn compare_set(&self, key: &str, expected: &[u8], new: &[u8]) -> Stored<Vec<u8>> {
        Ok(Self::shift(self.0.compare_set(key, expected, &Self::shift(new.to_vec(), 1))?, -1))
    }
    fn append(&self, key: &str, value: &[u8]) -> Stored<()> {
        self.0.append(key, value)
    }
    fn multi_get(&self, keys: &[&str], deadline: Deadline) -> Stored<Vec<Vec<u8>>> {
        let values = self.0.multi_get(keys, deadline)?;
        Ok(values.into_iter().map(|value| Self::shift(value, -1)).collect())
    }
    fn multi_set(&self, entries: &[(&str, &[u8])]) -> Stored<()> {
        self.0.multi_set(entries)
    }
    fn delete(&self, key: &str) -> Stored<bool> {
        self.0.delete(key)
    }
    fn num_keys(&self) -> Stored<u64> {
        self.0.num_keys()
    }
    fn list_keys(&self) -> Stored<Vec<String>> {
        self.0.list_keys()
    }
    fn queue_push(&self, key: &str, value: &[u8]) -> Stored<()> {
        self.0.queue_push(key, value)
    }
    fn queue_pop(&self, key: &str, deadline: Deadline) -> Stored<Vec<u8>> {
        self.0.queue_pop(key, deadline)
    }
    fn queue_try_pop(&self, key: &str) -> Stored<Option<Vec<u8>>> {
        self.0.queue_try_pop(key)
    }
    fn queue_len(&self, key: &str) -> Stored<u64> {
        self.0.queue_len(key)
    }
}

/// Whoever comes last decides, and the others cannot read each other.
#[test]
fn two_versions_of_the_protocol_are_told_alike_on_both_sides() {
    for (call, order) in CALLS.into_iter().flat_map(|call| [(call, [0, 1]), (call, [1, 0])]) {
        let told = on_ranks(2, |rank| {
            let store = rank.world.job_store();
            let store: Arc<dyn Store> =
                if rank.rank == 1 { Arc::new(OtherRelease(store)) } else { Arc::new(store) };
            let domain = Domain::new(store.clone(), 950, rank.rank, 0..2).expect("a member");
            let pool = make(&rank, &domain);
            drop(pool.allocate(1 << 20).expect("there is room"));
            if rank.rank == order[1] {
                // The other is counted too, so that this rank counts last and decides.
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
        // Rank 1 counts one less.
        let own = PROTOCOL_VERSION - u16::from(order[1] == 1);
        let sides: Vec<_> = versions.sides.iter().map(|side| (side.ranks.clone(), side.value)).collect();
        assert_eq!(sides, [(vec![0], own), (vec![1], own + 1)], "{call:?}");
        let text = told[0].to_string();
        assert!(text.contains(&format!("rank 0: {own}; rank 1: {}", own + 1)), "{text}");
    }
}

//! Domains: sets of ranks that promise to make the same requests (allocations, reservations and frees) of their
//! [symmetric pools](crate::SymmetricPool).

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use process_group::{
    ProcessGroup,
    store::{Store, StoreError},
};

use crate::agreement::{PoolId, meeting_id::generation_key, rank_of};

/// The ranks that promise to make the same requests of the domain's [pools](crate::SymmetricPool) in the same order,
/// and the [store](process_group::store) over which they reach agreements.
///
/// A pool of a domain can be [committed](crate::SymmetricPool::commit) for every group whose members all belong to the
/// domain. If several groups share a pool, the domain must contain the union of these groups, usually the world. If the
/// domain contains only one group's ranks, its pools can be committed for that group and its subgroups.
///
/// Every rank creates the domain itself, under the same number, the `uid`. A rank can create several domains under one
/// `uid`, and all ranks must create equally many. A domain's *generation* counts the domains that the rank has created
/// under this `uid`, including this one. Ranks agree only with ranks whose domain has the same generation. A commit
/// ends with [`Refusal::GenerationMismatch`](crate::Refusal::GenerationMismatch) in two cases: it waits in vain for a
/// rank that has created fewer domains, or ranks whose domains have different generations wait for each other.
///
/// A process must have the same rank in all domains of one store: its rank in the job. By these ranks, the processes
/// detect that they wait for each other in agreements of different pools.
#[derive(Clone)]
pub struct Domain {
    inner: Arc<DomainState>,
}

struct DomainState {
    store: Arc<dyn Store>,
    uid: u64,
    generation: u64,
    /// The random number of this generation in the store, equal on all ranks: see [`Domain::new`].
    instance: u64,
    rank: u32,
    ranks: Vec<u32>,
    /// The number of pools made so far.
    pools: AtomicU32,
}

/// The reason why a domain could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DomainError {
    /// This rank is not among the ranks of the domain.
    #[error("rank {rank} makes domain {uid:#x} but is not among its ranks {ranks:?}")]
    NotAMember {
        /// The domain's number.
        uid: u64,
        /// This rank.
        rank: u32,
        /// The domain's ranks.
        ranks: Vec<u32>,
    },
    /// The store failed.
    #[error("domain {uid:#x} could not be entered in the store")]
    Store {
        /// The domain's number.
        uid: u64,
        /// The error of the store.
        source: StoreError,
    },
    /// The [random number](Domain::new) of the domain in the store does not have 8 bytes, so a program other than the
    /// domain's ranks has written it.
    #[error(
        "domain {uid:#x}: its random number in the store has {bytes} bytes, expected 8: does another program write there?"
    )]
    Unreadable {
        /// The domain's number.
        uid: u64,
        /// The number of bytes found.
        bytes: usize,
    },
}

impl Domain {
    /// Creates a domain of `ranks` with the number `uid`. `rank` is this rank. The order of `ranks` does not matter,
    /// and duplicates are ignored.
    ///
    /// Not collective. The call increments this rank's counter for `uid` in `store`. The count is the generation, which
    /// is part of the domain's store keys. So a second generation of a domain does not read the keys of the first. The
    /// first rank that creates a generation also writes a random number to the store, which the other ranks read. This
    /// random number distinguishes the domain from domains with the same `uid` and generation in other stores.
    ///
    /// # Errors
    /// [`DomainError`].
    pub fn new(
        store: Arc<dyn Store>,
        uid: u64,
        rank: u32,
        ranks: impl IntoIterator<Item = u32>,
    ) -> Result<Self, DomainError> {
        let mut ranks: Vec<u32> = ranks.into_iter().collect();
        ranks.sort_unstable();
        ranks.dedup();
        if ranks.binary_search(&rank).is_err() {
            return Err(DomainError::NotAMember { uid, rank, ranks });
        }
        let generation =
            store.add(&generation_key(uid, rank), 1).map_err(|source| DomainError::Store { uid, source })?;
        let generation = generation.unsigned_abs();
        let stored = store
            .compare_set(&instance_key(uid, generation), b"", &random().to_le_bytes())
            .map_err(|source| DomainError::Store { uid, source })?;
        let instance = <[u8; 8]>::try_from(stored.as_slice())
            .map_err(|_| DomainError::Unreadable { uid, bytes: stored.len() })?;
        let instance = u64::from_le_bytes(instance);
        let inner = DomainState { store, uid, generation, instance, rank, ranks, pools: AtomicU32::new(0) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Creates a domain of the members of `group`. Its `uid` is the group's number, its ranks are the members' ranks in
    /// the job, and its store is the [store of the job](ProcessGroup::job_store). Its pools can be committed for the
    /// group and for each of its subgroups.
    ///
    /// # Errors
    /// [`DomainError::Store`] and [`DomainError::Unreadable`].
    pub fn of(group: &ProcessGroup) -> Result<Self, DomainError> {
        let (uid, rank) = (group.id().uid, rank_of(group.global_rank()));
        Self::new(Arc::new(group.job_store()), uid, rank, ranks_of(group))
    }

    /// The domain's number.
    pub fn uid(&self) -> u64 {
        self.inner.uid
    }

    /// This rank, one of [`ranks`](Self::ranks).
    pub fn rank(&self) -> u32 {
        self.inner.rank
    }

    /// The domain's ranks, ascending.
    pub fn ranks(&self) -> &[u32] {
        &self.inner.ranks
    }

    /// Returns those of `ranks` that are outside of the domain.
    pub(crate) fn outside(&self, ranks: &[u32]) -> Vec<u32> {
        let is_outside = |rank: &u32| self.inner.ranks.binary_search(rank).is_err();
        ranks.iter().copied().filter(is_outside).collect()
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// Returns the id for a new pool. Pools are numbered in the order of their creation.
    #[doc(hidden)]
    pub fn next_pool(&self) -> PoolId {
        let pool = self.inner.pools.fetch_add(1, Ordering::Relaxed);
        let DomainState { uid, generation, instance, .. } = *self.inner;
        PoolId { domain: uid, generation, instance, pool }
    }
}

/// The store key of the random number of a generation of a domain.
pub fn instance_key(uid: u64, generation: u64) -> String {
    format!("symm/{uid:x}.{generation}/instance")
}

/// A random number. Two calls, in this process or in different ones, return the same number with a probability of
/// 2^-64.
fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// The members of a process group as ranks of a domain.
pub(crate) fn ranks_of(group: &ProcessGroup) -> Vec<u32> {
    group.global_ranks().into_iter().map(rank_of).collect()
}

impl std::fmt::Debug for Domain {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let DomainState { uid, generation, rank, ranks, .. } = &*self.inner;
        write!(out, "Domain({uid:#x}, generation {generation}, rank {rank} of {ranks:?})")
    }
}

#[cfg(test)]
mod tests {
    use process_group::store::HashStore;

    use super::*;

    #[test]
    fn a_second_generation_is_told_from_the_first() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let first = Domain::new(store.clone(), 5, 1, [0, 1]).expect("a member");
        let second = Domain::new(store.clone(), 5, 1, [1, 0, 1]).expect("a member");
        assert_ne!(first.next_pool().generation, second.next_pool().generation);
        assert_eq!(second.next_pool().pool, 1);
        assert_eq!(second.ranks(), [0, 1]);
        let stranger = Domain::new(store.clone(), 5, 2, [0, 1]);
        assert!(matches!(stranger, Err(DomainError::NotAMember { rank: 2, .. })));
        store.set(&instance_key(6, 1), b"nine here").expect("the store is there");
        let unreadable = Domain::new(store, 6, 1, [0, 1]);
        assert!(matches!(unreadable, Err(DomainError::Unreadable { bytes: 9, .. })), "{unreadable:?}");
    }

    #[test]
    fn pools_of_two_stores_are_told_apart_and_those_of_two_ranks_are_not() {
        let stores: [Arc<dyn Store>; 2] = [Arc::new(HashStore::new()), Arc::new(HashStore::new())];
        let ids = stores.each_ref().map(|store| {
            [0, 1].map(|rank| Domain::new(store.clone(), 5, rank, [0, 1]).expect("a member").next_pool())
        });
        assert!(ids.iter().all(|[first, second]| first == second), "{ids:?}");
        let [[one, _], [other, _]] = ids;
        let counted = |id: PoolId| (id.domain, id.generation, id.pool);
        assert_eq!(counted(one), counted(other));
        assert!(one != other && format!("{one:#}") != format!("{other:#}"), "{one:#}");
        assert_eq!(one.to_string(), "pool 0 of domain 0x5 (generation 1)");
    }
}

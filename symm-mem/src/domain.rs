//! Domains: ranks that promise the same sequence of allocations.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use process_group::{
    ProcessGroup,
    store::{Store, StoreError},
};

use crate::agreement::PoolId;

/// The ranks that promise to ask the domain's pools for the same things in the same order, and the store through
/// which they agree.
///
/// A pool of a domain can be committed for every group inside it. The smallest domain of a pool shared by several
/// groups is the union of groups that overlap, usually the world; a domain of one group's ranks makes a pool of
/// that group alone.
///
/// Every rank makes the domain itself, and all make the same number of domains under one `uid`.
#[derive(Clone)]
pub struct Domain {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Store>,
    uid: u64,
    generation: u64,
    rank: u32,
    ranks: Vec<u32>,
    pools: AtomicU32,
}

/// Why a domain could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DomainError {
    /// The rank that makes it is not among its ranks.
    #[error("rank {rank} makes domain {uid:#x} but is not among its ranks {ranks:?}")]
    NotAMember {
        /// The domain's number.
        uid: u64,
        /// The rank.
        rank: u32,
        /// The domain's ranks.
        ranks: Vec<u32>,
    },
    /// The store failed.
    #[error("domain {uid:#x} could not be entered in the store")]
    Store {
        /// The domain's number.
        uid: u64,
        /// What the store said.
        source: StoreError,
    },
}

impl Domain {
    /// The domain of number `uid` with `ranks`, seen from `rank`. Not collective: it only counts, in `store`, how
    /// often this rank has made it, so that a second life of a domain does not meet what the first has left.
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
        let generation = store
            .add(&format!("symm/{uid:x}/generation/{rank}"), 1)
            .map_err(|source| DomainError::Store { uid, source })?;
        let generation = generation.unsigned_abs();
        let inner = Inner { store, uid, generation, rank, ranks, pools: AtomicU32::new(0) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The domain of a process group's members, known by the group's number and by the ranks of the job. Its pools
    /// can be committed for the group and for every subgroup of it.
    ///
    /// # Errors
    /// [`DomainError::Store`].
    pub fn of(group: &ProcessGroup) -> Result<Self, DomainError> {
        let (uid, rank) = (group.id().uid, rank_of(group.global_rank()));
        Self::new(Arc::new(group.store()), uid, rank, ranks_of(group))
    }

    /// The domain's number.
    pub fn uid(&self) -> u64 {
        self.inner.uid
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.inner.rank
    }

    /// The domain's ranks, ascending.
    pub fn ranks(&self) -> &[u32] {
        &self.inner.ranks
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.inner.store
    }

    /// The name of the next pool: pools are told apart by the order of their creation.
    pub(crate) fn next_pool(&self) -> PoolId {
        let pool = self.inner.pools.fetch_add(1, Ordering::Relaxed);
        PoolId { domain: self.inner.uid, generation: self.inner.generation, pool }
    }
}

/// The members of a process group as ranks of a domain.
pub(crate) fn ranks_of(group: &ProcessGroup) -> Vec<u32> {
    group.global_ranks().into_iter().map(rank_of).collect()
}

/// A job has fewer ranks than that.
pub(crate) fn rank_of(rank: usize) -> u32 {
    u32::try_from(rank).unwrap_or(u32::MAX)
}

impl std::fmt::Debug for Domain {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inner { uid, generation, rank, ranks, .. } = &*self.inner;
        write!(out, "Domain({uid:#x}, life {generation}, rank {rank} of {ranks:?})")
    }
}

#[cfg(test)]
mod tests {
    use process_group::store::HashStore;

    use super::*;

    #[test]
    fn a_second_life_is_told_from_the_first() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let first = Domain::new(store.clone(), 5, 1, [0, 1]).expect("a member");
        let second = Domain::new(store.clone(), 5, 1, [1, 0, 1]).expect("a member");
        assert_ne!(first.next_pool().generation, second.next_pool().generation);
        assert_eq!(second.next_pool().pool, 1);
        assert_eq!(second.ranks(), [0, 1]);
        assert!(matches!(Domain::new(store, 5, 2, [0, 1]), Err(DomainError::NotAMember { rank: 2, .. })));
    }
}

//! The outcome of registration.

use std::fmt;
#[cfg(feature = "registration")]
use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(feature = "registration")]
use caching_alloc::core::Pool;
use nccl_sys::Version;

use crate::memory::Unregistrable;
#[cfg(feature = "registration")]
use crate::registration::Enlistment;

/// The reason why a group's memory is not registered; the same on every member. Ranks are those of the job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotRegistered {
    /// No rank requested it.
    #[error(
        "no rank has enabled registration; call Builder::registration(true), or set \
         NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK=1, on all ranks"
    )]
    NotAsked,
    /// The group is lazy. Its members agree on registration when they make its communicator.
    #[error("the group has not made its communicator yet (Builder::lazy); call ProcessGroup::connect first")]
    Lazy,
    /// The group was joined from PyTorch.
    #[error(
        "the group was joined from PyTorch, whose ranks do not say what they register; make a group of Rust's ranks"
    )]
    Joined,
    /// Some ranks requested it, but not this one.
    #[error(
        "rank {rank} has not enabled registration, but others have; enable it on all ranks (Builder::registration) or on none"
    )]
    NotAskedOf {
        /// The rank.
        rank: usize,
    },
    /// A rank is built without the feature.
    #[error("rank {rank} is built without the feature `registration` of process-group; enable it there")]
    NotBuilt {
        /// The rank.
        rank: usize,
    },
    /// A rank's library has no registration.
    #[error("rank {rank} has NCCL {release}; registration needs NCCL 2.19 or newer on all ranks")]
    Release {
        /// The rank.
        rank: usize,
        /// Its release.
        release: Version,
    },
    /// A rank's environment forbids it.
    #[error(
        "{setting} in the environment of rank {rank}, so NCCL registers nothing there; remove it from the environment"
    )]
    Environment {
        /// The rank.
        rank: usize,
        /// The setting.
        setting: &'static str,
    },
    /// A rank has no allocator attached.
    #[error(
        "rank {rank} had attached no SegmentRegistrar to an allocator of its device when the communicator was made; \
         attach one on every rank before the group is built"
    )]
    NoAllocator {
        /// The rank.
        rank: usize,
    },
    /// Ranks have allocators of different kinds. A buffer could then be registered on some ranks and not on
    /// others.
    #[error(
        "rank {rank} has allocators of {found}, but rank {other} of {other_found}; use the same on all ranks"
    )]
    Allocators {
        /// One rank.
        rank: usize,
        /// The kind of its allocators' memory.
        found: String,
        /// The other.
        other: usize,
        /// The kind of the other's.
        other_found: String,
    },
    /// No allocator has memory that can be registered.
    #[error("the memory of the ranks' allocators cannot be registered: {reason}")]
    Unregistrable {
        /// The reason.
        reason: Unregistrable,
    },
    /// The pool was not registered.
    #[error("pool {pool:?} is not registered with the group; ProcessGroup::register_pool registers a pool")]
    UnknownPool {
        /// The name of the pool.
        pool: String,
    },
    /// A rank could not register its segments.
    #[error("rank {rank} could not register its memory: {problem}")]
    Failed {
        /// The rank.
        rank: usize,
        /// The failure.
        problem: String,
    },
}

/// The outcome of registration with communicators that were made together.
pub(super) struct Registered {
    pub(super) outcome: Result<(), NotRegistered>,
    /// The registrars whose segments the communicators know.
    pub(super) registrars: Vec<u64>,
    #[cfg(feature = "registration")]
    pub(super) _enlistment: Option<Enlistment>,
    /// The pools that are registered besides.
    #[cfg(feature = "registration")]
    pub(super) pools: Mutex<Vec<Enlistment>>,
}

impl Registered {
    /// Nothing is registered, for this reason.
    pub(super) fn not(reason: NotRegistered) -> Self {
        Self {
            outcome: Err(reason),
            registrars: Vec::new(),
            #[cfg(feature = "registration")]
            _enlistment: None,
            #[cfg(feature = "registration")]
            pools: Mutex::default(),
        }
    }
}

#[cfg(feature = "registration")]
impl Registered {
    pub(super) fn pools(&self) -> MutexGuard<'_, Vec<Enlistment>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the segments of this pool are registered.
    pub(super) fn has(&self, pool: &Pool) -> bool {
        self._enlistment.iter().chain(&*self.pools()).any(|enlistment| enlistment.follows(pool))
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registered({:?})", self.outcome)
    }
}

//! Results of registration.

use std::fmt;
#[cfg(feature = "registration")]
use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(feature = "registration")]
use caching_alloc::core::Pool;
use nccl_sys::Version;

use crate::memory::Unregistrable;
#[cfg(feature = "registration")]
use crate::registration::Enlistment;

/// The reason why a group's memory is not registered. All members get the same reason. Ranks are those of the
/// job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotRegistered {
    /// No rank requested registration.
    #[error(
        "no rank has enabled registration; call Builder::registration(true), or set \
         NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK=1, on all ranks"
    )]
    NotAsked,
    /// The group is lazy and has no communicator yet. Its members agree on registration when they make the
    /// communicator.
    #[error("the group has not made its communicator yet (Builder::lazy); call ProcessGroup::connect first")]
    Lazy,
    /// The group was joined from PyTorch, whose ranks take no part in the agreement on registration.
    #[error(
        "the group was joined from PyTorch, whose ranks do not say what they register; make a group of Rust's ranks"
    )]
    Joined,
    /// Some ranks requested registration, but `rank` did not.
    #[error(
        "rank {rank} has not enabled registration, but others have; enable it on all ranks (Builder::registration) or on none"
    )]
    NotAskedOf {
        /// The rank that did not request registration.
        rank: usize,
    },
    /// A rank is built without the feature `registration`.
    #[error("rank {rank} is built without the feature `registration` of process-group; enable it there")]
    NotBuilt {
        /// The rank without the feature.
        rank: usize,
    },
    /// A rank's release of NCCL has no registration.
    #[error("rank {rank} has NCCL {release}; registration needs NCCL 2.19 or newer on all ranks")]
    Release {
        /// The rank with the old release.
        rank: usize,
        /// The release of NCCL on that rank.
        release: Version,
    },
    /// A rank's environment forbids registration.
    #[error(
        "{setting} in the environment of rank {rank}, so NCCL registers nothing there; remove it from the environment"
    )]
    Environment {
        /// The rank with the setting.
        rank: usize,
        /// The environment variable with its value.
        setting: &'static str,
    },
    /// A rank had no `SegmentRegistrar` attached to an allocator.
    #[error(
        "rank {rank} had attached no SegmentRegistrar to an allocator of its device when the communicator was made; \
         attach one on every rank before the group is built"
    )]
    NoAllocator {
        /// The rank without a registrar.
        rank: usize,
    },
    /// Ranks have allocators with different kinds of memory. A buffer could then be registered on some ranks
    /// and not on others.
    #[error(
        "rank {rank} has allocators of {found}, but rank {other} of {other_found}; use the same on all ranks"
    )]
    Allocators {
        /// A rank whose allocators differ from those of `other`.
        rank: usize,
        /// The kinds of memory of `rank`'s allocators.
        found: String,
        /// The rank that `rank` is compared with.
        other: usize,
        /// The kinds of memory of `other`'s allocators.
        other_found: String,
    },
    /// No allocator has memory that can be registered.
    #[error("the memory of the ranks' allocators cannot be registered: {reason}")]
    Unregistrable {
        /// The reason why the memory cannot be registered.
        reason: Unregistrable,
    },
    /// The pool is not registered with the group.
    #[error("pool {pool:?} is not registered with the group; ProcessGroup::register_pool registers a pool")]
    UnknownPool {
        /// The name of the pool.
        pool: String,
    },
    /// A rank could not register its segments.
    #[error("rank {rank} could not register its memory: {problem}")]
    Failed {
        /// The rank that failed.
        rank: usize,
        /// A description of the failure.
        problem: String,
    },
}

/// The result of registration with the communicator of a group and those of its lanes, or with that of a pair.
pub(super) struct Registered {
    pub(super) outcome: Result<(), NotRegistered>,
    /// Serial numbers of the registrars whose segments are registered with the communicators.
    pub(super) registrars: Vec<u64>,
    #[cfg(feature = "registration")]
    pub(super) enlistment: Option<Enlistment>,
    /// Pools that were registered later, by `ProcessGroup::register_pool`.
    #[cfg(feature = "registration")]
    pub(super) pools: Mutex<Vec<Enlistment>>,
}

impl Registered {
    /// Makes the result if nothing is registered, for this reason.
    pub(super) fn not(reason: NotRegistered) -> Self {
        Self {
            outcome: Err(reason),
            registrars: Vec::new(),
            #[cfg(feature = "registration")]
            enlistment: None,
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

    /// Returns true if the segments of this pool are registered, alone or with the whole allocator.
    pub(super) fn has(&self, pool: &Pool) -> bool {
        self.enlistment.iter().chain(&*self.pools()).any(|enlistment| enlistment.follows(pool))
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registered({:?})", self.outcome)
    }
}

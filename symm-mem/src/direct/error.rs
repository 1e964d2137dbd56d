//! Errors of a direct path.

use bootstrap::agreement::Failure;
use process_group::{group::GroupError, store::StoreError};

use crate::rendezvous::{AllocationError, RendezvousError};

/// Reason why a group has no direct path, or why its path does not share a pool. The group stays usable without a
/// path: its messages fail with [`GroupErrorKind::NoPath`](process_group::group::GroupErrorKind::NoPath) until one is
/// installed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectError {
    /// Invalid options.
    #[error("{problem}")]
    Options {
        /// The problem.
        problem: String,
    },
    /// Members run on other hosts than this rank. Its copy engines and host memory cannot access theirs.
    #[error(
        "{group}: ranks {ranks:?} run on other hosts than rank {own}; P2pPolicy::Direct is for the ranks of one host, so \
         split groups of those, or choose another policy"
    )]
    OtherHosts {
        /// The group's name.
        group: String,
        /// This rank of the job.
        own: usize,
        /// Ranks of the job that run on other hosts.
        ranks: Vec<usize>,
    },
    /// The group takes no path: its policy is another one, it already has a path, or it has ended.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The ranks' memory cannot be shared, or differs; the same on all members.
    #[error("memory of a direct path")]
    Rendezvous(#[source] Box<RendezvousError>),
    /// This rank's memory cannot be allocated.
    #[error("the rings of a direct path")]
    Allocation(#[from] AllocationError),
    /// Members gave different options.
    #[error("{group}: rank {rank} installs a direct path with {options}, this rank with {own}")]
    Different {
        /// The group's name.
        group: String,
        /// A rank of the job.
        rank: usize,
        /// The options of that rank.
        options: String,
        /// The options of this rank.
        own: String,
    },
    /// A member failed, so no member has a path.
    #[error("{group}: rank {rank} has no direct path: {problem}")]
    Unmade {
        /// The group's name.
        group: String,
        /// The rank of the job.
        rank: usize,
        /// The failure on that rank.
        problem: String,
    },
    /// The members did not agree: members did not come, or they differ in the data that every agreement compares. Every
    /// member gets the same reason.
    #[error("{group}: its members did not agree on a direct path: {source}")]
    NotAgreed {
        /// The group's name.
        group: String,
        /// The reason.
        source: Box<Failure>,
    },
    /// The group is gone, and its path with it.
    #[error("{group}: the group is gone, and its direct path with it; install a path for another group")]
    Ended {
        /// The group's name.
        group: String,
    },
    /// The store failed.
    #[error("{group}: installing a direct path")]
    Store {
        /// The group's name.
        group: String,
        /// Error of the store.
        source: StoreError,
    },
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
}

impl From<RendezvousError> for DirectError {
    fn from(error: RendezvousError) -> Self {
        Self::Rendezvous(Box::new(error))
    }
}

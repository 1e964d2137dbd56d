//! Why messages cannot go directly.

use process_group::{group::GroupError, store::StoreError};

use crate::rendezvous::{AllocationError, RendezvousError};

/// Why a group has no direct path. It goes on without one: its messages are
/// [`GroupError::NoPath`] until one is installed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectError {
    /// Options that make no path.
    #[error("{problem}")]
    Options {
        /// What is wrong with them.
        problem: String,
    },
    /// Members run on another host than this rank, whose copy engines and host memory reach none of theirs.
    #[error(
        "{group}: ranks {ranks:?} run on other hosts than rank {own}; P2pPolicy::Direct is for the ranks of one host, so \
         split groups of those, or choose another policy"
    )]
    OtherHosts {
        /// The group's name.
        group: String,
        /// This rank of the job.
        own: usize,
        /// The ranks of the job that are elsewhere.
        ranks: Vec<usize>,
    },
    /// The group takes no path: another policy, or it has one; it is over.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The ranks' memory cannot be shared, or they gave different sizes; the same on all members.
    #[error("the rings of a direct path")]
    Rendezvous(#[source] Box<RendezvousError>),
    /// This rank's memory cannot be made.
    #[error("the rings of a direct path")]
    Allocation(#[from] AllocationError),
    /// Members gave different options.
    #[error("{group}: rank {rank} installs a direct path with {options}, this rank with {own}")]
    Different {
        /// The group's name.
        group: String,
        /// A rank of the job.
        rank: usize,
        /// What it gave.
        options: String,
        /// What this rank gave.
        own: String,
    },
    /// A member could not, and so no member has a path.
    #[error("{group}: rank {rank} has no direct path: {problem}")]
    Unmade {
        /// The group's name.
        group: String,
        /// The rank of the job.
        rank: usize,
        /// What it met.
        problem: String,
    },
    /// The store failed, or a member did not come.
    #[error("{group}: installing a direct path")]
    Store {
        /// The group's name.
        group: String,
        /// What the store said.
        source: StoreError,
    },
    /// The driver.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
}

impl From<RendezvousError> for DirectError {
    fn from(error: RendezvousError) -> Self {
        Self::Rendezvous(Box::new(error))
    }
}

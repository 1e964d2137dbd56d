//! What a rendezvous can end with instead of peers' buffers.

use std::sync::Arc;

use process_group::{group::GroupError, store::StoreError};

use super::{AllocationError, protocol::RendezvousRefusal};
use crate::{agreement::Malformed, kernels::KernelError};

/// Why there are no peers' buffers.
///
/// [`Refused`](Self::Refused) is the same value on every member of the group.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// Nothing is mapped, on no member. The group can have its next rendezvous.
    #[error("rendezvous of group {group}: {refusal}")]
    Refused {
        /// The group's name.
        group: String,
        /// Why.
        refusal: RendezvousRefusal,
    },
    /// The group's members have had no rendezvous for this memory.
    #[error(
        "RendezvousMissing: group {group} has had no rendezvous for the memory at {address:#x}; all members call `rendezvous` first"
    )]
    RendezvousMissing {
        /// The group's name.
        group: String,
        /// The buffer's address.
        address: u64,
    },
    /// The group is over: a member is lost, or in other trouble. Said instead of a refusal that only names who is missing
    /// ([`RendezvousRefusal::MembersLost`], [`RendezvousRefusal::RendezvousTimeout`]), and of what failed on this member alone.
    #[error("rendezvous of group {group}: the group is over")]
    GroupOver {
        /// The group's name.
        group: String,
        /// What has ended it.
        source: Arc<GroupError>,
    },
    /// The store failed, so that this member does not know what the others decided; they will miss it.
    #[error("rendezvous of group {group} could not reach the store")]
    Store {
        /// The group's name.
        group: String,
        /// What the store said.
        source: StoreError,
    },
    /// What stands in the store is no decision.
    #[error(
        "what stands in the store for group {group} cannot be read: does another program write under its keys?"
    )]
    Unreadable {
        /// The group's name.
        group: String,
        /// Why not.
        source: Malformed,
    },
    /// The rendezvous's machine was driven wrongly: a bug of this crate.
    #[error("the rendezvous of group {group} was driven out of step; this is a bug of symm-mem")]
    OutOfStep {
        /// The group's name.
        group: String,
    },
    /// This rank's memory cannot be made.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// This rank's signals cannot be had.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The driver refused what is asked of it before anything is said to the others.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
}

impl RendezvousError {
    /// What all members were told, if they were.
    #[must_use]
    pub fn refusal(&self) -> Option<&RendezvousRefusal> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal),
            _ => None,
        }
    }
}

/// Why there is no view of a rank's memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// A rank that there is not.
    #[error("rank {rank} in a group of {world}")]
    NoSuchRank {
        /// The rank.
        rank: usize,
        /// How many there are.
        world: usize,
    },
    /// The view leaves the buffer.
    #[error("a view of {needed:?} bytes at byte {offset:?} leaves the {what} of {bytes} bytes")]
    OutOfBounds {
        /// `buffer` or `signal pad`.
        what: &'static str,
        /// Where it begins; none if addresses cannot count so far.
        offset: Option<usize>,
        /// How far its last element reaches; none if addresses cannot count so far.
        needed: Option<usize>,
        /// What there is.
        bytes: usize,
    },
}

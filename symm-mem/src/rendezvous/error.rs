//! Errors of a rendezvous.

use std::sync::Arc;

use process_group::{group::GroupError, store::StoreError};

use super::{AllocationError, protocol::RendezvousRefusal};
use crate::{agreement::Malformed, commit::without_name, kernels::KernelError};

/// The reason why a rendezvous failed.
///
/// All members of the group get the same value of [`Refused`](Self::Refused).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// No member keeps a mapping of this rendezvous. The group can have its next rendezvous.
    #[error("rendezvous of group {group}: {refusal}")]
    Refused {
        /// The group's name.
        group: String,
        /// The reason.
        refusal: RendezvousRefusal,
    },
    /// The group's members have not called `rendezvous` for this memory.
    #[error(
        "RendezvousMissing: group {group} has had no rendezvous for the memory at {address:#x}; all members call `rendezvous` first"
    )]
    RendezvousMissing {
        /// The group's name.
        group: String,
        /// The buffer's address.
        address: u64,
    },
    /// The group has ended, because a member is lost or for another reason. This error replaces refusals that only
    /// name missing ranks ([`RendezvousRefusal::MembersLost`], [`RendezvousRefusal::RendezvousTimeout`]), and
    /// failures on this member alone.
    #[error("rendezvous of group {group}: the group ended: {}", without_name(cause, group))]
    GroupOver {
        /// The group's name.
        group: String,
        /// The error that ended the group. It is part of this error's text, so [`source`](std::error::Error::source)
        /// does not return it.
        cause: Arc<GroupError>,
    },
    /// The store failed, so this member does not know the others' decision. The others may report this member as
    /// missing.
    #[error("rendezvous of group {group} could not reach the store")]
    Store {
        /// The group's name.
        group: String,
        /// The error of the store.
        source: StoreError,
    },
    /// The value in the store is not a decision.
    #[error(
        "what stands in the store for group {group} cannot be read; check that no other program writes under its keys"
    )]
    Unreadable {
        /// The group's name.
        group: String,
        /// The decoding error.
        source: Malformed,
    },
    /// The rendezvous's state machine got an input that it had not requested. This is a bug of this crate.
    #[error("the rendezvous of group {group} was driven out of step; this is a bug of symm-mem")]
    OutOfStep {
        /// The group's name.
        group: String,
    },
    /// This rank's memory cannot be allocated.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// This rank's fault record cannot be created.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A driver call failed while this rank prepared its memory or signal pad.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
}

impl RendezvousError {
    /// The refusal that all members got, if the rendezvous was refused.
    #[must_use]
    pub fn refusal(&self) -> Option<&RendezvousRefusal> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal),
            _ => None,
        }
    }
}

/// The reason why a view of a rank's memory cannot be created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// The rank is not in the group.
    #[error("rank {rank} in a group of {world}")]
    NoSuchRank {
        /// The rank.
        rank: usize,
        /// The number of ranks in the group.
        world: usize,
    },
    /// The view exceeds the buffer.
    #[error("a view of {needed:?} bytes at byte {offset:?} leaves the {what} of {bytes} bytes")]
    OutOfBounds {
        /// `buffer` or `signal pad`.
        what: &'static str,
        /// The offset of the view in bytes, or `None` on overflow.
        offset: Option<usize>,
        /// The size of the view in bytes, or `None` on overflow.
        needed: Option<usize>,
        /// The size of the buffer or pad in bytes.
        bytes: usize,
    },
}

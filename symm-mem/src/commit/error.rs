//! What a commit can end with instead of windows.

use std::sync::Arc;

use process_group::{group::GroupError, store::StoreError};

use crate::agreement::{Ending, GroupId, Malformed, Poison, Refusal};

/// Why a commit failed.
///
/// [`Refused`](Self::Refused) and [`Poisoned`](Self::Poisoned) are the same value on every member of the group. Only where
/// members are missing, one whose group has ended says that instead ([`GroupOver`](Self::GroupOver)); and a member that
/// cannot take back a plain registration, on which the others have given up too, is poisoned alone.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// Nothing was registered, on no member. The group is as it was before and can commit again.
    #[error("commit of group {group} refused on all members: {refusal}")]
    Refused {
        /// The group.
        group: GroupId,
        /// Why.
        refusal: Refusal,
    },
    /// The group is dead, on all members: abort its communicator, make it anew in its next epoch, and have the pool
    /// [forget](crate::SymmetricPool::forget) the dead one. Until then, the memory of segments that are retired stays.
    #[error("group {group} is poisoned on all members: {poison}")]
    Poisoned {
        /// The group.
        group: GroupId,
        /// Why.
        poison: Poison,
    },
    /// The store failed, so that this member does not know what the others decided; they will miss it.
    #[error("commit of group {group} could not reach the store{}", if *poisoned {
        " after this rank had posted its record, so the group is poisoned"
    } else {
        ""
    })]
    Store {
        /// The group.
        group: GroupId,
        /// Whether this rank had posted its record: the others may have registered windows with it, so the group is over.
        poisoned: bool,
        /// What the store said.
        source: StoreError,
    },
    /// The group is over: a member is lost, or in other trouble. Nobody waits for its members any more; what was agreed
    /// before stands. Said instead of a [`Refusal::SyncTimeout`], a [`Poison::MembersLost`], and what failed on this member
    /// alone.
    #[error("commit of group {group}: the group is over")]
    GroupOver {
        /// The group.
        group: GroupId,
        /// What has ended it.
        source: Arc<GroupError>,
    },
    /// The group has members that have promised nothing about the pool's allocations. A member finds that by itself; where
    /// others have another domain, they are told by a [`Refusal::PeerPrepareFailed`].
    #[error(
        "group {group} cannot use a pool of domain {domain:#x}: its members {outside:?} are outside; make the domain of the \
         union of all groups that are to share the pool"
    )]
    GroupOutsideDomain {
        /// The group.
        group: GroupId,
        /// The domain's number.
        domain: u64,
        /// The members outside.
        outside: Vec<u32>,
    },
    /// What stands in the store is no decision. This member does not know what the others do, so the group is over.
    #[error(
        "what stands in the store for group {group} cannot be read, so the group is poisoned: does another program write under its keys?"
    )]
    Unreadable {
        /// The group.
        group: GroupId,
        /// Why not.
        source: Malformed,
    },
    /// The commit's machine was driven wrongly: a bug of this crate. The group is poisoned.
    #[error("the commit of group {group} was driven out of step; this is a bug of symm-mem")]
    OutOfStep {
        /// The group.
        group: GroupId,
    },
}

impl CommitError {
    /// The name of the error, down to the agreed reason: `SegmentCountMismatch`, `SyncTimeout` and so on.
    pub fn name(&self) -> &'static str {
        match self {
            CommitError::Refused { refusal, .. } => refusal.name(),
            CommitError::Poisoned { poison, .. } => poison.name(),
            CommitError::Store { .. } => "Store",
            CommitError::GroupOver { .. } => "GroupOver",
            CommitError::GroupOutsideDomain { .. } => "GroupOutsideDomain",
            CommitError::Unreadable { .. } => "Unreadable",
            CommitError::OutOfStep { .. } => "OutOfStep",
        }
    }

    /// The group that it is about.
    pub fn group(&self) -> GroupId {
        match self {
            CommitError::Refused { group, .. }
            | CommitError::Poisoned { group, .. }
            | CommitError::Store { group, .. }
            | CommitError::GroupOver { group, .. }
            | CommitError::GroupOutsideDomain { group, .. }
            | CommitError::Unreadable { group, .. }
            | CommitError::OutOfStep { group } => *group,
        }
    }

    /// What all members were told, if nothing was registered.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            CommitError::Refused { refusal, .. } => Some(refusal),
            _ => None,
        }
    }
}

/// What has ended a group, which is said instead of how a meeting of it ended; not instead of what is `agreed`: then the
/// others are told that, and the end came after it.
pub(crate) fn over(standing: Result<(), GroupError>, agreed: bool) -> Option<Arc<GroupError>> {
    standing.err().filter(|_| !agreed).map(Arc::new)
}

/// The error of a commit that has ended so; with what the store said, if it failed.
pub(super) fn failed(group: GroupId, ending: Ending, failure: Option<StoreError>) -> CommitError {
    match (ending, failure) {
        (Ending::Refused(refusal), _) => CommitError::Refused { group, refusal },
        (Ending::Poisoned(poison), _) => CommitError::Poisoned { group, poison },
        (Ending::StoreFailed { in_doubt: poisoned }, Some(source)) => {
            CommitError::Store { group, poisoned, source }
        }
        (Ending::Unreadable { source }, _) => CommitError::Unreadable { group, source },
        (Ending::OutOfStep | Ending::StoreFailed { .. }, _) => CommitError::OutOfStep { group },
    }
}

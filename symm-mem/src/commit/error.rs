//! Errors of a commit.

use std::sync::Arc;

use process_group::{group::GroupError, store::StoreError};

use crate::agreement::{Ending, GroupId, Malformed, Poison, Refusal};

/// The reason why a commit failed.
///
/// All members of the group get the same value of [`Refused`](Self::Refused) or [`Poisoned`](Self::Poisoned). There
/// are two exceptions. If members are missing or lost, a member whose group has ended gets
/// [`GroupOver`](Self::GroupOver) instead. If all members have given up on a plain registration, a member that cannot undo it is poisoned alone.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// No member registered anything. The group is unchanged and can commit again.
    #[error("commit of group {} refused on all members: {refusal}", named(*group, group_name))]
    Refused {
        /// The group.
        group: GroupId,
        /// The group's name, if it has one.
        group_name: Option<Arc<str>>,
        /// The reason.
        refusal: Refusal,
    },
    /// The group is dead on all members. Abort its communicator, create it anew in its next epoch, and have the pool
    /// [forget](crate::SymmetricPool::forget) the dead group. Until then, the memory of retired segments is not
    /// freed.
    #[error("group {} is poisoned on all members: {poison}", named(*group, group_name))]
    Poisoned {
        /// The group.
        group: GroupId,
        /// The group's name, if it has one.
        group_name: Option<Arc<str>>,
        /// The reason.
        poison: Poison,
    },
    /// The store failed, so this member does not know the others' decision. They will miss this member. Or another
    /// process runs as this rank ([`StoreError::RankTaken`]), and the others may have agreed with it.
    #[error("commit of group {} could not reach the store{}", named(*group, group_name), if *poisoned {
        " after this rank had posted its record, so the group is poisoned"
    } else {
        ""
    })]
    Store {
        /// The group.
        group: GroupId,
        /// The group's name, if it has one.
        group_name: Option<Arc<str>>,
        /// True if this rank had posted its record. The other members may then have registered windows with it, so
        /// the group is poisoned.
        poisoned: bool,
        /// The error of the store.
        source: StoreError,
    },
    /// The group has ended, because a member is lost or for another reason. No rank waits for its members any more,
    /// and earlier agreements remain valid. This error replaces [`Refusal::SyncTimeout`], [`Refusal::MemberLost`],
    /// [`Poison::MembersLost`], and failures on this member alone.
    #[error(
        "commit of group {}: the group ended: {}",
        named(*group, group_name),
        without_name(cause, group_name.as_deref().unwrap_or_default())
    )]
    GroupOver {
        /// The group.
        group: GroupId,
        /// The group's name, if it has one.
        group_name: Option<Arc<str>>,
        /// The error that ended the group. The text contains it, so it is no
        /// [`source`](std::error::Error::source).
        cause: Arc<GroupError>,
    },
    /// The group has members outside of the pool's domain, which have promised nothing about the pool's allocations.
    /// Each member checks its own domain. Members with another domain get a [`Refusal::PeerPrepareFailed`].
    #[error(
        "group {} cannot use a pool of domain {domain:#x}: its members {outside:?} are outside; make the domain of the \
         union of all groups that are to share the pool",
        named(*group, group_name)
    )]
    GroupOutsideDomain {
        /// The group.
        group: GroupId,
        /// The group's name, if it has one.
        group_name: Option<Arc<str>>,
        /// The domain's number.
        domain: u64,
        /// The members outside.
        outside: Vec<u32>,
    },
    /// The value in the store is not a decision. This member does not know what the others do, so the group is
    /// poisoned.
    #[error(
        "what stands in the store for group {} cannot be read, so the group is poisoned; check that no other program writes under its keys",
        named(*group, group_name)
    )]
    Unreadable {
        /// The group.
        group: GroupId,
        /// The group's name, if it has one.
        group_name: Option<Arc<str>>,
        /// The decoding error.
        source: Malformed,
    },
    /// The driver of the commit's state machine gave a wrong input. This is a bug of this crate. The group is
    /// poisoned.
    #[error("the commit of group {} was driven out of step; this is a bug of symm-mem", named(*group, group_name))]
    OutOfStep {
        /// The group.
        group: GroupId,
        /// The group's name, if it has one.
        group_name: Option<Arc<str>>,
    },
}

impl CommitError {
    /// The name of the error or, if it carries one, of the agreed reason: `SegmentCountMismatch`, `SyncTimeout` and
    /// so on.
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

    /// The group of the failed commit.
    pub fn group(&self) -> GroupId {
        match self {
            CommitError::Refused { group, .. }
            | CommitError::Poisoned { group, .. }
            | CommitError::Store { group, .. }
            | CommitError::GroupOver { group, .. }
            | CommitError::GroupOutsideDomain { group, .. }
            | CommitError::Unreadable { group, .. }
            | CommitError::OutOfStep { group, .. } => *group,
        }
    }

    /// The refusal that all members got, if nothing was registered.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            CommitError::Refused { refusal, .. } => Some(refusal),
            _ => None,
        }
    }
}

/// Returns the error that ended the group, to be reported instead of a failed meeting. Returns `None` if the outcome
/// was `agreed`: the other members got that outcome too, and the group ended after it.
pub(crate) fn over(standing: Result<(), GroupError>, agreed: bool) -> Option<Arc<GroupError>> {
    standing.err().filter(|_| !agreed).map(Arc::new)
}

/// Returns the text of the error that ended the group of this name, without the name at its start: the text of the
/// commit, exchange or rendezvous names the group already.
pub(crate) fn without_name(cause: &GroupError, group: &str) -> String {
    let text = cause.to_string();
    match text.strip_prefix(group).and_then(|rest| rest.strip_prefix(": ")) {
        Some(rest) => rest.to_owned(),
        None => text,
    }
}

/// Formats a group's name and id, such as `world (1.0)`, or its id alone.
fn named(group: GroupId, name: &Option<Arc<str>>) -> String {
    match name {
        Some(name) => format!("{name} ({group})"),
        None => group.to_string(),
    }
}

/// Converts the ending of a commit to its error. `failure` is the store's error, if the store failed.
pub(super) fn failed(
    group: GroupId,
    group_name: Option<Arc<str>>,
    ending: Ending,
    failure: Option<StoreError>,
) -> CommitError {
    match (ending, failure) {
        (Ending::Refused(refusal), _) => CommitError::Refused { group, group_name, refusal },
        (Ending::Poisoned(poison), _) => CommitError::Poisoned { group, group_name, poison },
        (Ending::StoreFailed { in_doubt: poisoned }, Some(source)) => {
            CommitError::Store { group, group_name, poisoned, source }
        }
        (Ending::Unreadable { source }, _) => CommitError::Unreadable { group, group_name, source },
        (Ending::OutOfStep | Ending::StoreFailed { .. }, _) => CommitError::OutOfStep { group, group_name },
    }
}

#[cfg(test)]
mod tests {
    use process_group::group::GroupErrorKind;

    use super::*;

    #[test]
    fn the_name_of_an_ended_group_appears_once() {
        let left = GroupErrorKind::Left { rank: 1, how: "dropped".into(), steps: 3 };
        let cause = Arc::new(GroupError::from(left).of_group("world"));
        let text = |group_name| {
            let group = GroupId { uid: 1, epoch: 0 };
            CommitError::GroupOver { group, group_name, cause: cause.clone() }.to_string()
        };
        let reason = "rank 1 has dropped the group, which ends it for all members; collectives and graph launches that it \
                      had made: 3";
        assert_eq!(
            text(Some("world".into())),
            format!("commit of group world (1.0): the group ended: {reason}")
        );
        // Without a name, or with another one, the cause's text is complete.
        assert_eq!(text(None), format!("commit of group 1.0: the group ended: world: {reason}"));
        assert_eq!(
            text(Some("w".into())),
            format!("commit of group w (1.0): the group ended: world: {reason}")
        );
    }
}

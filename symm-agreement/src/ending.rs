//! Errors of agreements: the reasons why an agreement of [`bootstrap::agreement`] has no result on a member.

use bootstrap::agreement::{self, Failed, Failure, Gone, Member, Protocol};
use process_group::{
    error_text,
    group::{GroupError, GroupErrorKind},
    store::StoreError,
};

use super::{poison::Poison, refusal::Refusal, wire::Malformed};
use crate::ranks::rank_of;

/// The reason why an agreement has no result on this member. `R` is the type of the reason for a refusal. It is
/// [`Refusal`] for a commit, a [plain registration](super::RegistrationProtocol), a retirement and an agreement on a
/// length. A rendezvous and an exchange have types of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending<R = Refusal> {
    /// The agreement was refused: this member has registered, retired or mapped nothing. All members get the same
    /// reason, with two exceptions. In both, the others may have agreed without this member:
    /// - This rank's list of members differs from the list of the others.
    /// - In a rendezvous or an exchange: another process runs as this rank.
    Refused(R),
    /// The group is poisoned on all members: it is possible that they have registered different memory with NCCL.
    /// Exception: if this member could not undo a plain registration (`ncclCommRegister`), the group is at first
    /// poisoned on this member alone. Only a commit, a plain registration or a retirement has this ending.
    Poisoned(Poison),
    /// This member could not reach the store, or another process runs as this rank. The others may report this member
    /// as missing.
    StoreFailed {
        /// True if this member cannot find out whether the others have acted on its record:
        /// - For a plain registration: always true. The member has registered its segments before the agreement, and
        ///   cannot find out whether the others keep their registrations.
        /// - For other agreements: true if the other members may have acted on the record that this rank, or another
        ///   process that runs as this rank, has posted. False if no record was posted, or if the members had already
        ///   decided to refuse the commit and only searched for the [difference](super::Divergence) between their
        ///   allocation logs.
        in_doubt: bool,
    },
    /// A value in the store cannot be decoded, because another program, or another release of this one, has overwritten
    /// it. The other members may have read the original value.
    Unreadable {
        /// The decoding error.
        source: Malformed,
    },
    /// The [state machine](agreement::Agreement) of the agreement got an input that it had not requested. This is a
    /// bug.
    OutOfStep,
}

impl<R> From<R> for Ending<R> {
    fn from(refusal: R) -> Self {
        Self::Refused(refusal)
    }
}

impl<R> Ending<R> {
    /// Converts the ending of an agreement from the form of [`bootstrap::agreement`]. `failed` converts a [`Failure`],
    /// because its consequence depends on the kind of agreement.
    pub fn of<P: Protocol>(ending: agreement::Ending<P>, failed: impl FnOnce(Failure) -> Self) -> Self
    where
        Self: From<P::Refusal>,
    {
        match ending {
            agreement::Ending::Refused(refused) => refused.into(),
            agreement::Ending::Failed(failure) => failed(failure),
            agreement::Ending::StoreFailed => Self::StoreFailed { in_doubt: false },
            agreement::Ending::InDoubt => Self::StoreFailed { in_doubt: true },
            agreement::Ending::Unreadable(source) => Self::Unreadable { source },
            _ => Self::OutOfStep,
        }
    }
}

impl<R: From<Failure>> Ending<R> {
    /// Converts the ending of an agreement in which every failure is a refusal.
    pub fn of_meeting<P: Protocol<Refusal = R>>(ending: agreement::Ending<P>) -> Self {
        Self::of(ending, |failure| Self::Refused(failure.into()))
    }
}

impl Ending {
    /// Returns true if all members get this ending:
    /// - For a refusal or a poison: true, unless the reason is that members did not arrive in time or were lost. For
    ///   such a reason, some members may report the error that ended their group in place of this ending.
    /// - For all other endings: false.
    ///
    /// In two cases the result is true although it is possible that only this member has the ending: this member could
    /// not undo a plain registration, or this rank's list of members differs from the list of the others.
    pub fn is_agreed(&self) -> bool {
        match self {
            Self::Refused(refusal) => {
                !matches!(refusal, Refusal::SyncTimeout { .. } | Refusal::MemberLost { .. })
            }
            Self::Poisoned(poison) => !matches!(poison, Poison::MembersLost { .. }),
            Self::StoreFailed { .. } | Self::Unreadable { .. } | Self::OutOfStep => false,
        }
    }

    /// If this rank cannot find out whether all members have the same windows, returns the reason to poison the groups
    /// of the commit or retirement. Otherwise returns `None`. `rank` is this rank. `cause` is the store's error, if the
    /// store failed.
    pub fn doubt(&self, rank: u32, cause: Option<String>) -> Option<Poison> {
        let cause = match self {
            Self::StoreFailed { in_doubt: true } => cause.unwrap_or_else(|| "it failed".to_owned()),
            Self::Unreadable { source } => source.to_string(),
            Self::OutOfStep => "the machine was driven out of step".to_owned(),
            _ => return None,
        };
        Some(Poison::StoreLost { rank, cause })
    }
}

/// Takes the store's error out of `failed`, the agreement that ended without a result on `member`, and returns it. If
/// there is no such error, but another process runs as this rank, returns [`StoreError::RankTaken`]. Otherwise returns
/// `None`.
pub fn store_error<P: Protocol>(failed: &mut Failed<P>, member: &Member) -> Option<StoreError> {
    let is_taken = failed.ending == agreement::Ending::Failed(Failure::Taken { rank: member.rank });
    let taken = || StoreError::RankTaken { rank: member.rank as usize, at: member.name.clone() };
    failed.store.take().or_else(|| is_taken.then(taken))
}

/// Returns the rank that ended a group, and the reason, from `ended`, the group's error. Ranks are ranks of the job. If
/// the error names no rank, the result names this rank, `own`.
pub fn gone(own: u32, ended: &GroupError) -> Gone {
    let rank = match ended.kind() {
        GroupErrorKind::Lost { rank, .. }
        | GroupErrorKind::Left { rank, .. }
        | GroupErrorKind::Overdue { rank, .. }
        | GroupErrorKind::MemberFailed { rank, .. } => rank_of(*rank),
        _ => own,
    };
    Gone { rank, cause: error_text(ended) }
}

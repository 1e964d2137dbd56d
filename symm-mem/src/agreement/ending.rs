//! The ends of agreements that run over [`bootstrap::agreement`].

use bootstrap::agreement::{self, Failure, Gone, Protocol};
use process_group::{
    error_text,
    group::{GroupError, GroupErrorKind},
};

use super::wire::Malformed;
use crate::domain::rank_of;

/// The reason why an agreement has no result on this member. `R` is the reason that all members get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgreementError<R> {
    /// Nothing was agreed. All members get the same reason.
    Refused(R),
    /// This member could not reach the store. The others may report this member as missing.
    StoreFailed {
        /// True if this member had posted its record, so that the others may have acted on it.
        in_doubt: bool,
    },
    /// A value in the store cannot be decoded: another program writes there. The others may have read the value
    /// before it changed.
    Unreadable(Malformed),
    /// The state machine got an input that it had not requested.
    OutOfStep,
}

impl<R> AgreementError<R> {
    /// Converts the ending of an agreement. `refusal` converts the failures that are common to all agreements.
    pub(crate) fn of<P: Protocol>(ending: agreement::Ending<P>, refusal: impl FnOnce(Failure) -> R) -> Self
    where
        R: From<P::Refusal>,
    {
        match ending {
            agreement::Ending::Refused(refused) => Self::Refused(refused.into()),
            agreement::Ending::Failed(failure) => Self::Refused(refusal(failure)),
            agreement::Ending::StoreFailed => Self::StoreFailed { in_doubt: false },
            agreement::Ending::InDoubt => Self::StoreFailed { in_doubt: true },
            agreement::Ending::Unreadable(malformed) => Self::Unreadable(malformed),
            _ => Self::OutOfStep,
        }
    }
}

/// Returns the member that ended a group, and the reason. `own` is this rank of the job, which is named if the error
/// names no rank.
pub(crate) fn gone(own: u32, ended: &GroupError) -> Gone {
    let rank = match ended.kind() {
        GroupErrorKind::Lost { rank, .. }
        | GroupErrorKind::Left { rank, .. }
        | GroupErrorKind::Overdue { rank, .. }
        | GroupErrorKind::MemberFailed { rank, .. } => rank_of(*rank),
        _ => own,
    };
    Gone { rank, cause: error_text(ended) }
}

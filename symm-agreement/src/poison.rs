//! The reasons why a group is poisoned, and why segments have no windows. A group is poisoned if it is possible that
//! its members have registered different memory with NCCL.

use bootstrap::agreement::Failure;

use super::{Ranks, ValuesByRank, history::LogPoint, wire::wire_enum};

/// The reason why a group is poisoned. The members of a poisoned group may have different windows or other
/// registrations. The group's communicator must be aborted, and created anew in a new
/// [epoch](process_group::group::GroupId::epoch) of the group.
///
/// All members get the same value, but not always at the same time. In two cases, one member poisons the group first:
/// - The member cannot find out the result of a commit or retirement ([`StoreLost`](Self::StoreLost)).
/// - The member could not undo a plain registration (`ncclCommRegister`).
///
/// The other members then get the value in the next commit, from the [record](super::CommitRecord) of this member,
/// unless the group has ended before that commit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Poison {
    /// The members' [logs](super::GroupLog::committed) of committed and retired segments differ.
    #[error("CommittedLogDiverged: members hold different windows ({}), from a bug or a restart", logs.describe(|log| format!("{} segments with hash {:016x}", log.length, log.hash)))]
    CommittedLogDiverged {
        /// The state of each rank's log.
        logs: ValuesByRank<LogPoint>,
    },
    /// A rank failed in one of these ways:
    /// - It could not register windows.
    /// - It could not undo its own plain registration, after the plain registration of another member had failed.
    #[error("RegistrationFailed: on rank {rank}{}: {cause}", match ordinal {
        Some(ordinal) => format!(", segment {ordinal}"),
        None => String::new(),
    })]
    RegistrationFailed {
        /// The rank, the lowest if there are several.
        rank: u32,
        /// The segment, if known.
        ordinal: Option<u32>,
        /// A description of the failure.
        cause: String,
    },
    /// Members are lost or blocked, in one of these ways:
    /// - Some members did not report the outcome of their registration or deregistration.
    /// - A member ended the group, or [left](bootstrap::agreement::leave) the agreement, after the decision to
    ///   register, open or deregister memory.
    /// - A deregistration did not return in time on some members.
    #[error("MembersLost: {}", match (missing.is_empty(), blocked.is_empty()) {
        (true, _) => format!("the library did not return on {}", Ranks(blocked)),
        (false, true) => format!("{} did not report after the decision", Ranks(missing)),
        (false, false) => format!(
            "{} did not report after the decision; the library did not return on {}",
            Ranks(missing),
            Ranks(blocked)
        ),
    })]
    MembersLost {
        /// The members that did not report, ascending. If a member ended the group, and another member has reported
        /// this, the list contains only the member that ended the group.
        missing: Vec<u32>,
        /// The members that reported that their registration or deregistration did not return in time, ascending.
        blocked: Vec<u32>,
    },
    /// All members have reported an outcome, but on some of them, the registration did not return in time.
    #[error("RegistrationBlocked: registration did not return on {} in time", Ranks(ranks))]
    RegistrationBlocked {
        /// The ranks, ascending.
        ranks: Vec<u32>,
    },
    /// On some members, NCCL does not support windows for this group and has registered none. On the others, the
    /// registration succeeded, or did not return in time.
    #[error("WindowsUnsupported: {}{} got no windows: {reason}", match with.len() {
        0 => String::new(),
        _ => format!("{} got windows, ", Ranks(with)),
    }, Ranks(without))]
    WindowsUnsupported {
        /// The members with windows, ascending.
        with: Vec<u32>,
        /// The members without windows, ascending.
        without: Vec<u32>,
        /// The reason for the missing windows, and the members, if any, on which the registration did not return in
        /// time.
        reason: String,
    },
    /// A rank cannot find out the result of a commit or retirement, for one of these reasons:
    /// - Its requests to the store failed after it had begun to post its record.
    /// - It could not decode a stored value.
    /// - Another process runs as this rank.
    /// - This crate has a bug.
    #[error("StoreLost: rank {rank} could not learn from the store what the members agreed on: {cause}")]
    StoreLost {
        /// The rank.
        rank: u32,
        /// The store's error, the decoding error of the stored value, or a description of a bug of this crate.
        cause: String,
    },
    /// The outcome of a member's registration or deregistration cannot be decoded: another program has written it.
    #[error(
        "OutcomeUnreadable: the outcome of rank {rank} cannot be decoded: {cause}; check that no other program writes under the keys of the pool"
    )]
    OutcomeUnreadable {
        /// The member.
        rank: u32,
        /// The decoding error.
        cause: String,
    },
    /// All ranks had agreed to retire segments. Then a rank could not deregister windows of these segments, or reported
    /// that a group with such windows had ended.
    #[error("RetirementFailed: rank {rank} could not deregister the windows of retired segments: {cause}")]
    RetirementFailed {
        /// The rank, the lowest if there are several.
        rank: u32,
        /// The error of the deregistration, or the error that ended the group.
        cause: String,
    },
}
wire_enum!(named Poison {
    0 => CommittedLogDiverged { logs },
    1 => RegistrationFailed { rank, ordinal, cause },
    2 => MembersLost { missing, blocked },
    3 => RegistrationBlocked { ranks },
    4 => WindowsUnsupported { with, without, reason },
    5 => StoreLost { rank, cause },
    6 => RetirementFailed { rank, cause },
    7 => OutcomeUnreadable { rank, cause },
});

impl From<Failure> for Poison {
    /// Converts a failure of an agreement whose members may have registered or deregistered memory.
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unreadable { rank, cause } => Self::OutcomeUnreadable { rank, cause },
            failure => Self::MembersLost { missing: failure.culprits(), blocked: Vec::new() },
        }
    }
}

/// The reason why committed segments have no NCCL window. It is the same on every member.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoWindows {
    /// The group has only one member, which has no peer to share a window with.
    #[error("a group of one needs no window")]
    SingleMember {},
    /// NCCL does not support windows for this group, or the caller of the commit requested none
    /// (`CommitOptions::windows`).
    #[error("{reason}")]
    Unsupported {
        /// The reason.
        reason: String,
    },
}
wire_enum!(NoWindows { 0 => SingleMember {}, 1 => Unsupported { reason } });

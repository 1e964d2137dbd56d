//! The reasons why a group is poisoned, and why a group has no windows.

use bootstrap::agreement::Failure;

use super::{Ranks, ValuesByRank, history::LogPoint, wire::wire_enum};

/// The reason why a group is poisoned: its members no longer know that they hold the same windows. The communicator
/// must be aborted and created anew in a new epoch.
///
/// All members get the same value, with two exceptions. A member that does not know the members' decision
/// ([`StoreLost`](Self::StoreLost)) is poisoned alone. So is a member that could not undo a plain registration
/// (`ncclCommRegister`). In the next commit, the other members get the same value from that member's record, unless the
/// group has ended before.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Poison {
    /// The members' logs of committed segments differ.
    #[error("CommittedLogDiverged: members hold different windows ({}), from a bug or a restart", logs.describe(|log| format!("{} segments with hash {:016x}", log.length, log.hash)))]
    CommittedLogDiverged {
        /// Each rank's log.
        logs: ValuesByRank<LogPoint>,
    },
    /// A rank's registration failed, or the rank could not undo a plain registration that failed on another member.
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
    /// Members did not report the outcome of their registration or deregistration, or a member ended the group during
    /// the registration. Also the reason if a deregistration did not return on some members.
    #[error("MembersLost: {} did not report after the decision{}", Ranks(missing), match blocked.len() {
        0 => String::new(),
        _ => format!("; the library did not return on {}", Ranks(blocked)),
    })]
    MembersLost {
        /// The members that did not report, ascending. If a member has reported which member ended the group, the list
        /// holds only the member that ended it.
        missing: Vec<u32>,
        /// The members that reported a registration or deregistration that did not return, ascending.
        blocked: Vec<u32>,
    },
    /// The registration did not return on some members, though no member is missing.
    #[error("RegistrationBlocked: registration did not return on {} in time", Ranks(ranks))]
    RegistrationBlocked {
        /// The ranks, ascending.
        ranks: Vec<u32>,
    },
    /// The library reported success without windows on some members. On the others it made windows, or did not return.
    #[error("WindowsUnsupported: {}{} got no windows: {reason}", match with.len() {
        0 => String::new(),
        _ => format!("{} got windows, ", Ranks(with)),
    }, Ranks(without))]
    WindowsUnsupported {
        /// The members that got windows, ascending.
        with: Vec<u32>,
        /// The members that got none, ascending.
        without: Vec<u32>,
        /// The reason for the missing windows, and the members on which the registration did not return.
        reason: String,
    },
    /// A rank posted its record and does not know the members' decision: it lost the store, could not decode a stored
    /// value, or another process runs as this rank.
    #[error("StoreLost: rank {rank} could not learn from the store what the members agreed on: {cause}")]
    StoreLost {
        /// The rank.
        rank: u32,
        /// The store's error, the decoding error of the stored value, or a description of a bug of this crate.
        cause: String,
    },
    /// The outcome of a member's registration or deregistration cannot be read: another program has written it.
    #[error(
        "OutcomeUnreadable: what rank {rank} posted after the decision cannot be read: {cause}; check that no other program writes under the keys of the pool"
    )]
    OutcomeUnreadable {
        /// The member.
        rank: u32,
        /// The decoding error.
        cause: String,
    },
    /// A rank could not deregister windows of segments that all ranks had agreed to retire, or reported that a group
    /// with such windows had ended.
    #[error("RetirementFailed: rank {rank} could not deregister the windows of retired segments: {cause}")]
    RetirementFailed {
        /// The rank, the lowest if there are several.
        rank: u32,
        /// The error of the library, or the error that ended the group.
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
    /// Converts a failure of an agreement whose members may have registered or deregistered windows.
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unreadable { rank, cause } => Self::OutcomeUnreadable { rank, cause },
            failure => Self::MembersLost { missing: failure.culprits(), blocked: Vec::new() },
        }
    }
}

/// The reason why agreed segments have no window. It is the same on every member.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoWindows {
    /// A group of one member has no peer to share a window with.
    #[error("a group of one needs no window")]
    SingleMember {},
    /// The library has no windows for this group.
    #[error("{reason}")]
    Unsupported {
        /// The reason.
        reason: String,
    },
}
wire_enum!(NoWindows { 0 => SingleMember {}, 1 => Unsupported { reason } });

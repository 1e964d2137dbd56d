//! Why a group is dead, and why it has no windows, in the words that every member is given.

use super::{
    record::LogPoint,
    split::{Ranks, Split},
    wire::wire_enum,
};

/// Why a group takes part in nothing any more: its members no longer know that they hold the same windows.
/// All members are given the same value. The communicator has to be aborted and made anew (a new epoch).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Poison {
    /// The members' logs of what the group has committed differ.
    #[error("CommittedLogDiverged: members hold different windows ({}), from a bug or a restart", logs.describe(|log| format!("{} segments with hash {:016x}", log.length, log.hash)))]
    CommittedLogDiverged {
        /// Each rank's log.
        logs: Split<LogPoint>,
    },
    /// A rank's registration failed.
    #[error("RegistrationFailed: on rank {rank}{}: {cause}", match ordinal {
        Some(ordinal) => format!(", segment {ordinal}"),
        None => String::new(),
    })]
    RegistrationFailed {
        /// The rank, the lowest if there are several.
        rank: u32,
        /// The segment, if known.
        ordinal: Option<u32>,
        /// What the library said.
        cause: String,
    },
    /// Members did not say how their registration ended.
    #[error("MembersLost: {} did not report after the decision{}", Ranks(missing), match blocked.len() {
        0 => String::new(),
        _ => format!("; the library did not return on {}", Ranks(blocked)),
    })]
    MembersLost {
        /// Who is silent, ascending.
        missing: Vec<u32>,
        /// Who reported that its registration did not return, ascending.
        blocked: Vec<u32>,
    },
    /// Registration did not return on some members, though all are there.
    #[error("RegistrationBlocked: registration did not return on {} in time", Ranks(ranks))]
    RegistrationBlocked {
        /// The ranks, ascending.
        ranks: Vec<u32>,
    },
    /// Some members got windows and others did not.
    #[error("WindowsUnsupported: {} got windows, {} did not: {reason}", Ranks(with), Ranks(without))]
    WindowsUnsupported {
        /// Who got windows, ascending.
        with: Vec<u32>,
        /// Who did not, ascending.
        without: Vec<u32>,
        /// Why not.
        reason: String,
    },
    /// A rank posted its record and could not learn from the store what the members agreed on.
    #[error("StoreLost: rank {rank} could not learn from the store what the members agreed on: {cause}")]
    StoreLost {
        /// The rank.
        rank: u32,
        /// What the store said, or what is wrong with what stands there.
        cause: String,
    },
    /// A rank could not deregister windows that all had agreed to retire.
    #[error("RetirementFailed: rank {rank} could not deregister the windows of retired segments: {cause}")]
    RetirementFailed {
        /// The rank, the lowest if there are several.
        rank: u32,
        /// What the library said.
        cause: String,
    },
}
wire_enum!(Poison {
    0 => CommittedLogDiverged { logs },
    1 => RegistrationFailed { rank, ordinal, cause },
    2 => MembersLost { missing, blocked },
    3 => RegistrationBlocked { ranks },
    4 => WindowsUnsupported { with, without, reason },
    5 => StoreLost { rank, cause },
    6 => RetirementFailed { rank, cause },
});

impl Poison {
    /// The variant's name.
    pub fn name(&self) -> &'static str {
        match self {
            Poison::CommittedLogDiverged { .. } => "CommittedLogDiverged",
            Poison::RegistrationFailed { .. } => "RegistrationFailed",
            Poison::MembersLost { .. } => "MembersLost",
            Poison::RegistrationBlocked { .. } => "RegistrationBlocked",
            Poison::WindowsUnsupported { .. } => "WindowsUnsupported",
            Poison::StoreLost { .. } => "StoreLost",
            Poison::RetirementFailed { .. } => "RetirementFailed",
        }
    }
}

/// Why agreed segments have no window: the uniform fallback, the same on every member.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoWindows {
    /// A group of one has nobody to share a window with.
    #[error("a group of one needs no window")]
    SingleMember {},
    /// The library has none for this group.
    #[error("{reason}")]
    Unsupported {
        /// Why.
        reason: String,
    },
}
wire_enum!(NoWindows { 0 => SingleMember {}, 1 => Unsupported { reason } });

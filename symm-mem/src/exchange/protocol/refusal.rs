//! Why there is no plan, in the words that every member is given.

use super::record::Part;
use crate::agreement::{Split, meeting::Failure, split::Ranks, wire::wire_enum};

/// Why no member has the plan. All members are given the same value; nothing is left open, and a plan that was there under
/// the same name stays what it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeRefusal {
    /// Ranks did not come.
    #[error("ExchangeTimeout: {} did not come within {waited_ms} ms", Ranks(missing))]
    ExchangeTimeout {
        /// The ranks, ascending.
        missing: Vec<u32>,
        /// How long they were waited for.
        waited_ms: u64,
    },
    /// A rank's message cannot be read, or does not fit together.
    #[error("RecordUnreadable: what rank {rank} posted cannot be used: {cause}")]
    RecordUnreadable {
        /// The rank.
        rank: u32,
        /// Why not.
        cause: String,
    },
    /// Ranks speak different versions of the protocol, and cannot read each other's messages.
    #[error(
        "VersionMismatch: ranks speak different versions of the protocol ({}); run the same release on every rank",
        versions.describe(u16::to_string)
    )]
    VersionMismatch {
        /// Each rank's version.
        versions: Split<u16>,
    },
    /// Ranks came with different plans.
    #[error("PlanMismatch: ranks exchange different plans ({})", plans.describe(|name| format!("{name:?}")))]
    PlanMismatch {
        /// Each rank's.
        plans: Split<String>,
    },
    /// A rank failed before the exchange.
    #[error("PeerPrepareFailed: rank {rank} cannot take part: {cause}")]
    PeerPrepareFailed {
        /// The rank, the lowest if there are several.
        rank: u32,
        /// What failed.
        cause: String,
    },
    /// A transfer has one end.
    #[error(
        "CounterpartMissing: rank {rank} has {transfers} transfers with rank {peer}, which has {found} with it; both \
         name each of them"
    )]
    CounterpartMissing {
        /// The rank that has more.
        rank: u32,
        /// How many.
        transfers: u64,
        /// Its peer.
        peer: u32,
        /// How many that has.
        found: u64,
    },
    /// The two ends of a transfer do not belong together.
    #[error(
        "PartMismatch: in transfer {at} between ranks {rank} and {peer}, rank {rank} {part}, and rank {peer} {found}"
    )]
    PartMismatch {
        /// Which of the two ranks' transfers, in their order.
        at: u64,
        /// The lower rank.
        rank: u32,
        /// What it does.
        part: Part,
        /// The other.
        peer: u32,
        /// What that does.
        found: Part,
    },
    /// The two ends of a transfer differ in size.
    #[error(
        "SizeMismatch: transfer {at} between ranks {rank} and {peer} has {bytes} bytes on rank {rank}, and {found} bytes \
         on rank {peer}"
    )]
    SizeMismatch {
        /// Which of the two ranks' transfers, in their order.
        at: u64,
        /// The lower rank.
        rank: u32,
        /// Its buffer's length.
        bytes: u64,
        /// The other.
        peer: u32,
        /// That one's.
        found: u64,
    },
    /// A rank's memory cannot be had where it is needed.
    #[error("OutOfReach: the memory of rank {rank} ({way}) cannot be had by rank {peer}{}", match other_host {
        true => ", which is on another host: allocate with fabric handles",
        false => ": allocate with handles that can be exported",
    })]
    OutOfReach {
        /// Whose memory.
        rank: u32,
        /// How it can be had.
        way: String,
        /// Who needs it.
        peer: u32,
        /// Whether they are on different hosts.
        other_host: bool,
    },
    /// A device cannot reach another's memory.
    #[error(
        "NoPeerAccess: the device of rank {rank} cannot reach that of rank {peer} (no NVLink, or PCIe access is off)"
    )]
    NoPeerAccess {
        /// The rank that would copy.
        rank: u32,
        /// Whose memory it cannot reach.
        peer: u32,
    },
    /// A rank could not open its peers' memory.
    #[error("OpeningFailed: rank {rank} could not open its peers' memory, or give its own: {cause}")]
    OpeningFailed {
        /// The rank, the lowest if there are several.
        rank: u32,
        /// What failed.
        cause: String,
    },
    /// Ranks were lost after all had come.
    #[error("MembersLost: {} lost while the members opened each other's memory{}", Ranks(missing), match noticed.is_empty() {
        true => String::new(),
        false => format!(" (noticed by {})", Ranks(noticed)),
    })]
    MembersLost {
        /// The ranks that did not say how it went, ascending; if all did, those that others found gone.
        missing: Vec<u32>,
        /// Those that waited for them in vain.
        noticed: Vec<u32>,
    },
}
wire_enum!(ExchangeRefusal {
    0 => ExchangeTimeout { missing, waited_ms },
    1 => RecordUnreadable { rank, cause },
    2 => PlanMismatch { plans },
    3 => PeerPrepareFailed { rank, cause },
    4 => CounterpartMissing { rank, transfers, peer, found },
    5 => PartMismatch { at, rank, part, peer, found },
    6 => SizeMismatch { at, rank, bytes, peer, found },
    7 => OutOfReach { rank, way, peer, other_host },
    8 => NoPeerAccess { rank, peer },
    9 => OpeningFailed { rank, cause },
    10 => MembersLost { missing, noticed },
    11 => VersionMismatch { versions },
});

impl From<Failure> for ExchangeRefusal {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Absent { missing, waited_ms } => Self::ExchangeTimeout { missing, waited_ms },
            Failure::Unreadable { rank, cause } => Self::RecordUnreadable { rank, cause },
            Failure::Versions { versions } => Self::VersionMismatch { versions },
            Failure::Opening { rank, cause } => Self::OpeningFailed { rank, cause },
            Failure::Lost { missing, noticed } => Self::MembersLost { missing, noticed },
        }
    }
}

impl ExchangeRefusal {
    /// The name, as it begins the message.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::ExchangeTimeout { .. } => "ExchangeTimeout",
            Self::RecordUnreadable { .. } => "RecordUnreadable",
            Self::PlanMismatch { .. } => "PlanMismatch",
            Self::PeerPrepareFailed { .. } => "PeerPrepareFailed",
            Self::CounterpartMissing { .. } => "CounterpartMissing",
            Self::PartMismatch { .. } => "PartMismatch",
            Self::SizeMismatch { .. } => "SizeMismatch",
            Self::OutOfReach { .. } => "OutOfReach",
            Self::NoPeerAccess { .. } => "NoPeerAccess",
            Self::OpeningFailed { .. } => "OpeningFailed",
            Self::MembersLost { .. } => "MembersLost",
            Self::VersionMismatch { .. } => "VersionMismatch",
        }
    }
}

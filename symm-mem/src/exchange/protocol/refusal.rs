//! Refusals: why there is no plan, or why no regions are shared. Every member gets the same value.

use bootstrap::agreement::{Failure, Waiting};

use super::record::Part;
use crate::agreement::{Ranks, ValuesByRank, describe_circle, sharing::OpeningFailure, wire::wire_enum};

/// Reason why no member has the plan or the regions. All members get the same value. Memory that was opened for them is
/// closed again, and an earlier plan of the same name is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeRefusal {
    /// Ranks did not arrive in time, or they wait in other agreements, in a circle with members of this one.
    #[error(
        "ExchangeTimeout: {} did not come within {waited_ms} ms{}",
        Ranks(missing),
        describe_circle(circle)
    )]
    ExchangeTimeout {
        /// The ranks, ascending. If a circle was found from another agreement, in the order of the group.
        missing: Vec<u32>,
        /// Time waited, in milliseconds.
        waited_ms: u64,
        /// The waits of a circle of ranks that wait for each other in different agreements. Empty if there was none.
        circle: Vec<Waiting>,
    },
    /// A rank's message cannot be read, or is inconsistent.
    #[error("RecordUnreadable: what rank {rank} posted cannot be used: {cause}")]
    RecordUnreadable {
        /// The rank.
        rank: u32,
        /// Reason why it cannot be used.
        cause: String,
    },
    /// Ranks speak different versions of the protocol, and cannot read each other's messages.
    #[error(
        "VersionMismatch: ranks speak different versions of the protocol ({}); run the same release on every rank",
        versions.describe(u16::to_string)
    )]
    VersionMismatch {
        /// Each rank's version.
        versions: ValuesByRank<u16>,
    },
    /// Ranks exchange plans with different names, or share regions with different names, or some exchange a plan and
    /// others share regions.
    #[error("PlanMismatch: ranks exchange different plans ({})", plans.describe(|name| format!("{name:?}")))]
    PlanMismatch {
        /// The name of each rank's plan; the name of regions follows the word "regions".
        plans: ValuesByRank<String>,
    },
    /// A rank was not ready to open memory: it failed, or a stream of its device captures. Or the rank has another
    /// member list or generation than the others, or two processes take part as this rank.
    #[error("PeerPrepareFailed: rank {rank} cannot take part: {cause}")]
    PeerPrepareFailed {
        /// The rank, the lowest if there are several.
        rank: u32,
        /// The failure.
        cause: String,
    },
    /// Two ranks list different numbers of transfers with each other. Also if a rank lists a transfer with itself or
    /// with a rank outside of the group; then `found` is 0.
    #[error(
        "CounterpartMissing: rank {rank} has {transfers} transfers with rank {peer}, which has {found} with it; both \
         name each of them"
    )]
    CounterpartMissing {
        /// The rank that has more.
        rank: u32,
        /// Its number of transfers with the peer.
        transfers: u64,
        /// Its peer.
        peer: u32,
        /// The peer's number of transfers with it.
        found: u64,
    },
    /// The roles of the two ends of a transfer do not match.
    #[error(
        "PartMismatch: in transfer {at} between ranks {rank} and {peer}, rank {rank} {part}, and rank {peer} {found}"
    )]
    PartMismatch {
        /// Index among the two ranks' transfers with each other.
        at: u64,
        /// The lower rank.
        rank: u32,
        /// Its role.
        part: Part,
        /// The higher rank.
        peer: u32,
        /// The role of the higher rank.
        found: Part,
    },
    /// The two ends of a transfer differ in size.
    #[error(
        "SizeMismatch: transfer {at} between ranks {rank} and {peer} has {bytes} bytes on rank {rank}, and {found} bytes \
         on rank {peer}"
    )]
    SizeMismatch {
        /// Index among the two ranks' transfers with each other.
        at: u64,
        /// The lower rank.
        rank: u32,
        /// Its buffer's length.
        bytes: u64,
        /// The higher rank.
        peer: u32,
        /// The length of the higher rank's buffer.
        found: u64,
    },
    /// A rank's memory cannot be shared with a peer that needs it.
    #[error("OutOfReach: the memory of rank {rank} ({way}) cannot be had by rank {peer}{}", match other_host {
        true => ", which is on another host: allocate with fabric handles",
        false => ": allocate with handles that can be exported",
    })]
    OutOfReach {
        /// The rank that owns the memory.
        rank: u32,
        /// The means by which the memory can be shared.
        way: String,
        /// The rank that needs the memory.
        peer: u32,
        /// The two ranks are on different hosts.
        other_host: bool,
    },
    /// A device cannot access another's memory.
    #[error(
        "NoPeerAccess: the device of rank {rank} cannot reach that of rank {peer} (no NVLink, or PCIe access is off)"
    )]
    NoPeerAccess {
        /// The rank that would copy.
        rank: u32,
        /// The rank that owns the memory.
        peer: u32,
    },
    /// A rank could not open its peers' memory, or share its own.
    #[error("OpeningFailed: rank {rank} could not open its peers' memory, or give its own: {cause}")]
    OpeningFailed {
        /// The rank, the lowest if there are several.
        rank: u32,
        /// The failure.
        cause: String,
    },
    /// Ranks were lost after all had arrived. Or the group ended during the agreement: then `missing` is the rank that
    /// ended it.
    #[error("MembersLost: {} lost while the members opened each other's memory{}", Ranks(missing), match noticed.is_empty() {
        true => String::new(),
        false => format!(" (noticed by {})", Ranks(noticed)),
    })]
    MembersLost {
        /// The ranks that did not report their outcome, ascending. If all did: those that others found gone.
        missing: Vec<u32>,
        /// The ranks that waited for them and timed out or found them gone.
        noticed: Vec<u32>,
    },
}
wire_enum!(named ExchangeRefusal {
    0 => ExchangeTimeout { missing, waited_ms, circle },
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

impl From<OpeningFailure> for ExchangeRefusal {
    fn from(failure: OpeningFailure) -> Self {
        match failure {
            OpeningFailure::Failed { rank, cause } => Self::OpeningFailed { rank, cause },
            OpeningFailure::Lost { missing, noticed } => Self::MembersLost { missing, noticed },
        }
    }
}

impl From<Failure> for ExchangeRefusal {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Absent { missing, waited_ms, circle, .. } => {
                let missing = missing.into_iter().map(|absentee| absentee.rank).collect();
                Self::ExchangeTimeout { missing, waited_ms, circle }
            }
            Failure::Unreadable { rank, cause } => Self::RecordUnreadable { rank, cause },
            Failure::Protocols { protocols } => {
                Self::VersionMismatch { versions: protocols.map(|spoken| spoken.version) }
            }
            Failure::Left { rank, .. } => Self::MembersLost { missing: vec![rank], noticed: Vec::new() },
            failure => {
                let rank = failure.culprits().first().copied().unwrap_or_default();
                Self::PeerPrepareFailed { rank, cause: failure.to_string() }
            }
        }
    }
}

impl ExchangeRefusal {
    /// Returns true if members did not come, or were lost.
    pub(crate) fn is_of_the_missing(&self) -> bool {
        matches!(self, Self::ExchangeTimeout { .. } | Self::MembersLost { .. })
    }
}

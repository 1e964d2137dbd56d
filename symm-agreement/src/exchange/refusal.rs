//! Refusals of an exchange: reasons why there is no plan (a list of transfers), or why no regions (memory that all
//! members can access) are shared.

use bootstrap::agreement::Waiting;

use super::record::Part;
use crate::{Ranks, ValuesByRank, describe_circle, sharing_refusal::sharing_refusal, wire::wire_enum};

/// Reason why a member does not get the plan or the regions. No other member gets them either, and all get the same
/// reason, except in two cases:
/// - Another process runs as this rank.
/// - This rank's list of members differs from that of the others.
///
/// In these cases, it is possible that only this rank is refused, and that the others have the plan or the regions.
///
/// Memory that was opened for the refused plan or regions is closed again. An earlier plan of the same name is
/// unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeRefusal {
    /// One of these has happened:
    /// - Ranks did not arrive in time.
    /// - Ranks wait for each other in different agreements, in a circle, so that members of this agreement cannot
    ///   arrive.
    #[error(
        "ExchangeTimeout: {} did not come within {waited_ms} ms{}",
        Ranks(missing),
        describe_circle(circle)
    )]
    ExchangeTimeout {
        /// The missing ranks, ascending. If a member of another agreement found the circle, the missing ranks are in
        /// the order of the group instead.
        missing: Vec<u32>,
        /// The time after which a member stopped waiting, in milliseconds.
        waited_ms: u64,
        /// If ranks wait for each other in a circle: the wait of each rank in the circle. Otherwise empty.
        circle: Vec<Waiting>,
    },
    /// A rank's message cannot be read, or is inconsistent.
    #[error("RecordUnreadable: what rank {rank} posted cannot be used: {cause}")]
    RecordUnreadable {
        /// The rank.
        rank: u32,
        /// Reason why the message cannot be used.
        cause: String,
    },
    /// Ranks use different versions of the protocol, and cannot read each other's messages.
    #[error(
        "VersionMismatch: ranks speak different versions of the protocol ({}); run the same release on every rank",
        versions.describe(u16::to_string)
    )]
    VersionMismatch {
        /// Each rank's version.
        versions: ValuesByRank<u16>,
    },
    /// The ranks' requests differ in one of these ways:
    /// - They exchange plans with different names.
    /// - They share sets of regions with different names.
    /// - Some exchange a plan, and others share regions.
    #[error("PlanMismatch: ranks exchange different plans ({})", plans.describe(|name| format!("{name:?}")))]
    PlanMismatch {
        /// The name of each rank's plan, or the word "regions" and the name of the rank's set of regions.
        plans: ValuesByRank<String>,
    },
    /// A rank cannot take part, for one of these reasons:
    /// - It could not prepare its memory, or was not ready for another reason.
    /// - Its list of members differs from that of the others.
    /// - Two processes take part as that rank.
    #[error("PeerPrepareFailed: rank {rank} cannot take part: {cause}")]
    PeerPrepareFailed {
        /// The rank, the lowest if there are several.
        rank: u32,
        /// The failure.
        cause: String,
    },
    /// A transfer has only one end, for one of these reasons:
    /// - Two ranks list different numbers of transfers with each other.
    /// - A rank lists a transfer with itself, or with a rank that is not a member. Then `found` is 0.
    #[error(
        "CounterpartMissing: rank {rank} has {transfers} transfers with rank {peer}, which has {found} with it; both \
         name each of them"
    )]
    CounterpartMissing {
        /// The rank that lists more transfers with the other rank.
        rank: u32,
        /// The number of transfers that `rank` lists with `peer`.
        transfers: u64,
        /// The other rank.
        peer: u32,
        /// The number of transfers that `peer` lists with `rank`.
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
        /// The role of the lower rank.
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
        /// The length of the lower rank's buffer in bytes.
        bytes: u64,
        /// The higher rank.
        peer: u32,
        /// The length of the higher rank's buffer in bytes.
        found: u64,
    },
    /// A peer needs memory of a rank, but can open none of the memory's handles.
    #[error("OutOfReach: rank {peer} cannot open the memory of rank {rank} ({way}){}", match other_host {
        true => ", which is on another host: allocate with fabric handles",
        false => ": allocate with handles that can be exported",
    })]
    OutOfReach {
        /// The rank that owns the memory.
        rank: u32,
        /// The kinds of handles that the memory has.
        way: String,
        /// The rank that needs the memory.
        peer: u32,
        /// True if the two ranks are on different hosts.
        other_host: bool,
    },
    /// A rank's device cannot access the memory of a peer's device.
    #[error(
        "NoPeerAccess: the device of rank {rank} cannot reach that of rank {peer} (no NVLink, or PCIe access is off)"
    )]
    NoPeerAccess {
        /// The rank that needs the memory.
        rank: u32,
        /// The rank that owns the memory.
        peer: u32,
    },
    /// A rank could not open its peers' memory, or could not share its own memory.
    #[error("OpeningFailed: rank {rank} could not open its peers' memory, or give its own: {cause}")]
    OpeningFailed {
        /// The rank, the lowest if there are several.
        rank: u32,
        /// The failure.
        cause: String,
    },
    /// One of these has happened:
    /// - Ranks were lost after all had arrived.
    /// - The group ended during the agreement. Then `noticed` is empty, and `missing` contains only the rank that ended
    ///   the group, or the rank that reported the end if the group's error names no rank.
    #[error("MembersLost: {} lost while the members opened each other's memory{}", Ranks(missing), match noticed.is_empty() {
        true => String::new(),
        false => format!(" (noticed by {})", Ranks(noticed)),
    })]
    MembersLost {
        /// The ranks that did not report the outcome of opening the memory, ascending. If all ranks reported, the ranks
        /// that other ranks found gone.
        missing: Vec<u32>,
        /// The ranks that got no answer from a peer or found a peer gone, ascending.
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

sharing_refusal!(ExchangeRefusal, ExchangeTimeout, OpeningFailed);

//! Why a rendezvous ends without peers' buffers, in the words that every member is given.

use super::record::{Subject, Uuid};
use crate::agreement::{Split, meeting::Failure, split::Ranks, wire::wire_enum};

/// Why no member has the others' memory. All members are given the same value; nothing is left mapped, and the group can
/// have its next rendezvous.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousRefusal {
    /// Ranks did not come.
    #[error("RendezvousTimeout: {} did not come within {waited_ms} ms", Ranks(missing))]
    RendezvousTimeout {
        /// The ranks, ascending.
        missing: Vec<u32>,
        /// How long they were waited for.
        waited_ms: u64,
    },
    /// A rank's message cannot be read.
    #[error("RecordUnreadable: what rank {rank} posted cannot be read: {cause}")]
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
    /// Ranks speak of different groups under one name, or were told differently whether they may share a device.
    #[error("IdentityMismatch: ranks differ in {what} ({})", values.describe(|value| format!("{value:#x}")))]
    IdentityMismatch {
        /// What differs.
        what: String,
        /// Its value on each rank.
        values: Split<u64>,
    },
    /// A rank failed before the rendezvous.
    #[error("PeerPrepareFailed: rank {rank} cannot share its memory: {cause}")]
    PeerPrepareFailed {
        /// The rank, the lowest if there are several.
        rank: u32,
        /// What failed.
        cause: String,
    },
    /// Ranks were capturing.
    #[error("RendezvousDuringCapture: {} capturing a graph; have the rendezvous before", Ranks(ranks))]
    RendezvousDuringCapture {
        /// The ranks, ascending.
        ranks: Vec<u32>,
    },
    /// Ranks came with different memory.
    #[error("SubjectMismatch: ranks came with different memory ({})", subjects.describe(Subject::to_string))]
    SubjectMismatch {
        /// What each came with.
        subjects: Split<Subject>,
    },
    /// Ranks came with memory of different sizes.
    #[error("SizeMismatch: the {what} differs in size ({})", sizes.describe(|bytes| format!("{bytes} bytes")))]
    SizeMismatch {
        /// `buffer`, or the `allocation` that it lies in.
        what: String,
        /// Each rank's size in bytes.
        sizes: Split<u64>,
    },
    /// Ranks' buffers lie at different places of their allocations.
    #[error("OffsetMismatch: the buffer lies elsewhere in its allocation ({})", offsets.describe(|at| format!("at byte {at}")))]
    OffsetMismatch {
        /// Each rank's offset in bytes.
        offsets: Split<u64>,
    },
    /// Ranks use one device.
    #[error(
        "SameDevice: {} use the same device {device}; give each its own, or say that they may share",
        Ranks(ranks)
    )]
    SameDevice {
        /// The ranks, ascending.
        ranks: Vec<u32>,
        /// The device.
        device: Uuid,
    },
    /// Ranks' memory cannot be had in one way by all.
    #[error(
        "HandleKindMismatch: ranks' memory can be had in different ways ({}): expected all by file descriptor on one host, \
         or all by fabric handle on one or several",
        kinds.describe(String::clone)
    )]
    HandleKindMismatch {
        /// Each rank's ways.
        kinds: Split<String>,
    },
    /// Ranks of several hosts, whose memory can be had on its own host alone.
    #[error(
        "HostsApart: ranks are on different hosts ({}) and their memory has no fabric handles: a file descriptor ends at \
         its host. Make groups of one host, or allocate with fabric handles, which the driver grants where there is an \
         IMEX channel",
        hosts.describe(|host| format!("host {host:016x}"))
    )]
    HostsApart {
        /// Each rank's host.
        hosts: Split<u64>,
    },
    /// A device cannot reach another's memory.
    #[error(
        "NoPeerAccess: the device of rank {rank} cannot reach that of rank {peer} (no NVLink, or PCIe access is off)"
    )]
    NoPeerAccess {
        /// The rank.
        rank: u32,
        /// Whose memory it cannot reach.
        peer: u32,
    },
    /// A rank could not map the others' memory.
    #[error("SharingFailed: rank {rank} could not map its peers' memory: {cause}")]
    SharingFailed {
        /// The rank, the lowest if there are several.
        rank: u32,
        /// What failed.
        cause: String,
    },
    /// Ranks were lost after all had come.
    #[error("MembersLost: {} lost while the members mapped each other's memory{}", Ranks(missing), match noticed.is_empty() {
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
wire_enum!(RendezvousRefusal {
    0 => RendezvousTimeout { missing, waited_ms },
    1 => RecordUnreadable { rank, cause },
    2 => IdentityMismatch { what, values },
    3 => PeerPrepareFailed { rank, cause },
    4 => RendezvousDuringCapture { ranks },
    5 => SubjectMismatch { subjects },
    6 => SizeMismatch { what, sizes },
    7 => OffsetMismatch { offsets },
    8 => SameDevice { ranks, device },
    9 => HandleKindMismatch { kinds },
    10 => HostsApart { hosts },
    11 => NoPeerAccess { rank, peer },
    12 => SharingFailed { rank, cause },
    13 => MembersLost { missing, noticed },
    14 => VersionMismatch { versions },
});

impl From<Failure> for RendezvousRefusal {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Absent { missing, waited_ms } => Self::RendezvousTimeout { missing, waited_ms },
            Failure::Unreadable { rank, cause } => Self::RecordUnreadable { rank, cause },
            Failure::Versions { versions } => Self::VersionMismatch { versions },
            Failure::Opening { rank, cause } => Self::SharingFailed { rank, cause },
            Failure::Lost { missing, noticed } => Self::MembersLost { missing, noticed },
        }
    }
}

impl RendezvousRefusal {
    /// The name, as it begins the message.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::RendezvousTimeout { .. } => "RendezvousTimeout",
            Self::RecordUnreadable { .. } => "RecordUnreadable",
            Self::IdentityMismatch { .. } => "IdentityMismatch",
            Self::PeerPrepareFailed { .. } => "PeerPrepareFailed",
            Self::RendezvousDuringCapture { .. } => "RendezvousDuringCapture",
            Self::SubjectMismatch { .. } => "SubjectMismatch",
            Self::SizeMismatch { .. } => "SizeMismatch",
            Self::OffsetMismatch { .. } => "OffsetMismatch",
            Self::SameDevice { .. } => "SameDevice",
            Self::HandleKindMismatch { .. } => "HandleKindMismatch",
            Self::HostsApart { .. } => "HostsApart",
            Self::NoPeerAccess { .. } => "NoPeerAccess",
            Self::SharingFailed { .. } => "SharingFailed",
            Self::MembersLost { .. } => "MembersLost",
            Self::VersionMismatch { .. } => "VersionMismatch",
        }
    }
}

//! The reasons for a failed rendezvous, as the members get them.

use bootstrap::agreement::Waiting;
use memory_sharing::Uuid;

use super::record::Subject;
use crate::{
    LogPoint, Ranks, ValuesByRank, are, describe_circle, sharing_refusal::sharing_refusal, wire::wire_enum,
};

/// The reason why a rendezvous failed. The mappings that it had made are removed. Mappings of earlier rendezvous stay.
/// The members can call `rendezvous` again.
///
/// All members get the same value, except in two cases. In both, it is possible that one rank alone gets a refusal,
/// while the others have mapped their memory:
/// - Another process runs as that rank.
/// - That rank has another list of members than the others.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousRefusal {
    /// Ranks did not call within half of the deadline. If `circle` is not empty, the cause is a circular wait: the
    /// missing ranks wait in other agreements (for example another rendezvous), directly or indirectly for ranks that
    /// wait in this rendezvous.
    #[error(
        "RendezvousTimeout: {} did not come within {waited_ms} ms{}",
        Ranks(missing),
        describe_circle(circle)
    )]
    RendezvousTimeout {
        /// The missing ranks. They are in the group's order if a rank that waits in another agreement has found a
        /// circular wait, and ascending otherwise.
        missing: Vec<u32>,
        /// How long the rank that reported the timeout or the circular wait had waited, in milliseconds.
        waited_ms: u64,
        /// The waits of the ranks in the circle. Empty if there is no circle.
        circle: Vec<Waiting>,
    },
    /// A rank's message cannot be decoded.
    #[error("RecordUnreadable: the record of rank {rank} cannot be decoded: {cause}")]
    RecordUnreadable {
        /// The rank.
        rank: u32,
        /// The decoding error.
        cause: String,
    },
    /// Ranks use different versions of the protocol, and cannot decode each other's messages.
    #[error(
        "VersionMismatch: ranks speak different versions of the protocol ({}); run the same release on every rank",
        versions.describe(u16::to_string)
    )]
    VersionMismatch {
        /// Each rank's version.
        versions: ValuesByRank<u16>,
    },
    /// Ranks differ in the group's id or members, in the number of `Rendezvous` objects that they have created for the
    /// group, in the number of earlier rendezvous of the current object, or in the option `shared_devices`.
    #[error("IdentityMismatch: ranks differ in {what} ({})", values.describe(|value| format!("{value:#x}")))]
    IdentityMismatch {
        /// The property that differs.
        what: String,
        /// Its value on each rank.
        values: ValuesByRank<u64>,
    },
    /// A rank failed before the members mapped memory, has another member list than the others, or takes part from two
    /// processes.
    #[error("PeerPrepareFailed: rank {rank} cannot share its memory: {cause}")]
    PeerPrepareFailed {
        /// The rank, the lowest if there are several.
        rank: u32,
        /// A description of the failure.
        cause: String,
    },
    /// On these ranks, the pool of the memory could not grow, because the program had declared a graph capture
    /// (`PoolCapture`).
    #[error("RendezvousDuringCapture: {} capturing a graph; call it before the capture begins", are(ranks))]
    RendezvousDuringCapture {
        /// The ranks, ascending.
        ranks: Vec<u32>,
    },
    /// The ranks' memory differs in one of these ways:
    /// - It is of different kinds ([`Subject`]).
    /// - It is of the same kind, but of different pools, of segments with different numbers, or of different persistent
    ///   ids.
    /// - It is the segment of the same number of the same pool, but the ranks' logs of the pool's requests differed
    ///   when they created that segment.
    #[error("SubjectMismatch: ranks came with {}", describe_subjects(subjects))]
    SubjectMismatch {
        /// The memory of each rank.
        subjects: ValuesByRank<Subject>,
    },
    /// The ranks' buffers or allocations have different sizes.
    #[error("SizeMismatch: the {what} differs in size ({})", sizes.describe(|bytes| format!("{bytes} bytes")))]
    SizeMismatch {
        /// `buffer`, or `allocation` for the whole allocation that contains the buffer.
        what: String,
        /// Each rank's size in bytes.
        sizes: ValuesByRank<u64>,
    },
    /// Ranks' buffers have different offsets in their allocations.
    #[error("OffsetMismatch: the buffer lies elsewhere in its allocation ({})", offsets.describe(|at| format!("at byte {at}")))]
    OffsetMismatch {
        /// Each rank's offset in bytes.
        offsets: ValuesByRank<u64>,
    },
    /// Several ranks use one device, but `shared_devices` is false.
    #[error(
        "SameDevice: {} use the same device, with the UUID {device} (nvidia-smi -L); give each its own, or say that they may share",
        Ranks(ranks)
    )]
    SameDevice {
        /// The ranks, ascending.
        ranks: Vec<u32>,
        /// The device.
        device: Uuid,
    },
    /// One of these is true:
    /// - The ranks' memory is on different kinds of devices.
    /// - The ranks are in several processes, and no handle type that works between all their hosts is available for the
    ///   memory of every rank. Exception: [`HostsApart`](Self::HostsApart).
    #[error(
        "HandleKindMismatch: ranks' memory can be had in different ways ({}): expected memory of one kind of device, all \
         by file descriptor on one host, or all by fabric handle on one or several",
        kinds.describe(String::clone)
    )]
    HandleKindMismatch {
        /// The handle types of each rank. For foreign memory, also the kind of device.
        kinds: ValuesByRank<String>,
    },
    /// The ranks are on several hosts, but the memory of all of them has only file descriptors. A file descriptor
    /// shares memory only within one host.
    #[error(
        "HostsApart: ranks are on different hosts ({}) and their memory has no handles for other hosts: a file \
         descriptor ends at its host. Make groups of one host, or allocate CUDA memory with fabric handles, which the \
         driver grants where there is an IMEX channel",
        hosts.describe(|host| format!("host {host:016x}"))
    )]
    HostsApart {
        /// Each rank's host.
        hosts: ValuesByRank<u64>,
    },
    /// A rank's device cannot access the memory of another device.
    #[error(
        "NoPeerAccess: the device of rank {rank} cannot reach that of rank {peer} (no NVLink, or PCIe access is off)"
    )]
    NoPeerAccess {
        /// The rank without access.
        rank: u32,
        /// The rank that owns the memory.
        peer: u32,
    },
    /// A rank could not map the others' memory, or share its own.
    #[error("SharingFailed: rank {rank} could not map its peers' memory: {cause}")]
    SharingFailed {
        /// The rank, the lowest if there are several.
        rank: u32,
        /// A description of the failure.
        cause: String,
    },
    /// One of these happened:
    /// - Ranks stopped taking part after all ranks had posted the descriptions of their memory, for example because
    ///   their processes ended.
    /// - The group ended during the agreement.
    #[error("MembersLost: {} lost while the members mapped each other's memory{}", Ranks(missing), match noticed.is_empty() {
        true => String::new(),
        false => format!(" (noticed by {})", Ranks(noticed)),
    })]
    MembersLost {
        /// The first of these that applies:
        /// - If the group ended: the rank that ended it. If the group's error names no rank: the rank that reported the
        ///   end.
        /// - If ranks did not report whether they had mapped the memory: these ranks, ascending.
        /// - Otherwise the ranks that others found gone, ascending.
        missing: Vec<u32>,
        /// The ranks whose wait for another rank timed out, or that found another rank gone, ascending. Empty if the
        /// group ended.
        noticed: Vec<u32>,
    },
}
wire_enum!(named RendezvousRefusal {
    0 => RendezvousTimeout { missing, waited_ms, circle },
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

sharing_refusal!(RendezvousRefusal, RendezvousTimeout, SharingFailed);

/// Describes the memory of each rank. If all ranks have the same pool, or the same segment, the text names the pool or
/// segment once.
fn describe_subjects(subjects: &ValuesByRank<Subject>) -> String {
    let in_pool = |subject: &Subject| match *subject {
        Subject::Pool { pool, ordinal, log } => Some((pool, ordinal, log)),
        _ => None,
    };
    // Empty unless all ranks have memory of a pool.
    let segments: Option<Vec<_>> = subjects.entries.iter().map(|entry| in_pool(&entry.value)).collect();
    let segments = segments.unwrap_or_default();
    let by_rank = |describe: &dyn Fn(u32, LogPoint) -> String| {
        subjects.describe(|subject| {
            in_pool(subject).map_or_else(String::new, |(_, ordinal, log)| describe(ordinal, log))
        })
    };
    match segments.first() {
        Some(&(pool, ordinal, _))
            if segments.iter().all(|segment| (segment.0, segment.1) == (pool, ordinal)) =>
        {
            let logs = by_rank(&|_, log| format!("after {log}"));
            format!("segment {ordinal} of {pool}, made by different allocations ({logs})")
        }
        Some(&(pool, ..)) if segments.iter().all(|segment| segment.0 == pool) => {
            let segments = by_rank(&|ordinal, log| format!("segment {ordinal}, made after {log}"));
            format!("different segments of {pool} ({segments})")
        }
        _ => format!("different memory ({})", subjects.describe(Subject::to_string)),
    }
}

//! The reasons why a commit, a retirement or an agreement on the length of an allocation is refused. In this file, an
//! operation is an entry of a pool's allocation log ([`Operation`](super::Operation)).

use bootstrap::agreement::{Absentee, Waiting};
use process_group::group::GroupId;

use super::{
    Ranks, ValuesByRank,
    capabilities::Capability,
    history::Divergence,
    ranks::RankList,
    record::{LogPoint, Policy},
    waits::{describe_circle, describe_missing},
    wire::{wire_enum, wire_struct},
};

/// The size and the flags of a [segment](super::Segment).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The size in bytes.
    pub bytes: u64,
    /// The flags without [`Segment::FOLLOWS`](super::Segment::FOLLOWS). 0 in this release.
    pub flags: u32,
}
wire_struct!(Shape { bytes, flags });

/// The reason why a commit, a retirement or an agreement on a length was refused. Nothing was registered or retired on
/// this rank, and the windows of groups are unchanged. A group can commit again, unless it has ended
/// ([`MemberLost`](Self::MemberLost)) or must be created again ([`EpochMismatch`](Self::EpochMismatch)).
///
/// All members get the same value, with one exception: if this rank's list of members differs from the list of the
/// others, it is possible that the others have agreed without this rank.
///
/// In `CommitReport::pending`, the value does not mean that the commit was refused. It describes the first difference
/// between the ranks: the commit has added only the segments before it to the group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Some ranks have a new segment that others do not have. New segments are those that the group has not committed.
    #[error(
        "SegmentCountMismatch: ranks differ in how many new segments they have ({}); at ordinal {ordinal} {}{}",
        counts.describe(|count| count.to_string()),
        shapes.describe(|shape| match shape {
            Some(shape) => describe_shape(shape),
            None => "no segment".to_owned(),
        }),
        describe_divergence(divergence.as_deref())
    )]
    SegmentCountMismatch {
        /// The first [ordinal](super::Segment::ordinal) whose segment is missing on some ranks.
        ordinal: u32,
        /// The number of new segments, from the first, that are equal on all ranks.
        common: u32,
        /// The number of new segments of each rank.
        counts: ValuesByRank<u32>,
        /// The size and flags of each rank's segment with this `ordinal`, or `None` if the rank has no such new
        /// segment.
        shapes: ValuesByRank<Option<Shape>>,
        /// The result of the search for the first operation that differs between the allocation logs. `None` if no
        /// search was made.
        divergence: Option<Box<Divergence>>,
    },
    /// A segment has different sizes or flags on the ranks.
    #[error(
        "SegmentShapeMismatch: segment {ordinal} differs between ranks ({}){}",
        shapes.describe(describe_shape),
        describe_divergence(divergence.as_deref())
    )]
    SegmentShapeMismatch {
        /// The ordinal of the segment.
        ordinal: u32,
        /// The number of new segments before this segment. All ranks have them in common.
        common: u32,
        /// The segment's shape on each rank.
        shapes: ValuesByRank<Shape>,
        /// The result of the search for the first operation that differs between the allocation logs. `None` if no
        /// search was made.
        divergence: Option<Box<Divergence>>,
    },
    /// The segments have equal sizes and flags, but the ranks' allocations differ. Different ranks may then have
    /// different blocks at the same offset. A retirement compares only the allocation logs, so in a retirement the
    /// segments may differ too.
    #[error(
        "AllocationDiverged: {} equal on all ranks in size, but the allocations differ{}{}",
        match ordinal { Some(ordinal) => format!("segment {ordinal} is"), None => "the segments are".to_owned() },
        describe_logs(logs, divergence.as_deref()),
        describe_divergence(divergence.as_deref())
    )]
    AllocationDiverged {
        /// The first segment at whose creation the allocation logs differ, or `None` if the logs differ only after the
        /// creation of the last segment. Always `None` in a retirement.
        ordinal: Option<u32>,
        /// The number of new segments, from the first, that are equal on all ranks. 0 in a retirement.
        common: u32,
        /// The state of each rank's allocation log just after the operation that created segment `ordinal`, or at the
        /// end of the log if `ordinal` is `None`.
        logs: ValuesByRank<LogPoint>,
        /// The result of the search for the first operation that differs between the allocation logs. `None` if no
        /// search was made.
        divergence: Option<Box<Divergence>>,
    },
    /// Ranks have communicators of different [epochs](GroupId::epoch) of the group.
    #[error("EpochMismatch: ranks are in different epochs of the group ({}); make the group anew on all of them", epochs.describe(u64::to_string))]
    EpochMismatch {
        /// The epoch of each rank whose epoch is known.
        epochs: ValuesByRank<u64>,
    },
    /// Ranks have different lists of participants.
    #[error("MembersMismatch: ranks differ in the {what} ({}); give all of them the same list", lists.describe(RankList::to_string))]
    MembersMismatch {
        /// The list that differs.
        what: MemberList,
        /// Each rank's list. If a rank found the difference before it posted its own message to the others, only two
        /// ranks have entries: that rank, and the rank whose list was stored first.
        lists: ValuesByRank<RankList>,
    },
    /// Ranks request different [policies](Policy).
    #[error("PolicyMismatch: ranks ask for different policies ({})", policies.describe(|policy| format!("{policy:?}")))]
    PolicyMismatch {
        /// Each rank's policy.
        policies: ValuesByRank<Policy>,
    },
    /// Ranks have different versions of the communication library, or only some ranks support windows.
    #[error("CapabilityMismatch: {what} differs between ranks ({}); give all ranks the same library, environment and CommitOptions::windows", values.describe(String::clone))]
    CapabilityMismatch {
        /// The capability that differs.
        what: Capability,
        /// Each rank's value.
        values: ValuesByRank<String>,
    },
    /// A rank's record cannot be decoded. The record is the first message of a rank to the other members.
    #[error("RecordUnreadable: the record of rank {rank} cannot be decoded: {cause}")]
    RecordUnreadable {
        /// The rank.
        rank: u32,
        /// The decoding error.
        cause: String,
    },
    /// Ranks use different versions of the protocol, and cannot decode each other's messages.
    #[error("VersionMismatch: ranks speak different versions of the protocol ({}); run the same release on every rank", versions.describe(u16::to_string))]
    VersionMismatch {
        /// Each rank's version.
        versions: ValuesByRank<u16>,
    },
    /// A rank could not take part in the commit, the retirement or the agreement on a length.
    #[error("PeerPrepareFailed: rank {rank} cannot take part{}: {cause}", match ordinal {
        Some(ordinal) => format!(" with segment {ordinal}"),
        None => String::new(),
    })]
    PeerPrepareFailed {
        /// The rank, the lowest if there are several.
        rank: u32,
        /// The affected segment, if it is known.
        ordinal: Option<u32>,
        /// A description of the failure.
        cause: String,
    },
    /// A rank was capturing a graph, or had a declared capture of the pool in progress (`PoolCapture`).
    #[error(
        "CommitDuringCapture: {} capturing a graph; commit or retire before the capture begins",
        are(ranks)
    )]
    CommitDuringCapture {
        /// The ranks, ascending.
        ranks: Vec<u32>,
    },
    /// On a rank, the thread that called the commit or the retirement had an NCCL group open (`ncclGroupStart`).
    #[error(
        "CommitInsideGroup: {} inside an open NCCL group; end it before a commit or a retirement",
        are(ranks)
    )]
    CommitInsideGroup {
        /// The ranks, ascending.
        ranks: Vec<u32>,
    },
    /// Ranks have enqueued different numbers of collectives. This could deadlock: a running collective may wait for a
    /// peer that enqueues its part only after the commit or the retirement, which in turn waits until the collective
    /// has ended.
    #[error(
        "CollectivesOutstanding: ranks have enqueued different numbers of collectives on group {group} ({}); let all of them enqueue the same before the commit or retirement",
        collectives.describe(u64::to_string)
    )]
    CollectivesOutstanding {
        /// The group of these collectives.
        group: GroupId,
        /// The number of collectives enqueued by each rank.
        collectives: ValuesByRank<u64>,
    },
    /// A rank has enqueued more or fewer sends to a peer than the peer has enqueued receives from that rank. This could
    /// deadlock: a running send or receive may wait for its counterpart, which the peer enqueues only after the commit
    /// or the retirement, which in turn waits until the running send or receive has ended.
    #[error(
        "MessagesOutstanding: on group {group}, rank {from} has enqueued {sent} messages to rank {to}, which has enqueued the receipt of {received}; let both enqueue the same before the commit or retirement"
    )]
    MessagesOutstanding {
        /// The group of these messages.
        group: GroupId,
        /// The rank that sends.
        from: u32,
        /// The rank that receives.
        to: u32,
        /// The number of sends enqueued by `from`.
        sent: u64,
        /// The number of receives enqueued by `to`.
        received: u64,
    },
    /// The communicator has too little symmetric address space left for the new windows. NCCL reserves this range of
    /// addresses for windows.
    #[error(
        "AddressSpaceExhausted: the new windows take {needed} bytes of symmetric address space, rank {rank} has {left} left; use fewer, or a new communicator"
    )]
    AddressSpaceExhausted {
        /// The rank whose device has the most memory, or the lowest such rank if there are several. This device
        /// determines the size of the address space on all members.
        rank: u32,
        /// The bytes that the new windows need.
        needed: u64,
        /// The bytes that are left on `rank`.
        left: u64,
    },
    /// Not all members entered the agreement in time.
    #[error("SyncTimeout: {} did not arrive within {waited_ms} ms ({}){}", Ranks(&missing.iter().map(|absentee| absentee.rank).collect::<Vec<_>>()), describe_missing(missing), describe_circle(circle))]
    SyncTimeout {
        /// The ranks that did not enter it, each with the other agreements in which it waited.
        missing: Vec<Absentee>,
        /// The waiting time of the member that gave up, in milliseconds.
        waited_ms: u64,
        /// If ranks wait for each other in a circle of different agreements: each rank in the circle, with the
        /// agreement in which it waits. Otherwise empty. Every rank in the circle gets the same list.
        circle: Vec<Waiting>,
    },
    /// A rank ended the group, or was found to be lost, while other members waited for it.
    #[error("MemberLost: rank {rank} takes no part any more: {cause}")]
    MemberLost {
        /// The rank.
        rank: u32,
        /// The reason.
        cause: String,
    },
    /// Ranks are in different generations of one domain. Each time that a rank creates the domain, a new generation of
    /// the domain begins on this rank. There are two possible causes:
    /// - Some ranks have created the domain more often than others.
    /// - Ranks have pools of two generations, commit them in different orders, and so wait for each other. `commit_all`
    ///   commits pools in the same order on all ranks.
    #[error(
        "GenerationMismatch: ranks are at different generations of domain {domain:#x} ({}); make the domain equally often on all of them, and commit its pools in one order (commit_all){}",
        generations.describe(u64::to_string),
        describe_circle(circle)
    )]
    GenerationMismatch {
        /// The domain's number.
        domain: u64,
        /// The generations of the domain, by rank, with an entry for these ranks only:
        /// - If `circle` is empty: each present member, and each missing rank that is in an earlier generation.
        /// - Otherwise: each rank in `circle` that waits in an agreement of this domain. Its entry is the generation of
        ///   this agreement.
        generations: ValuesByRank<u64>,
        /// The waiting time of the member that gave up, in milliseconds.
        waited_ms: u64,
        /// If ranks wait for each other in a circle of different agreements: each rank in the circle, with the
        /// agreement in which it waits. Otherwise empty. Every rank in the circle gets the same list.
        circle: Vec<Waiting>,
    },
    /// In a retirement: ranks asked to retire different segments.
    #[error("RetirementMismatch: ranks want different segments retired ({})", ordinals.describe(|ordinals| format!("{ordinals:?}")))]
    RetirementMismatch {
        /// The ordinals of the segments that each rank asked to retire.
        ordinals: ValuesByRank<Vec<u32>>,
    },
    /// Captures in progress or captured graphs use a segment that is to be retired.
    #[error("SegmentPinned: captured graphs use segment {ordinal} ({}); drop them and their pins first", graphs.describe(|graphs| format!("{graphs} graphs")))]
    SegmentPinned {
        /// The segment.
        ordinal: u32,
        /// The number of captures in progress and captured graphs that use the segment, on each rank.
        graphs: ValuesByRank<u64>,
    },
    /// A segment that is to be retired still has blocks.
    #[error("SegmentInUse: segment {ordinal} still has blocks ({}); drop them first, on all ranks", blocks.describe(|blocks| format!("{blocks} blocks")))]
    SegmentInUse {
        /// The segment.
        ordinal: u32,
        /// The number of blocks in the segment, on each rank.
        blocks: ValuesByRank<u64>,
    },
    /// On a rank, a segment that is to be retired is committed for groups that the rank did not pass to the retirement.
    #[error("SegmentCommitted: on rank {rank}, segment {ordinal} is committed for {}, which the retirement was not given", groups.iter().map(|group| format!("group {group}")).collect::<Vec<_>>().join(", "))]
    SegmentCommitted {
        /// The rank, the lowest if there are several.
        rank: u32,
        /// The segment.
        ordinal: u32,
        /// The groups for which the segment is committed, and which the rank did not pass.
        groups: Vec<GroupId>,
    },
    /// The members of a group have different [logs](super::GroupLog::committed) of committed and retired segments. A
    /// retirement is refused for this reason. In a commit, the same difference poisons the group
    /// ([`Poison::CommittedLogDiverged`](super::Poison::CommittedLogDiverged)).
    #[error("CommittedLogDiverged: members of group {group} hold different segments ({})", logs.describe(LogPoint::to_string))]
    CommittedLogDiverged {
        /// The group.
        group: GroupId,
        /// The state of each rank's log.
        logs: ValuesByRank<LogPoint>,
    },
    /// In a retirement: a rank's device did not become idle in time, the wait for it failed, or the rank did not report
    /// the end of its wait.
    #[error("QuiesceFailed: the work on the device of rank {rank} did not end: {cause}")]
    QuiesceFailed {
        /// The lowest rank whose wait failed. If no wait failed: the lowest rank that did not report. If all ranks
        /// reported: the lowest rank whose device is busy.
        rank: u32,
        /// The reason.
        cause: String,
    },
}
wire_enum!(named Refusal {
    0 => SegmentCountMismatch { ordinal, common, counts, shapes, divergence },
    1 => SegmentShapeMismatch { ordinal, common, shapes, divergence },
    2 => AllocationDiverged { ordinal, common, logs, divergence },
    3 => EpochMismatch { epochs },
    4 => MemberLost { rank, cause },
    5 => PolicyMismatch { policies },
    6 => CapabilityMismatch { what, values },
    7 => RecordUnreadable { rank, cause },
    8 => PeerPrepareFailed { rank, ordinal, cause },
    9 => CommitDuringCapture { ranks },
    10 => CommitInsideGroup { ranks },
    11 => CollectivesOutstanding { group, collectives },
    12 => AddressSpaceExhausted { rank, needed, left },
    13 => SyncTimeout { missing, waited_ms, circle },
    14 => RetirementMismatch { ordinals },
    15 => SegmentPinned { ordinal, graphs },
    16 => SegmentInUse { ordinal, blocks },
    17 => SegmentCommitted { rank, ordinal, groups },
    18 => CommittedLogDiverged { group, logs },
    19 => QuiesceFailed { rank, cause },
    20 => MessagesOutstanding { group, from, to, sent, received },
    21 => GenerationMismatch { domain, generations, waited_ms, circle },
    22 => MembersMismatch { what, lists },
    23 => VersionMismatch { versions },
});

impl Refusal {
    /// Sets the field `divergence`. Has no effect if this kind of refusal has no such field.
    pub(crate) fn with_divergence(mut self, found: Divergence) -> Self {
        match &mut self {
            Refusal::SegmentCountMismatch { divergence, .. }
            | Refusal::SegmentShapeMismatch { divergence, .. }
            | Refusal::AllocationDiverged { divergence, .. } => *divergence = Some(Box::new(found)),
            _ => {}
        }
        self
    }

    /// Returns the result of the search for the first operation that differs between the allocation logs. The result is
    /// [`Divergence::NotFound`] if a rank did not answer. Returns `None` if no search was made, or if this kind of
    /// refusal has no field `divergence`.
    pub fn divergence(&self) -> Option<&Divergence> {
        match self {
            Refusal::SegmentCountMismatch { divergence, .. }
            | Refusal::SegmentShapeMismatch { divergence, .. }
            | Refusal::AllocationDiverged { divergence, .. } => divergence.as_deref(),
            _ => None,
        }
    }
}

/// A list of ranks that must be equal on all members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberList {
    /// The members of the group, in the order of its communicator.
    Group,
    /// The ranks of the pool's domain.
    Domain,
}
wire_enum!(MemberList { 0 => Group {}, 1 => Domain {} });

impl std::fmt::Display for MemberList {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            MemberList::Group => "members of the group",
            MemberList::Domain => "ranks of the pool's domain",
        })
    }
}

fn describe_shape(shape: &Shape) -> String {
    match shape.flags {
        0 => format!("{} bytes", shape.bytes),
        flags => format!("{} bytes with flags {flags:#x}", shape.bytes),
    }
}

fn describe_divergence(divergence: Option<&Divergence>) -> String {
    match divergence {
        Some(divergence) => format!("; {divergence}"),
        None => String::new(),
    }
}

/// Returns the part of an error text that describes the logs. It is empty if the first operation that differs is known,
/// because the error text then describes that operation instead.
fn describe_logs(logs: &ValuesByRank<LogPoint>, divergence: Option<&Divergence>) -> String {
    match divergence {
        Some(Divergence::At { .. }) => String::new(),
        _ => format!(" ({})", logs.describe(LogPoint::to_string)),
    }
}

/// Returns the ranks as the subject of a sentence, with its verb: "rank 1 is", "ranks 1 and 2 are".
pub(crate) fn are(ranks: &[u32]) -> String {
    format!("{} {}", Ranks(ranks), if ranks.len() == 1 { "is" } else { "are" })
}

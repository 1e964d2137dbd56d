//! Why nothing is done, in the words that every member is given.

use process_group::group::GroupId;

use super::{
    history::Divergence,
    place::Place,
    ranks::RankList,
    record::{LogPoint, Policy},
    split::{Ranks, Side, Split},
    wire::{wire_enum, wire_struct},
};

/// What a segment is, apart from its history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Its size in bytes.
    pub bytes: u64,
    /// Its kind of memory and window.
    pub flags: u32,
}
wire_struct!(Shape { bytes, flags });

/// A rank that did not arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absentee {
    /// The rank.
    pub rank: u32,
    /// The meeting that it entered last, of whatever pool of the store.
    pub last_seen: Option<Place>,
}
wire_struct!(Absentee { rank, last_seen });

/// A rank that waits for others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The rank.
    pub rank: u32,
    /// Where it waits.
    pub place: Place,
}
wire_struct!(Waiting { rank, place });

/// How much of a segment a rank cannot let go of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Captured graphs that use it.
    pub graphs: u64,
    /// Blocks in it.
    pub blocks: u64,
}
wire_struct!(Held { graphs, blocks });

/// Why nothing was registered. All members are given the same value; the group is as it was before the commit
/// and can commit again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Some ranks have a segment that others do not have.
    #[error(
        "SegmentCountMismatch: ranks differ in how many new segments they have ({}); at ordinal {ordinal} {}{}",
        counts.describe(|count| count.to_string()),
        shapes.describe(|shape| match shape {
            Some(shape) => describe_shape(shape),
            None => "no segment".to_owned(),
        }),
        describe_divergence(divergence)
    )]
    SegmentCountMismatch {
        /// The first ordinal that is not on all ranks.
        ordinal: u32,
        /// How many new segments all ranks have in common.
        common: u32,
        /// How many new segments each rank has.
        counts: Split<u32>,
        /// What each rank has at `ordinal`.
        shapes: Split<Option<Shape>>,
        /// The first allocation that differs.
        divergence: Option<Divergence>,
    },
    /// A segment has another size or kind on some ranks.
    #[error(
        "SegmentShapeMismatch: segment {ordinal} differs between ranks ({}){}",
        shapes.describe(describe_shape),
        describe_divergence(divergence)
    )]
    SegmentShapeMismatch {
        /// The segment.
        ordinal: u32,
        /// How many new segments before it all ranks have in common.
        common: u32,
        /// What it is on each rank.
        shapes: Split<Shape>,
        /// The first allocation that differs.
        divergence: Option<Divergence>,
    },
    /// The segments look the same, but ranks came to them by different allocations, so what lies at one offset
    /// on one rank lies elsewhere on another.
    #[error(
        "AllocationDiverged: {} equal on all ranks in size, but the allocations differ ({}){}",
        match ordinal { Some(ordinal) => format!("segment {ordinal} is"), None => "the segments are".to_owned() },
        logs.describe(LogPoint::to_string),
        describe_divergence(divergence)
    )]
    AllocationDiverged {
        /// The segment before which the histories parted, or `None`: after the last.
        ordinal: Option<u32>,
        /// How many new segments all ranks have in common.
        common: u32,
        /// The allocation log at that point.
        logs: Split<LogPoint>,
        /// The first allocation that differs.
        divergence: Option<Divergence>,
    },
    /// Ranks hold communicators of different lives of the group.
    #[error("EpochMismatch: ranks are in different epochs of the group ({}); make the group anew on all of them", epochs.describe(u64::to_string))]
    EpochMismatch {
        /// Each rank's epoch.
        epochs: Split<u64>,
    },
    /// Ranks speak of different things under one name.
    #[error("IdentityMismatch: ranks differ in the {what} that they commit ({})", values.describe(|value| format!("{value:#x}")))]
    IdentityMismatch {
        /// What differs.
        what: Identity,
        /// Its value on each rank.
        values: Split<u64>,
    },
    /// Ranks have different lists of who takes part.
    #[error("MembersMismatch: ranks differ in the {what} ({}); give all of them the same list", lists.describe(RankList::to_string))]
    MembersMismatch {
        /// What differs.
        what: Membership,
        /// Each rank's list.
        lists: Split<RankList>,
    },
    /// Ranks ask for different policies.
    #[error("PolicyMismatch: ranks ask for different policies ({})", policies.describe(|policy| format!("{policy:?}")))]
    PolicyMismatch {
        /// Each rank's policy.
        policies: Split<Policy>,
    },
    /// A rank lacks what others have.
    #[error("CapabilityMismatch: {what} differs between ranks ({}); give all ranks the same library and environment", values.describe(String::clone))]
    CapabilityMismatch {
        /// What differs.
        what: Capability,
        /// Each rank's value.
        values: Split<String>,
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
    #[error("VersionMismatch: ranks speak different versions of the protocol ({}); run the same release on every rank", versions.describe(u16::to_string))]
    VersionMismatch {
        /// Each rank's version.
        versions: Split<u16>,
    },
    /// A rank failed before the commit.
    #[error("PeerPrepareFailed: rank {rank} cannot commit{}: {cause}", match ordinal {
        Some(ordinal) => format!(" segment {ordinal}"),
        None => String::new(),
    })]
    PeerPrepareFailed {
        /// The rank, the lowest if there are several.
        rank: u32,
        /// The segment that it is about.
        ordinal: Option<u32>,
        /// What failed.
        cause: String,
    },
    /// A rank was capturing a graph.
    #[error("CommitDuringCapture: {} capturing a graph; commit before the capture begins", are(ranks))]
    CommitDuringCapture {
        /// The ranks, ascending.
        ranks: Vec<u32>,
    },
    /// A rank had opened an NCCL group.
    #[error("CommitInsideGroup: {} inside an open NCCL group; end it before the commit", are(ranks))]
    CommitInsideGroup {
        /// The ranks, ascending.
        ranks: Vec<u32>,
    },
    /// Ranks have enqueued different numbers of collectives: one that runs now may wait for a peer that will
    /// only enqueue its part after the commit, while the registration waits for the one that runs.
    #[error(
        "CollectivesOutstanding: ranks have enqueued different numbers of collectives on group {group} ({}); let all of them enqueue the same before the commit",
        collectives.describe(u64::to_string)
    )]
    CollectivesOutstanding {
        /// The group whose collectives they are.
        group: GroupId,
        /// How many collectives each rank has enqueued.
        collectives: Split<u64>,
    },
    /// The same of messages: one end of one may run now, and wait for the other, which is enqueued only after the commit.
    #[error(
        "MessagesOutstanding: on group {group}, rank {from} has enqueued {sent} messages to rank {to}, which has enqueued the receipt of {received}; let both enqueue the same before the commit"
    )]
    MessagesOutstanding {
        /// The group whose messages they are.
        group: GroupId,
        /// The rank that sends.
        from: u32,
        /// The rank that receives.
        to: u32,
        /// How many the one has enqueued.
        sent: u64,
        /// How many the other has enqueued.
        received: u64,
    },
    /// The communicator's symmetric address space is full.
    #[error(
        "AddressSpaceExhausted: the new windows take {needed} bytes of symmetric address space, rank {rank} has {left} left; use fewer, or a new communicator"
    )]
    AddressSpaceExhausted {
        /// The rank with the least left.
        rank: u32,
        /// What the windows take, in bytes.
        needed: u64,
        /// What is left, in bytes.
        left: u64,
    },
    /// Not all members arrived in time.
    #[error("SyncTimeout: {} did not arrive within {waited_ms} ms ({}){}", Ranks(&missing.iter().map(|absentee| absentee.rank).collect::<Vec<_>>()), describe_missing(missing), describe_circle(circle))]
    SyncTimeout {
        /// Who did not arrive, ascending.
        missing: Vec<Absentee>,
        /// How long the member that gave up had waited, in milliseconds.
        waited_ms: u64,
        /// If ranks waited for each other in a circle: all of it, by rank; every rank of it is told the same.
        circle: Vec<Waiting>,
    },
    /// Ranks are at different generations of one domain: one has made it more often than others, or they wait for each other
    /// at pools of two generations.
    #[error(
        "GenerationMismatch: ranks are at different generations of domain {domain:#x} ({}); make the domain equally often on all of them{}",
        generations.describe(u64::to_string),
        describe_circle(circle)
    )]
    GenerationMismatch {
        /// The domain's number.
        domain: u64,
        /// The generation that each rank is at: how often it has made the domain, up to where it waits.
        generations: Split<u64>,
        /// How long the member that gave up had waited, in milliseconds.
        waited_ms: u64,
        /// If ranks waited for each other in a circle: all of it, by rank; every rank of it is told the same.
        circle: Vec<Waiting>,
    },
    /// Ranks want different segments retired.
    #[error("RetirementMismatch: ranks want different segments retired ({})", ordinals.describe(|ordinals| format!("{ordinals:?}")))]
    RetirementMismatch {
        /// The ordinals that each rank named.
        ordinals: Split<Vec<u32>>,
    },
    /// Captured graphs use a segment that is to be retired.
    #[error("SegmentPinned: captured graphs use segment {ordinal} ({}); drop them and their pins first", graphs.describe(|graphs| format!("{graphs} graphs")))]
    SegmentPinned {
        /// The segment.
        ordinal: u32,
        /// How many graphs use it on each rank.
        graphs: Split<u64>,
    },
    /// A segment that is to be retired still has blocks.
    #[error("SegmentInUse: segment {ordinal} still has blocks ({}); drop them first, on all ranks", blocks.describe(|blocks| format!("{blocks} blocks")))]
    SegmentInUse {
        /// The segment.
        ordinal: u32,
        /// How many blocks each rank has there.
        blocks: Split<u64>,
    },
    /// A rank's groups have a segment that is to be retired, but were not all given.
    #[error("SegmentCommitted: on rank {rank}, segment {ordinal} is committed for {}, which the retirement was not given", groups.iter().map(|group| format!("group {group}")).collect::<Vec<_>>().join(", "))]
    SegmentCommitted {
        /// The rank, the lowest if there are several.
        rank: u32,
        /// The segment.
        ordinal: u32,
        /// The groups that are missing.
        groups: Vec<GroupId>,
    },
    /// What a group has committed is not the same on its members.
    #[error("CommittedLogDiverged: members of group {group} hold different segments ({})", logs.describe(LogPoint::to_string))]
    CommittedLogDiverged {
        /// The group.
        group: GroupId,
        /// Each rank's log.
        logs: Split<LogPoint>,
    },
    /// A rank's device did not come to rest.
    #[error("QuiesceFailed: the work on the device of rank {rank} did not end: {cause}")]
    QuiesceFailed {
        /// The rank, the lowest if there are several.
        rank: u32,
        /// Why not.
        cause: String,
    },
}
wire_enum!(Refusal {
    0 => SegmentCountMismatch { ordinal, common, counts, shapes, divergence },
    1 => SegmentShapeMismatch { ordinal, common, shapes, divergence },
    2 => AllocationDiverged { ordinal, common, logs, divergence },
    3 => EpochMismatch { epochs },
    4 => IdentityMismatch { what, values },
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
    /// Adds where the histories part, for the refusals that are about that.
    pub(super) fn with_divergence(mut self, found: Divergence) -> Self {
        match &mut self {
            Refusal::SegmentCountMismatch { divergence, .. }
            | Refusal::SegmentShapeMismatch { divergence, .. }
            | Refusal::AllocationDiverged { divergence, .. } => *divergence = Some(found),
            _ => {}
        }
        self
    }

    /// Where the histories part, if this is about that and it was found.
    pub fn divergence(&self) -> Option<&Divergence> {
        match self {
            Refusal::SegmentCountMismatch { divergence, .. }
            | Refusal::SegmentShapeMismatch { divergence, .. }
            | Refusal::AllocationDiverged { divergence, .. } => divergence.as_ref(),
            _ => None,
        }
    }

    /// The variant's name.
    pub fn name(&self) -> &'static str {
        match self {
            Refusal::SegmentCountMismatch { .. } => "SegmentCountMismatch",
            Refusal::SegmentShapeMismatch { .. } => "SegmentShapeMismatch",
            Refusal::AllocationDiverged { .. } => "AllocationDiverged",
            Refusal::EpochMismatch { .. } => "EpochMismatch",
            Refusal::IdentityMismatch { .. } => "IdentityMismatch",
            Refusal::MembersMismatch { .. } => "MembersMismatch",
            Refusal::PolicyMismatch { .. } => "PolicyMismatch",
            Refusal::CapabilityMismatch { .. } => "CapabilityMismatch",
            Refusal::RecordUnreadable { .. } => "RecordUnreadable",
            Refusal::VersionMismatch { .. } => "VersionMismatch",
            Refusal::PeerPrepareFailed { .. } => "PeerPrepareFailed",
            Refusal::CommitDuringCapture { .. } => "CommitDuringCapture",
            Refusal::CommitInsideGroup { .. } => "CommitInsideGroup",
            Refusal::CollectivesOutstanding { .. } => "CollectivesOutstanding",
            Refusal::MessagesOutstanding { .. } => "MessagesOutstanding",
            Refusal::AddressSpaceExhausted { .. } => "AddressSpaceExhausted",
            Refusal::SyncTimeout { .. } => "SyncTimeout",
            Refusal::GenerationMismatch { .. } => "GenerationMismatch",
            Refusal::RetirementMismatch { .. } => "RetirementMismatch",
            Refusal::SegmentPinned { .. } => "SegmentPinned",
            Refusal::SegmentInUse { .. } => "SegmentInUse",
            Refusal::SegmentCommitted { .. } => "SegmentCommitted",
            Refusal::CommittedLogDiverged { .. } => "CommittedLogDiverged",
            Refusal::QuiesceFailed { .. } => "QuiesceFailed",
        }
    }
}

/// What names a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// The domain's number.
    Domain,
    /// The domain's life.
    Generation,
    /// The pool's number.
    Pool,
    /// The group's number.
    Group,
    /// Which commit it is.
    Round,
}
wire_enum!(Identity { 0 => Domain {}, 1 => Generation {}, 2 => Pool {}, 3 => Group {}, 4 => Round {} });

impl std::fmt::Display for Identity {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Identity::Domain => "domain",
            Identity::Generation => "generation of the domain",
            Identity::Pool => "pool",
            Identity::Group => "group",
            Identity::Round => "round",
        })
    }
}

/// Lists of ranks that all members must have alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membership {
    /// The members of the group, in the order of its communicator.
    Group,
    /// The ranks of the pool's domain.
    Domain,
}
wire_enum!(Membership { 0 => Group {}, 1 => Domain {} });

impl std::fmt::Display for Membership {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Membership::Group => "members of the group",
            Membership::Domain => "ranks of the pool's domain",
        })
    }
}

/// What all members must have alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// The version of the communication library.
    Library,
    /// Whether it has windows for this group.
    Windows,
}
wire_enum!(Capability { 0 => Library {}, 1 => Windows {} });

impl std::fmt::Display for Capability {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Capability::Library => "the communication library's version",
            Capability::Windows => "support of windows",
        })
    }
}

fn describe_shape(shape: &Shape) -> String {
    match shape.flags {
        0 => format!("{} bytes", shape.bytes),
        flags => format!("{} bytes with flags {flags:#x}", shape.bytes),
    }
}

fn describe_divergence(divergence: &Option<Divergence>) -> String {
    match divergence {
        Some(divergence) => format!("; {divergence}"),
        None => String::new(),
    }
}

fn are(ranks: &[u32]) -> String {
    format!("{} {}", Ranks(ranks), if ranks.len() == 1 { "is" } else { "are" })
}

fn describe_missing(missing: &[Absentee]) -> String {
    let places = Split::of(missing.iter().map(|absentee| (absentee.rank, absentee.last_seen.clone())));
    let parts: Vec<String> = places
        .sides
        .iter()
        .map(|Side { value, ranks }| match value {
            Some(place) => format!("{}: last seen entering {place}", Ranks(ranks)),
            None => format!("{}: never seen at any pool", Ranks(ranks)),
        })
        .collect();
    parts.join("; ")
}

fn describe_circle(circle: &[Waiting]) -> String {
    if circle.is_empty() {
        return String::new();
    }
    let places = Split::of(circle.iter().map(|waiting| (waiting.rank, waiting.place.clone())));
    format!("; ranks wait for each other ({})", places.describe(|place| format!("in {place}")))
}

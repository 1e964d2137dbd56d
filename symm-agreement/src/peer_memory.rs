//! The memory that the members of a group offer to each other in a commit, and whether they have opened it. To open
//! memory of another member means to map it on this rank.

use super::wire::{wire_enum, wire_struct};
use memory_sharing::{Export, Site};

/// The memory that a rank offers to the other members of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerOffer {
    /// The rank offers no memory.
    Missing {
        /// The reason.
        cause: String,
    },
    /// The rank offers its [new segments](super::CommitRecord::segments). In addition, it offers its [signal
    /// pad](OfferedMemory::pad), until the members have opened each other's pads.
    Offered {
        /// The memory.
        memory: OfferedMemory,
    },
}
wire_enum!(PeerOffer { 0 => Missing { cause }, 1 => Offered { memory } });

/// The memory of a rank that the other members can open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedMemory {
    /// The host, the process and the device of the rank.
    pub site: Site,
    /// The number that this rank proposes for the first new segment. The segments that the members of a group map from
    /// each other are numbered from 0, across all pools that are committed for the group. The first new segment gets
    /// the highest number that a member proposes, and the following segments get the next numbers. So a segment has the
    /// same number on every member.
    pub next: u64,
    /// The rank's signal pad: memory by which the other members signal to this rank. `None` if the members have opened
    /// each other's pads in an earlier commit.
    pub pad: Option<Export>,
    /// The new segments in the rank's [record](super::CommitRecord::segments), in the same order.
    pub segments: Vec<Export>,
}
wire_struct!(OfferedMemory { site, next, pad, segments });

impl OfferedMemory {
    /// Returns the pad, if it is offered, and then the segments.
    pub fn exports(&self) -> Vec<&Export> {
        self.pad.iter().chain(&self.segments).collect()
    }
}

/// A member's rank and the memory that it offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberMemory {
    /// The member.
    pub rank: u32,
    /// The memory. It contains only the segments that the group commits.
    pub memory: OfferedMemory,
}
wire_struct!(MemberMemory { rank, memory });

/// The state of the members' mappings of each other's new segments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerMappings {
    /// The members are about to open this memory. This value occurs only in the [plan](super::CommitPlan) of the
    /// members' next action, not in the result of a commit.
    Offered {
        /// The memory of all members, by rank.
        members: Vec<MemberMemory>,
    },
    /// All members have opened each other's memory.
    Opened {},
    /// No member keeps the memory open that the others offered in this commit. A member that has already opened some of
    /// it unmaps it.
    Unmapped {
        /// The reason.
        reason: Unmapped,
    },
}
wire_enum!(PeerMappings { 0 => Offered { members }, 1 => Opened {}, 2 => Unmapped { reason } });

/// The reason why the members of a group have not mapped each other's segments. It is equal on all members.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unmapped {
    /// The commit has no new segments.
    #[error("the commit has no new segments")]
    NothingNew {},
    /// Not all ranks offered all memory:
    /// - A rank offered no memory, only some of the segments, or another length than that of a segment.
    /// - Some ranks offered a signal pad, and others did not.
    #[error("rank {rank} shares too little memory: {cause}")]
    NotOffered {
        /// The rank that offered too little. If only some ranks offered a signal pad: the lowest rank with a pad or the
        /// lowest rank without one, whichever is greater.
        rank: u32,
        /// The reason.
        cause: String,
    },
    /// A rank's memory has no handle by which another rank can open it.
    #[error("rank {peer} cannot open the memory of rank {rank}, which is shared by: {handle}")]
    NoHandle {
        /// The rank that offers the memory.
        rank: u32,
        /// The kinds of handles that the memory has.
        handle: String,
        /// The rank that cannot open the memory.
        peer: u32,
    },
    /// A rank's device cannot access the memory of another rank's device.
    #[error("the device of rank {rank} cannot access that of rank {peer}")]
    NoPeerAccess {
        /// The rank whose device has no access.
        rank: u32,
        /// The rank of the other device.
        peer: u32,
    },
    /// A rank could not open the others' memory, or was lost or too slow while the members opened it.
    #[error("rank {rank}: {cause}")]
    Failed {
        /// The rank.
        rank: u32,
        /// A description of the failure.
        cause: String,
    },
}
wire_enum!(Unmapped {
    0 => NothingNew {},
    1 => NotOffered { rank, cause },
    2 => NoHandle { rank, handle, peer },
    3 => NoPeerAccess { rank, peer },
    4 => Failed { rank, cause },
});

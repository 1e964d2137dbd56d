//! The record of a rank in a commit: its message to the other members before anything is registered. A pool's
//! allocation log is the sequence of [operations](super::Operation) on the pool.

use std::fmt;

use process_group::group::GroupId;

pub use super::history::LogPoint;
use super::{
    capabilities::Capabilities,
    peer_memory::PeerOffer,
    poison::Poison,
    ranks::RankList,
    wire::{wire_enum, wire_struct},
};

/// The identity of a pool: the number, generation and instance of its domain, and the pool's number in the domain. No
/// two pools have the same id, even if they use different stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId {
    /// The domain's number.
    pub domain: u64,
    /// The number of times that the rank has created a domain with this number, including this one.
    pub generation: u64,
    /// A random number that is the same on all ranks of this generation of the domain. It distinguishes pools of
    /// different stores, whose other fields may be equal.
    pub instance: u64,
    /// The pool's number in the domain, in order of creation.
    pub pool: u32,
}
wire_struct!(PoolId { domain, generation, instance, pool });

/// Formats the pool for error messages. Only the alternate form (`{:#}`) contains the instance, so only that form is
/// unique.
impl fmt::Display for PoolId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, generation, instance, pool } = self;
        write!(out, "pool {pool} of domain {domain:#x} (generation {generation}")?;
        if out.alternate() {
            write!(out, ", {instance:016x}")?;
        }
        out.write_str(")")
    }
}

/// The treatment of differences between the ranks' pools in a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// If the [new segments](CommitRecord::segments) or the allocation logs differ, nothing is registered.
    #[default]
    Strict,
    /// The segments before the first difference are registered. No member registers the remaining segments, and
    /// `CommitReport::pending` reports the difference.
    Prefix,
}
wire_enum!(Policy { 0 => Strict {}, 1 => Prefix {} });

/// A new segment of a pool. A segment is one allocation of device memory, and is new to a group until the group has
/// committed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Segment {
    /// The segment's number in its pool. It is never reused.
    pub ordinal: u32,
    /// The size of the segment in bytes.
    pub bytes: u64,
    /// The flag [`FOLLOWS`](Self::FOLLOWS), which may differ between ranks. All other bits must be equal on all ranks.
    /// This release sets no other bit.
    pub flags: u32,
    /// The state of the pool's allocation log just after the operation that created the segment. If this state differs
    /// between ranks, the segments count as different, even if their ordinals and sizes are equal.
    pub log: LogPoint,
}
wire_struct!(Segment { ordinal, bytes, flags, log });

impl Segment {
    /// Flag: on this rank, the segment's addresses directly follow those of the previous segment, and both can share an
    /// NCCL window (`CommitOptions::joined` is true, and NCCL supports it). If all ranks set the flag, and one commit
    /// registers both segments, they become one window. The flag has no other effect.
    pub const FOLLOWS: u32 = 1;

    /// Returns the segment without the flag [`FOLLOWS`](Self::FOLLOWS), for comparisons between ranks.
    pub(crate) fn alone(self) -> Self {
        Self { flags: self.flags & !Self::FOLLOWS, ..self }
    }

    pub(crate) fn follows(&self) -> bool {
        self.flags & Self::FOLLOWS != 0
    }
}

/// The readiness of a rank for a commit or a retirement. If the rank cannot take part now, the value is the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// The rank can take part.
    Ready,
    /// The rank is capturing a graph on a stream of its device, or has a declared capture of the pool in progress
    /// (`PoolCapture`).
    Capturing,
    /// The thread that called the commit or the retirement has an NCCL group open (`ncclGroupStart`).
    GroupOpen,
    /// A check on this rank failed.
    Failed {
        /// The affected segment, if it is known.
        ordinal: Option<u32>,
        /// A description of the failure.
        cause: String,
    },
    /// Only in a commit: the group was [poisoned](Poison) earlier, for this reason.
    Poisoned(Poison),
}
wire_enum!(Readiness {
    0 => Ready {},
    1 => Capturing {},
    2 => GroupOpen {},
    3 => Failed { ordinal, cause },
    4 => Poisoned(poison),
});

/// The numbers of collectives and messages that a rank has enqueued on its device for one group, since it created the
/// group. The numbers must match between the group's members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enqueued {
    /// The group.
    pub group: GroupId,
    /// The number of collectives enqueued.
    pub collectives: u64,
    /// The message counts for each peer, in ascending order of peers.
    pub messages: Vec<MessageCounts>,
}
wire_struct!(Enqueued { group, collectives, messages });

/// The numbers of sends and receives that a rank has enqueued for one peer in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageCounts {
    /// The other rank.
    pub peer: u32,
    /// The number of sends to the peer.
    pub sent: u64,
    /// The number of receives from the peer.
    pub received: u64,
    /// True if captured graphs contain sends to or receives from the peer. The counts are then ignored, because the
    /// number of graph launches is unknown.
    pub captured: bool,
}
wire_struct!(MessageCounts { peer, sent, received, captured });

/// The message of a rank to the other members of a group at the start of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitRecord {
    /// The ranks of the pool's domain.
    pub domain: RankList,
    /// The treatment of differences between the ranks' pools.
    pub policy: Policy,
    /// The readiness of the rank.
    pub readiness: Readiness,
    /// The capabilities of the rank's libraries.
    pub capabilities: Capabilities,
    /// The numbers of collectives and messages enqueued on the rank's device, with one entry for each process group on
    /// the device.
    pub enqueued: Vec<Enqueued>,
    /// The bytes that are left in the address space that NCCL reserves for the windows of the rank's communicator.
    /// `None` if unknown. NCCL reserves as much address space as the largest device of the members has memory. Each
    /// rank knows only its own device, and computes the value as if that device were the largest. So only the greatest
    /// value of all members is correct.
    pub address_space_left: Option<u64>,
    /// The state of the group's [log](super::GroupLog::committed) of committed and retired segments.
    pub committed: LogPoint,
    /// The state of the pool's allocation log.
    pub log: LogPoint,
    /// For this n and every greater n, the rank still has the hash of the first n operations of its allocation log. If
    /// the logs differ, the search for the first difference begins at the greatest `log_since` of all ranks, or at the
    /// end of the shortest log if that comes first.
    pub log_since: u64,
    /// The new segments, in ascending order of ordinals.
    pub segments: Vec<Segment>,
    /// The memory that the rank offers to the other members.
    pub peers: PeerOffer,
}
wire_struct!(CommitRecord {
    domain,
    policy,
    readiness,
    capabilities,
    enqueued,
    address_space_left,
    committed,
    log,
    log_since,
    segments,
    peers,
});

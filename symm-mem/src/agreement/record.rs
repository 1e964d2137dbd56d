//! What a rank tells the others before anything is registered.

use std::fmt;

use caching_alloc::core::symmetric::LogState;
use process_group::group::GroupId;

use super::{
    poison::Poison,
    ranks::RankList,
    wire::{Malformed, Message, wire_enum, wire_struct},
};

wire_struct!(GroupId { uid, epoch });

/// A pool: the domain's number, which generation of the domain, and the pool's number in it. No two pools of any stores
/// are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId {
    /// The domain's number.
    pub domain: u64,
    /// How often this rank has made a domain of that number.
    pub generation: u64,
    /// A random number that the ranks of this generation of the domain share. Two stores may count to equal numbers of
    /// everything else.
    pub instance: u64,
    /// The pool's number in the domain, in order of creation.
    pub pool: u32,
}
wire_struct!(PoolId { domain, generation, instance, pool });

/// Names the pool for a reader. The alternate form (`{:#}`) ends with the instance, so that it names no other pool.
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

/// How a commit treats ranks whose pools differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// All segments and the whole allocation history are the same, or nothing is registered.
    #[default]
    Strict,
    /// The segments up to the first difference are registered; the rest stays pending on every member, and the
    /// difference is reported.
    Prefix,
}
wire_enum!(Policy { 0 => Strict {}, 1 => Prefix {} });

/// A point of a log: how many entries, and the hash over them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LogPoint {
    /// How many entries.
    pub length: u64,
    /// The hash over all of them.
    pub hash: u64,
}
wire_struct!(LogPoint { length, hash });

impl From<LogState> for LogPoint {
    fn from(LogState { length, hash }: LogState) -> Self {
        Self { length, hash }
    }
}

impl fmt::Display for LogPoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} operations with hash {:016x}", self.length, self.hash)
    }
}

/// A segment that its pool wants registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Segment {
    /// The segment's number in its pool, never used again.
    pub ordinal: u32,
    /// Its size in bytes.
    pub bytes: u64,
    /// Kind of memory and window, equal on all ranks; and [`FOLLOWS`](Self::FOLLOWS).
    pub flags: u32,
    /// The allocation log just after the operation that created the segment. Two ranks with the same number
    /// and size but another history do not hold the same segment.
    pub log: LogPoint,
}
wire_struct!(Segment { ordinal, bytes, flags, log });

impl Segment {
    /// Flag: on this rank the segment lies directly behind the one before it, and the library takes both as one window.
    /// Where that is so on all ranks, they become one; it makes no other difference.
    pub const FOLLOWS: u32 = 1;

    /// The segment as all ranks have it.
    pub(super) fn alone(self) -> Self {
        Self { flags: self.flags & !Self::FOLLOWS, ..self }
    }

    pub(super) fn follows(&self) -> bool {
        self.flags & Self::FOLLOWS != 0
    }
}

/// Whether the rank can take part now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// Yes.
    Ready,
    /// The rank is capturing a graph on a stream of this device.
    Capturing,
    /// The calling thread has opened an NCCL group.
    GroupOpen,
    /// A check on this rank failed.
    Failed {
        /// The segment that it is about.
        ordinal: Option<u32>,
        /// What failed.
        cause: String,
    },
    /// The group was poisoned earlier.
    Poisoned {
        /// By what.
        poison: Poison,
    },
}
wire_enum!(Readiness {
    0 => Ready {},
    1 => Capturing {},
    2 => GroupOpen {},
    3 => Failed { ordinal, cause },
    4 => Poisoned { poison },
});

/// Whether a rank's library can register windows with this group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WindowSupport {
    /// As far as can be told before trying.
    Available,
    /// No.
    Unavailable {
        /// Why; the same text on every rank with the same library and environment.
        reason: String,
    },
}
wire_enum!(WindowSupport { 0 => Available {}, 1 => Unavailable { reason } });

/// What a rank's libraries can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// The version code of the communication library (`ncclGetVersion`).
    pub library: u32,
    /// Whether it has windows for this group.
    pub windows: WindowSupport,
}
wire_struct!(Capabilities { library, windows });

/// How much a group has been given to do on the rank's device, in what its members must have alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enqueued {
    /// The group.
    pub group: GroupId,
    /// How many collectives have been enqueued.
    pub collectives: u64,
    /// The messages, by peer, ascending.
    pub messages: Vec<MessageCounts>,
}
wire_struct!(Enqueued { group, collectives, messages });

/// The messages between the rank and another, as far as this one has enqueued its ends of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageCounts {
    /// The other rank.
    pub peer: u32,
    /// How many it was sent.
    pub sent: u64,
    /// How many were received from it.
    pub received: u64,
    /// Whether graphs captured any of them: how often these run is not known, so that the counts say nothing.
    pub captured: bool,
}
wire_struct!(MessageCounts { peer, sent, received, captured });

/// What a rank tells the other members of a group when it commits a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The pool.
    pub pool: PoolId,
    /// The group.
    pub group: GroupId,
    /// Which commit of this pool for this group it is, from 0.
    pub round: u64,
    /// Who speaks (a rank of the domain).
    pub rank: u32,
    /// The group's members in order.
    pub members: RankList,
    /// The ranks of the pool's domain.
    pub domain: RankList,
    /// How differences are to be treated.
    pub policy: Policy,
    /// The time that the rank gives the commit, in milliseconds.
    pub deadline_ms: u64,
    /// Whether it can take part.
    pub readiness: Readiness,
    /// What its libraries can do.
    pub capabilities: Capabilities,
    /// How much each group has been given to do on its device.
    pub enqueued: Vec<Enqueued>,
    /// Bytes of symmetric address space that its communicator has left, if that is known.
    pub address_space_left: Option<u64>,
    /// The log of what this group has committed.
    pub committed: LogPoint,
    /// The pool's allocation log.
    pub log: LogPoint,
    /// The earliest length for which the rank remembers the allocation log's hash.
    pub log_since: u64,
    /// The segments that the group has not committed, in order of their ordinals.
    pub segments: Vec<Segment>,
}
wire_struct!(Record {
    pool,
    group,
    round,
    rank,
    members,
    domain,
    policy,
    deadline_ms,
    readiness,
    capabilities,
    enqueued,
    address_space_left,
    committed,
    log,
    log_since,
    segments,
});

impl Message for Record {
    const KIND: u8 = 1;
}

impl Record {
    /// The record in its binary form: the same bytes for the same record on every machine.
    pub fn encode(&self) -> Vec<u8> {
        self.to_bytes()
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`Malformed`] for anything that [`encode`](Self::encode) of this protocol version does not write.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        Self::from_bytes(bytes)
    }
}

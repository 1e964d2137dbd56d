//! [`RendezvousRecord`]: the message that a rank posts for the others, before any of them maps memory.

use std::fmt;

use process_group::group::GroupId;

use memory_sharing::{Export, Site};

use crate::{
    LogPoint, PoolId,
    wire::{wire_enum, wire_struct},
};

/// The memory that a rank brings to a rendezvous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The group's signal pads.
    Pads,
    /// A block or a whole segment of a pool. In both cases peers map the whole segment.
    Pool {
        /// The pool.
        pool: PoolId,
        /// The segment's number in the pool.
        ordinal: u32,
        /// The length and the hash of the pool's log of requests just after the request that created the segment.
        log: LogPoint,
    },
    /// An allocation that belongs to no pool and is not persistent.
    Allocation,
    /// A persistent allocation.
    Persistent {
        /// The id of the allocation, equal on all ranks.
        id: u64,
    },
}
wire_enum!(Subject {
    0 => Pads {},
    1 => Pool { pool, ordinal, log },
    2 => Allocation {},
    3 => Persistent { id },
});

impl fmt::Display for Subject {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pads => out.write_str("the group's signal pads"),
            Self::Pool { pool, ordinal, log } => {
                write!(out, "segment {ordinal} of {pool} ({log})")
            }
            Self::Allocation => out.write_str("an allocation"),
            Self::Persistent { id } => write!(out, "the allocation of id {id}"),
        }
    }
}

/// Whether a rank can take part in a rendezvous or an exchange, and if not, why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SharingReadiness {
    /// The rank can take part.
    Ready,
    /// The memory belongs to a pool that cannot grow now, because the program has declared a graph capture
    /// (`PoolCapture`).
    Capturing,
    /// The rank has no memory to share, because a step before the agreement failed.
    Failed {
        /// A description of the failure.
        cause: String,
    },
}
wire_enum!(SharingReadiness { 0 => Ready {}, 1 => Capturing {}, 2 => Failed { cause } });

/// The message that a rank posts for the other members of a rendezvous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RendezvousRecord {
    /// The group.
    pub group: GroupId,
    /// The number of times that this rank has created a `Rendezvous` object for the group, including the one that sends
    /// this record.
    pub generation: u64,
    /// How many rendezvous the same `Rendezvous` object began before this one. In rendezvous 0, the members map their
    /// signal pads, if the object has pads.
    pub number: u64,
    /// The sender, as a rank of the job.
    pub rank: u32,
    /// A hash of the list of the group's members, as ranks of the job, in the group's order.
    pub members: u64,
    /// The readiness of the rank.
    pub readiness: SharingReadiness,
    /// True if the options of this rank permit several members on one device.
    pub shared_devices: bool,
    /// The memory that the rank brings.
    pub subject: Subject,
    /// The offset of the rank's buffer in the allocation or segment that contains it, in bytes.
    pub offset: u64,
    /// The buffer's length in bytes.
    pub bytes: u64,
    /// If this rank still has the peers' memory mapped from an earlier rendezvous of this allocation: the `number` of
    /// that rendezvous. Otherwise `None`.
    pub mapped: Option<u64>,
    /// The host, process and device of the rank, and the endpoint from which the others get file descriptors of its
    /// memory.
    pub site: Site,
    /// The whole allocation or segment that contains the buffer, with its handles. If `readiness` is `Failed`, an
    /// allocation of 0 bytes.
    pub export: Export,
}
wire_struct!(RendezvousRecord {
    group,
    generation,
    number,
    rank,
    members,
    readiness,
    shared_devices,
    subject,
    offset,
    bytes,
    mapped,
    site,
    export,
});

/// Returns the prefix of the store keys of a rendezvous. The store keys of an exchange or a direct path that uses the
/// mapped memory begin with the same prefix. `generation` and `number` are the fields of the [`RendezvousRecord`]. Each
/// member counts both on its own. But they count collective calls, which all members make equally often, so all members
/// get the same prefix.
pub fn prefix(group: GroupId, generation: u64, number: u64) -> String {
    format!("symm/meeting/{:x}.{}/{generation}/{number}", group.uid, group.epoch)
}

impl RendezvousRecord {
    /// The prefix of the store keys of this rendezvous.
    pub fn prefix(&self) -> String {
        prefix(self.group, self.generation, self.number)
    }
}

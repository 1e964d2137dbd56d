//! The message of a rank to the others before anything is mapped.

use std::fmt;

use cuda_driver::uuid_text;
use process_group::group::GroupId;

use crate::agreement::{
    LogPoint, PoolId,
    wire::{wire_enum, wire_struct},
};

/// A device's UUID, in two halves. It is the same in every process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Uuid {
    /// The first 8 bytes, as a little-endian number.
    pub low: u64,
    /// The last 8 bytes, as a little-endian number.
    pub high: u64,
}
wire_struct!(Uuid { low, high });

impl From<[u8; 16]> for Uuid {
    fn from(bytes: [u8; 16]) -> Self {
        let both = u128::from_le_bytes(bytes);
        Self { low: both as u64, high: (both >> 64) as u64 }
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let both = u128::from(self.low) | u128::from(self.high) << 64;
        out.write_str(&uuid_text(&both.to_le_bytes()))
    }
}

/// The memory of a rendezvous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The group's signal pads.
    Pads,
    /// A block or a whole segment of a pool. In both cases peers map the whole segment.
    Pool {
        /// The pool.
        pool: PoolId,
        /// The segment's number in it.
        ordinal: u32,
        /// The pool's allocation log just after the operation that created the segment.
        log: LogPoint,
    },
    /// An allocation that belongs to no pool and is not persistent.
    Allocation,
    /// A persistent allocation, identified by its number.
    Persistent {
        /// The number.
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

/// The handles of a rank's memory for other ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handles {
    /// True if the memory can be exported as a file descriptor.
    pub descriptor: bool,
    /// The fabric handle, if the memory has one.
    pub fabric: Option<Vec<u8>>,
    /// The endpoint of the rank's listener, which sends file descriptors to peers ([`process_group::link`]).
    pub card: Vec<u8>,
    /// The token with which the other ranks of the same process find the memory.
    pub token: u64,
}
wire_struct!(Handles { descriptor, fabric, card, token });

/// The readiness of a rank: it can take part now, or the reason why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// The rank can take part.
    Ready,
    /// The memory belongs to a pool that is frozen by a declared capture ([`PoolCapture`](crate::PoolCapture)).
    Capturing,
    /// A step on this rank failed.
    Failed {
        /// A description of the failure.
        cause: String,
    },
}
wire_enum!(Readiness { 0 => Ready {}, 1 => Capturing {}, 2 => Failed { cause } });

/// The message of a rank to the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The group.
    pub group: GroupId,
    /// How many times this rank has created a [`Rendezvous`](crate::rendezvous::Rendezvous) for the group,
    /// including this one.
    pub life: u64,
    /// The number of this rendezvous: the count of earlier ones that this rank began with its current `Rendezvous`.
    pub number: u64,
    /// The sender, as a rank of the job.
    pub rank: u32,
    /// A hash of the members' ranks in their order.
    pub members: u64,
    /// The readiness of the rank.
    pub readiness: Readiness,
    /// True if ranks may share a device.
    pub shared_devices: bool,
    /// The memory of the rendezvous.
    pub subject: Subject,
    /// The size of the whole allocation that peers map, in bytes.
    pub segment: u64,
    /// The offset of the buffer in the allocation, in bytes.
    pub offset: u64,
    /// The buffer's length in bytes.
    pub bytes: u64,
    /// The `number` of the earlier rendezvous that mapped the peers' corresponding memory on this rank. `None` if this
    /// memory is not mapped.
    pub mapped: Option<u64>,
    /// The rank's host ([`process_group::link::host`]).
    pub host: u64,
    /// The number of the rank's process. It is equal only for ranks of one process.
    pub process: u64,
    /// The UUID of the rank's device.
    pub device: Uuid,
    /// The UUIDs of the devices that this process sees but the rank's device cannot access.
    pub unreachable: Vec<Uuid>,
    /// The handles of the rank's memory.
    pub handles: Handles,
}
wire_struct!(Record {
    group,
    life,
    number,
    rank,
    members,
    readiness,
    shared_devices,
    subject,
    segment,
    offset,
    bytes,
    mapped,
    host,
    process,
    device,
    unreachable,
    handles,
});

/// Returns the prefix of the store keys of a rendezvous, and of agreements about the memory that it maps. `life` and
/// `number` are those of the [`Record`]. Each member counts its own calls for these two numbers. They are equal on all
/// members because all of them make the same collective calls.
pub(crate) fn prefix(group: GroupId, life: u64, number: u64) -> String {
    format!("symm/meeting/{:x}.{}/{life}/{number}", group.uid, group.epoch)
}

impl Record {
    /// The prefix of the store keys of this rendezvous.
    pub fn prefix(&self) -> String {
        prefix(self.group, self.life, self.number)
    }
}

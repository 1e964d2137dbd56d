//! What a rank tells the others before anything is mapped.

use std::fmt;

use process_group::group::GroupId;

use crate::agreement::{
    LogPoint, PoolId,
    wire::{Malformed, Message, wire_enum, wire_struct},
};

/// A device's identity, the same in every process: the UUID's two halves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Uuid {
    /// The first 8 bytes, as a little-endian number.
    pub low: u64,
    /// The other 8.
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
        both.to_le_bytes().iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

/// Which memory a rendezvous is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The group's signal pads.
    Pads,
    /// A block of a pool, and with it its whole segment.
    Pool {
        /// The pool.
        pool: PoolId,
        /// The segment's number in it.
        ordinal: u32,
        /// The pool's allocation log just after the operation that created the segment.
        log: LogPoint,
    },
    /// An allocation of its own.
    Allocation,
    /// An allocation that is found again by its number.
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
                write!(out, "segment {ordinal} of {pool} of life {} ({log})", pool.generation)
            }
            Self::Allocation => out.write_str("an allocation"),
            Self::Persistent { id } => write!(out, "the allocation of id {id}"),
        }
    }
}

/// How a rank's memory can be had by others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handles {
    /// Whether it can be had as a file descriptor.
    pub descriptor: bool,
    /// The fabric handle, where there is one.
    pub fabric: Option<Vec<u8>>,
    /// Where the rank listens for those that come for descriptors ([`process_group::local`]).
    pub card: Vec<u8>,
    /// What other ranks of its process find it by.
    pub token: u64,
}
wire_struct!(Handles { descriptor, fabric, card, token });

/// Whether the rank can take part now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// Yes.
    Ready,
    /// A stream of its device captures.
    Capturing,
    /// Something failed on this rank.
    Failed {
        /// What.
        cause: String,
    },
}
wire_enum!(Readiness { 0 => Ready {}, 1 => Capturing {}, 2 => Failed { cause } });

/// What a rank tells the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The group.
    pub group: GroupId,
    /// How often this rank has made the group's rendezvous.
    pub life: u64,
    /// How many this rank began in this life before this one.
    pub number: u64,
    /// The rank, of the job.
    pub rank: u32,
    /// A hash of the members' ranks in their order.
    pub members: u64,
    /// The time that the rendezvous may take, in milliseconds.
    pub deadline_ms: u64,
    /// Whether the rank can take part.
    pub readiness: Readiness,
    /// Whether ranks may share a device.
    pub shared_devices: bool,
    /// Which memory it is about.
    pub subject: Subject,
    /// The whole allocation that peers map, in bytes.
    pub segment: u64,
    /// Where in it the buffer begins, in bytes.
    pub offset: u64,
    /// The buffer's length in bytes.
    pub bytes: u64,
    /// The number of the rendezvous since which the allocation's peers are mapped here, if they are.
    pub mapped: Option<u64>,
    /// The rank's host ([`process_group::local::host`]).
    pub host: u64,
    /// Its process: equal for two ranks of one process alone.
    pub process: u64,
    /// Its device.
    pub device: Uuid,
    /// Devices that this rank sees and its own cannot reach.
    pub unreachable: Vec<Uuid>,
    /// How its memory can be had.
    pub handles: Handles,
}
wire_struct!(Record {
    group,
    life,
    number,
    rank,
    members,
    deadline_ms,
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

impl Message for Record {
    const KIND: u8 = 16;
}

/// What begins the keys of a rendezvous, and of whatever is built on the memory that it maps: never a name, and counted by
/// the group's own rendezvous, not by the process.
pub(crate) fn prefix(group: GroupId, life: u64, number: u64) -> String {
    format!("symm/meeting/{:x}.{}/{life}/{number}", group.uid, group.epoch)
}

impl Record {
    /// What begins the keys of the rendezvous that it speaks of.
    pub fn prefix(&self) -> String {
        prefix(self.group, self.life, self.number)
    }

    /// The record in its binary form.
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

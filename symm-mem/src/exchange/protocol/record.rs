//! What a member tells the others before anything is opened.

use std::fmt;

use crate::{
    agreement::{
        PoolId,
        wire::{Malformed, Message, wire_enum, wire_struct},
    },
    rendezvous::protocol::{Readiness, Uuid},
};

/// An allocation of one process, by a number that no other has or had: never by its address, which is used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AllocationId {
    /// An allocation of its own, by its number in the process.
    Own {
        /// The number.
        number: u64,
    },
    /// A segment of a symmetric pool.
    Segment {
        /// The pool.
        pool: PoolId,
        /// The segment's number in it.
        ordinal: u32,
    },
}
wire_enum!(AllocationId { 0 => Own { number }, 1 => Segment { pool, ordinal } });

impl fmt::Display for AllocationId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own { number } => write!(out, "allocation {number}"),
            Self::Segment { pool, ordinal } => write!(out, "segment {ordinal} of {pool}"),
        }
    }
}

/// What a rank does in a transfer. The one end copies, the other says when it may, and waits until it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// It copies its buffer to the peer.
    PutTo,
    /// The peer copies into its buffer.
    PutFrom,
    /// It copies the peer's buffer into its own.
    GetFrom,
    /// The peer copies its buffer.
    GetBy,
}
wire_enum!(Part { 0 => PutTo {}, 1 => PutFrom {}, 2 => GetFrom {}, 3 => GetBy {} });

impl Part {
    /// What the other end does.
    #[must_use]
    pub fn counterpart(self) -> Self {
        match self {
            Self::PutTo => Self::PutFrom,
            Self::PutFrom => Self::PutTo,
            Self::GetFrom => Self::GetBy,
            Self::GetBy => Self::GetFrom,
        }
    }

    /// Whether this end copies, and so reaches into the other's memory.
    #[must_use]
    pub fn copies(self) -> bool {
        matches!(self, Self::PutTo | Self::GetFrom)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::PutTo => "puts to its peer",
            Self::PutFrom => "takes a put of its peer",
            Self::GetFrom => "gets from its peer",
            Self::GetBy => "lets its peer get",
        })
    }
}

/// How an allocation can be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// Plain memory: the 64 bytes of a legacy handle.
    Legacy {
        /// The handle.
        handle: Vec<u8>,
    },
    /// Virtual memory.
    Virtual {
        /// Whether it can be had as a file descriptor.
        descriptor: bool,
        /// The fabric handle, where there is one.
        fabric: Option<Vec<u8>>,
    },
}
wire_enum!(Way { 0 => Legacy { handle }, 1 => Virtual { descriptor, fabric } });

impl Way {
    /// What it is called.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Legacy { .. } => "legacy handle",
            Self::Virtual { descriptor: true, fabric: Some(_) } => "file descriptor or fabric handle",
            Self::Virtual { descriptor: true, fabric: None } => "file descriptor",
            Self::Virtual { descriptor: false, fabric: Some(_) } => "fabric handle",
            Self::Virtual { descriptor: false, fabric: None } => "not at all",
        }
    }
}

/// An allocation that peers reach into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// The allocation.
    pub id: AllocationId,
    /// The whole of it, in bytes.
    pub bytes: u64,
    /// How it can be had.
    pub way: Way,
    /// What other ranks of its process find it by.
    pub token: u64,
}
wire_struct!(Export { id, bytes, way, token });

/// One end of a transfer. The n-th that a rank has with a peer meets the n-th that the peer has with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// The peer, as a rank of the job.
    pub peer: u32,
    /// What this rank does.
    pub part: Part,
    /// The bytes that go from one to the other.
    pub bytes: u64,
    /// Where the peer finds this end's buffer, if it copies: which of the [`Export`]s, and the byte in it.
    pub export: Option<u32>,
    /// The buffer's first byte in its allocation.
    pub offset: u64,
    /// This rank's slot for the peer's signals.
    pub slot: u32,
}
wire_struct!(End { peer, part, bytes, export, offset, slot });

/// An allocation of a peer that this rank has open already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The peer, as a rank of the job.
    pub peer: u32,
    /// Its allocation.
    pub id: AllocationId,
}
wire_struct!(Held { peer, id });

/// What a member tells the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The rank, of the job.
    pub rank: u32,
    /// What the plan is called.
    pub plan: String,
    /// The generation that the plan would have here.
    pub generation: u64,
    /// The time that the exchange may take, in milliseconds.
    pub deadline_ms: u64,
    /// Whether the rank can take part.
    pub readiness: Readiness,
    /// The rank's host ([`process_group::local::host`]).
    pub host: u64,
    /// Its process: equal for two ranks of one process alone.
    pub process: u64,
    /// Its device.
    pub device: Uuid,
    /// Devices that this rank sees and its own cannot reach.
    pub unreachable: Vec<Uuid>,
    /// Where the rank listens for those that come for descriptors ([`process_group::local`]).
    pub card: Vec<u8>,
    /// How many slots it has for its peers' signals.
    pub channels: u32,
    /// What its peers reach into.
    pub exports: Vec<Export>,
    /// What it has open.
    pub held: Vec<Held>,
    /// Its transfers.
    pub ends: Vec<End>,
}
wire_struct!(Record {
    rank,
    plan,
    generation,
    deadline_ms,
    readiness,
    host,
    process,
    device,
    unreachable,
    card,
    channels,
    exports,
    held,
    ends,
});

impl Message for Record {
    const KIND: u8 = 20;
}

impl Record {
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

    /// The rank's transfers with a peer.
    pub fn with(&self, peer: u32) -> impl Iterator<Item = &End> {
        self.ends.iter().filter(move |end| end.peer == peer)
    }

    /// What an end's peer reaches into, if it does.
    pub fn export_of(&self, end: &End) -> Option<&Export> {
        self.exports.get(end.export? as usize)
    }

    /// What does not fit together in the record, if anything: ends that leave their allocation or the slots.
    pub(super) fn flaw(&self) -> Option<String> {
        self.ends.iter().enumerate().find_map(|(at, end)| {
            if end.slot >= self.channels {
                return Some(format!("transfer {at} has slot {} of {}", end.slot, self.channels));
            }
            if end.part.copies() {
                return None;
            }
            let Some(export) = self.export_of(end) else {
                return Some(format!(
                    "transfer {at} names export {:?} of {}",
                    end.export,
                    self.exports.len()
                ));
            };
            let last = end.offset.checked_add(end.bytes);
            (last.is_none_or(|last| last > export.bytes)).then(|| {
                let (begin, bytes, whole) = (end.offset, end.bytes, export.bytes);
                format!(
                    "transfer {at} of {bytes} bytes at byte {begin} leaves its allocation of {whole} bytes"
                )
            })
        })
    }
}

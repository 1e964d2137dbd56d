//! The record of a member of an exchange: the message that it sends to the other members before any memory is opened.
//! It describes the member's transfers (copies between its buffers and those of peers) or its regions (memory that all
//! members can access).

use std::fmt;

use memory_sharing::Site;

use crate::{
    PoolId,
    rendezvous::SharingReadiness,
    wire::{wire_enum, wire_struct},
};

/// Identifies an allocation of one process. Unlike an address, an id is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AllocationId {
    /// An allocation that is not a segment of a symmetric pool.
    Own {
        /// The number of the allocation in its process.
        number: u64,
    },
    /// A segment of a symmetric pool.
    Segment {
        /// The pool.
        pool: PoolId,
        /// The segment's ordinal, which is its number in the pool.
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

/// Role of a rank in a transfer. One end copies. The other end signals that the copy may begin, and waits for the end
/// of the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// The rank copies its buffer to the peer.
    PutInitiator,
    /// The peer copies into the rank's buffer.
    PutTarget,
    /// The rank copies the peer's buffer into its own.
    GetFrom,
    /// The peer copies the rank's buffer into the peer's buffer.
    GetBy,
}
wire_enum!(Part { 0 => PutInitiator {}, 1 => PutTarget {}, 2 => GetFrom {}, 3 => GetBy {} });

impl Part {
    /// Role of the other end.
    #[must_use]
    pub fn counterpart(self) -> Self {
        match self {
            Self::PutInitiator => Self::PutTarget,
            Self::PutTarget => Self::PutInitiator,
            Self::GetFrom => Self::GetBy,
            Self::GetBy => Self::GetFrom,
        }
    }

    /// Returns whether this end copies, and so accesses the memory of the other end.
    #[must_use]
    pub fn copies(self) -> bool {
        matches!(self, Self::PutInitiator | Self::GetFrom)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::PutInitiator => "puts to its peer",
            Self::PutTarget => "takes a put of its peer",
            Self::GetFrom => "gets from its peer",
            Self::GetBy => "lets its peer get",
        })
    }
}

/// An allocation that peers access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedAllocation {
    /// The allocation.
    pub id: AllocationId,
    /// The length of the allocation, the handles by which other processes open it, and the token by which ranks of the
    /// same process find it.
    pub shared: memory_sharing::Export,
}
wire_struct!(SharedAllocation { id, shared });

/// A contiguous part of a rank's memory, in one allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPiece {
    /// The allocation, as an index into [`ExchangeRecord::exports`].
    pub export: u32,
    /// Offset of the piece in the allocation, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}
wire_struct!(MemoryPiece { export, offset, bytes });

/// One end of a transfer. If two ranks have several transfers with each other, the n-th of them in the list of one rank
/// matches the n-th of them in the list of the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// The peer, as a rank of the job.
    pub peer: u32,
    /// Role of this rank.
    pub part: Part,
    /// Length of the transfer in bytes.
    pub bytes: u64,
    /// If the peer copies: the pieces of this end's buffer, in the order of their addresses on the rank. Otherwise
    /// empty.
    pub pieces: Vec<MemoryPiece>,
    /// Index of this rank's slot for the transfer. A slot is a few words of a rank's memory into which one peer writes
    /// its signals.
    pub slot: u32,
}
wire_struct!(End { peer, part, bytes, pieces, slot });

/// Memory of a rank that all members can access, under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedRegion {
    /// The name, unique among the regions of the rank.
    pub name: String,
    /// The pieces of the memory, in the order of their addresses on the rank.
    pub pieces: Vec<MemoryPiece>,
}
wire_struct!(SharedRegion { name, pieces });

/// The regions that a rank shares with all members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionOffer {
    /// The regions.
    pub regions: Vec<SharedRegion>,
    /// Index of the rank's first slot for these regions. A slot is a few words of the rank's memory into which one peer
    /// writes its signals. The slots are adjacent: one for each other member, in the order of
    /// [`Agreement::records`](super::Agreement::records).
    pub first_slot: u32,
}
wire_struct!(RegionOffer { regions, first_slot });

/// An allocation of a peer that is already open on this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The peer, as a rank of the job.
    pub peer: u32,
    /// The allocation of the peer.
    pub id: AllocationId,
}
wire_struct!(Held { peer, id });

/// The record that a member sends to the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExchangeRecord {
    /// The rank in the job.
    pub rank: u32,
    /// Name of the plan, or of the set of regions.
    pub plan: String,
    /// The generation that this rank proposes: a number that distinguishes this plan, or set of regions, from earlier
    /// ones of the same name. It is 1 more than the last agreed generation of this name on this rank. The members use
    /// the highest proposal.
    pub generation: u64,
    /// The readiness of the rank: it can take part, or the reason why not.
    pub readiness: SharingReadiness,
    /// The rank's host, process and device, and the endpoint that sends its file descriptors.
    pub site: Site,
    /// Number of slots that the rank has for all its plans and regions. All slot indices of this record are lower.
    pub channels: u32,
    /// The rank's allocations that peers access.
    pub exports: Vec<SharedAllocation>,
    /// Peers' allocations that are already open on the rank.
    pub held: Vec<Held>,
    /// The rank's ends of transfers. Empty if the members share regions.
    pub ends: Vec<End>,
    /// The rank's regions. `None` if the members exchange a plan.
    pub regions: Option<RegionOffer>,
}
wire_struct!(ExchangeRecord {
    rank,
    plan,
    generation,
    readiness,
    site,
    channels,
    exports,
    held,
    ends,
    regions
});

impl ExchangeRecord {
    /// The rank's ends of transfers with a peer.
    pub fn with(&self, peer: u32) -> impl Iterator<Item = &End> {
        self.ends.iter().filter(move |end| end.peer == peer)
    }

    /// Returns the name for error messages: the name of the plan, or "regions" and the name of the set of regions.
    pub(crate) fn title(&self) -> String {
        match &self.regions {
            None => self.plan.clone(),
            Some(_) => format!("regions {}", self.plan),
        }
    }

    /// Returns the slot into which a peer writes its signals to this rank, if the members share regions. `own` and
    /// `peer` are the indices of the two ranks' records in [`Agreement::records`](super::Agreement::records). Returns
    /// `None` if this rank's record has no regions.
    pub(crate) fn region_slot(&self, own: usize, peer: usize) -> Option<u32> {
        // The rank has no slot for itself. So for a peer whose record comes after that of the rank, the position of the
        // slot among the rank's slots for regions is one less than the index of the peer's record.
        let position = u32::try_from(if peer < own { peer } else { peer.checked_sub(1)? }).ok()?;
        self.regions.as_ref()?.first_slot.checked_add(position)
    }

    /// Describes the first inconsistency of the record, if any. `members` is the number of records. These are
    /// inconsistencies:
    /// - The record has both transfers and regions.
    /// - The index of an export or slot is out of range.
    /// - A piece of memory extends beyond its allocation.
    /// - The pieces of a transfer's buffer together have another length than the transfer.
    ///
    /// Slots and pieces of regions are not checked if the rank is not ready, because its regions are then not used.
    pub(crate) fn flaw(&self, members: usize) -> Option<String> {
        self.flaw_of_regions(members).or_else(|| self.flaw_of_transfers())
    }

    fn flaw_of_regions(&self, members: usize) -> Option<String> {
        let RegionOffer { regions, first_slot } = self.regions.as_ref()?;
        if !self.ends.is_empty() {
            return Some(format!("{} transfers beside regions", self.ends.len()));
        }
        if self.readiness != SharingReadiness::Ready {
            return None;
        }
        let end = (*first_slot as usize).saturating_add(members.saturating_sub(1));
        if end > self.channels as usize {
            return Some(format!("the regions' slots {first_slot}..{end} of {}", self.channels));
        }
        let flaw = |SharedRegion { name, pieces }: &SharedRegion| {
            self.flaw_of_pieces(&format_args!("region {name:?}"), pieces)
        };
        regions.iter().find_map(flaw)
    }

    fn flaw_of_transfers(&self) -> Option<String> {
        self.ends.iter().enumerate().find_map(|(at, end)| {
            if end.slot >= self.channels {
                return Some(format!("transfer {at} has slot {} of {}", end.slot, self.channels));
            }
            if end.part.copies() {
                return None;
            }
            let flaw = self.flaw_of_pieces(&format_args!("transfer {at}"), &end.pieces);
            flaw.or_else(|| {
                let sum = end.pieces.iter().fold(0, |sum: u64, piece| sum.saturating_add(piece.bytes));
                (sum != end.bytes)
                    .then(|| format!("transfer {at} of {} bytes has memory of {sum} bytes", end.bytes))
            })
        })
    }

    /// Describes the first of the `pieces` that extends beyond its allocation, or whose `export` is out of range.
    /// `owner` is the transfer or region, for the description.
    fn flaw_of_pieces(&self, owner: &dyn fmt::Display, pieces: &[MemoryPiece]) -> Option<String> {
        pieces.iter().find_map(|&MemoryPiece { export, offset, bytes }| {
            let Some(SharedAllocation { shared, .. }) = self.exports.get(export as usize) else {
                return Some(format!("{owner} names export {export} of {}", self.exports.len()));
            };
            let whole = shared.bytes;
            offset.checked_add(bytes).is_none_or(|last| last > whole).then(|| {
                format!("{bytes} bytes at byte {offset} of {owner} leave their allocation of {whole} bytes")
            })
        })
    }
}

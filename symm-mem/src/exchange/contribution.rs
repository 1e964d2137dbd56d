//! The contribution of a rank to an agreement of the members. For an agreement on a [plan](super::Plan), it is this
//! rank's *ends* of transfers: for each transfer, its role and its buffer. For an agreement on a set of
//! [regions](super::Regions), it is this rank's regions: named memory that all members can access.

use std::ops::Range;

use super::{
    Memory, OPERATION, Transfer,
    memory::MemorySpan,
    protocol::{End, ExchangeRecord, MemoryPiece, RegionOffer, SharedAllocation, SharedRegion},
};

pub(super) enum Contribution<'a> {
    /// This rank's ends of the transfers of a plan.
    Transfers(&'a [Transfer]),
    /// This rank's regions, each with its name. All members can access them.
    Regions(&'a [(&'a str, Memory)]),
}

impl Contribution<'_> {
    /// The name of the operation, for errors.
    pub(super) fn operation(&self) -> &'static str {
        match self {
            Self::Transfers(_) => OPERATION,
            Self::Regions(_) => "share_regions",
        }
    }

    /// Number of this rank's [signal slots](super::slots) that this contribution needs in an agreement of `members`
    /// members: one for each transfer, or one for each other member.
    pub(super) fn slots(&self, members: usize) -> usize {
        match self {
            Self::Transfers(transfers) => transfers.len(),
            Self::Regions(_) => members.saturating_sub(1),
        }
    }

    /// Returns a [`RegionOffer`] without regions. A rank that could not prepare its regions puts it into its
    /// [record](ExchangeRecord), which is its message to the other members. A record without a `RegionOffer` would
    /// count as one for a plan. Returns `None` for transfers.
    pub(super) fn empty_offer(&self) -> Option<RegionOffer> {
        match self {
            Self::Transfers(_) => None,
            Self::Regions(_) => Some(RegionOffer { regions: Vec::new(), first_slot: 0 }),
        }
    }

    /// This rank's memory in this contribution: one element for each transfer or region.
    pub(super) fn memory(&self) -> Vec<Memory> {
        match self {
            Self::Transfers(transfers) => transfers.iter().map(|transfer| transfer.memory.clone()).collect(),
            Self::Regions(regions) => regions.iter().map(|(_, memory)| memory.clone()).collect(),
        }
    }

    /// Returns the memory that peers access: one list of [`MemorySpan`]s for each region, or for each transfer in which
    /// the peer copies. The error is the reason why this rank cannot share its memory.
    pub(super) fn exported(&self) -> Result<Vec<Vec<MemorySpan>>, String> {
        match self {
            Self::Transfers(transfers) => {
                let lent = transfers.iter().filter(|transfer| !transfer.part.copies());
                let retired = || "the block is of no segment of its pool".to_owned();
                lent.map(|transfer| transfer.memory.pieces().ok_or_else(retired)).collect()
            }
            Self::Regions(regions) => (0..)
                .zip(*regions)
                .map(|(at, (name, memory))| {
                    if regions[..at].iter().any(|(other, _)| other == name) {
                        return Err(format!(
                            "two regions of the name {name:?}: each region needs a name of its own"
                        ));
                    }
                    if memory.bytes() == 0 {
                        return Err(format!("region {name:?} has no bytes: expected at least 1"));
                    }
                    let retired = || format!("the memory of region {name:?} is of no segment of its pool");
                    memory.pieces().ok_or_else(retired)
                })
                .collect(),
        }
    }

    /// Adds this contribution to a record. `pieces` is the result of [`exported`](Self::exported). `slots` are the
    /// signal slots taken for this contribution. `ranks` are the members of the group, as ranks of the job. Returns
    /// `None` if [`ExchangeRecord::exports`] lacks the allocation of a piece, or if a slot number does not fit into 32
    /// bits.
    pub(super) fn fill(
        &self,
        record: &mut ExchangeRecord,
        pieces: &[Vec<MemorySpan>],
        slots: &Range<usize>,
        ranks: &[u32],
    ) -> Option<()> {
        let slot = |slot: usize| u32::try_from(slot).ok();
        let piece = |exports: &[SharedAllocation], piece: &MemorySpan| {
            let export = exports.iter().position(|export| export.id == piece.id)?;
            let (export, offset) = (u32::try_from(export).ok()?, piece.offset as u64);
            Some(MemoryPiece { export, offset, bytes: piece.bytes as u64 })
        };
        let all = |exports: &[SharedAllocation], pieces: &[MemorySpan]| -> Option<Vec<_>> {
            pieces.iter().map(|it| piece(exports, it)).collect()
        };
        match self {
            Self::Transfers(transfers) => {
                let mut lent = pieces.iter();
                for (transfer, at) in transfers.iter().zip(slots.clone()) {
                    let pieces = match transfer.part.copies() {
                        true => Vec::new(),
                        false => all(&record.exports, lent.next()?)?,
                    };
                    record.ends.push(End {
                        peer: peer_rank(transfer, ranks),
                        part: transfer.part,
                        bytes: transfer.memory.bytes() as u64,
                        pieces,
                        slot: slot(at)?,
                    });
                }
            }
            Self::Regions(regions) => {
                let region = |((name, _), pieces): (&(&str, Memory), &Vec<MemorySpan>)| {
                    let pieces = all(&record.exports, pieces)?;
                    Some(SharedRegion { name: (*name).to_owned(), pieces })
                };
                let regions = regions.iter().zip(pieces).map(region).collect::<Option<_>>()?;
                record.regions = Some(RegionOffer { regions, first_slot: slot(slots.start)? });
            }
        }
        Some(())
    }

    /// Returns the peer of each signal slot that was taken for this contribution, in the order of the slots. `members`
    /// are the members of the agreement without this rank. `ranks` are all members of the group. The arguments and the
    /// result contain ranks of the job.
    pub(super) fn peers(&self, members: &[u32], ranks: &[u32]) -> Vec<u32> {
        match self {
            Self::Transfers(transfers) => {
                transfers.iter().map(|transfer| peer_rank(transfer, ranks)).collect()
            }
            Self::Regions(_) => members.to_vec(),
        }
    }
}

/// Returns the peer as a rank of the job, or `u32::MAX` if `ranks` lacks the peer because the transfer was made for a
/// larger group. No member has the rank `u32::MAX`, so the agreement is refused.
fn peer_rank(transfer: &Transfer, ranks: &[u32]) -> u32 {
    ranks.get(transfer.peer).copied().unwrap_or(u32::MAX)
}

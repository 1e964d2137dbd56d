//! Routes: the parts of an [`Agreement`] that one rank needs. For a plan, these are the peers' ends of the rank's
//! transfers. For regions, they are the regions of each peer, and the slots (words of memory) for the signals between
//! the two ranks.

use std::collections::HashMap;

use super::{
    decide::Agreement,
    record::{AllocationId, ExchangeRecord, MemoryPiece},
};

/// A contiguous part of a peer's buffer, in one allocation of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemotePiece {
    /// The allocation.
    pub id: AllocationId,
    /// Offset of the piece in the allocation, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// The peer's end of one transfer of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The peer, as a rank of the job.
    pub peer: u32,
    /// The peer's buffer, if the rank copies: its pieces in the order of the buffer's bytes. Empty if the peer copies.
    pub remote: Vec<RemotePiece>,
    /// Index of the peer's slot: the words of the peer's memory into which the rank writes its signals.
    pub slot: u32,
}

/// One peer of a rank, and the slots for the signals between the rank and the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionRoute<'a> {
    /// The peer's record, which lists the peer's regions.
    pub peer: &'a ExchangeRecord,
    /// Index of the rank's slot, into which the peer writes its signals.
    pub own_slot: u32,
    /// Index of the peer's slot, into which the rank writes its signals.
    pub slot: u32,
}

impl Agreement {
    /// Returns the routes of the transfers of `rank`, in the order in which the rank lists them. Returns `None` if the
    /// rank is not a member, or if the peer's end or export of a transfer is missing. Does not check that the two ends
    /// of a transfer match in role and size, because [`decide`](super::decide()) has checked this before it returns an
    /// agreement.
    #[must_use]
    pub fn routes(&self, rank: u32) -> Option<Vec<Route>> {
        let record = |of: u32| self.records.iter().find(|record| record.rank == of);
        let mut met: HashMap<u32, usize> = HashMap::new();
        let route = |end: &super::End| {
            let peer = record(end.peer)?;
            let nth = met.entry(end.peer).or_default();
            let other = peer.with(rank).nth(*nth)?;
            *nth += 1;
            let remote = |&MemoryPiece { export, offset, bytes }: &MemoryPiece| {
                Some(RemotePiece { id: peer.exports.get(export as usize)?.id, offset, bytes })
            };
            let pieces = if end.part.copies() { &*other.pieces } else { &[] };
            let remote = pieces.iter().map(remote).collect::<Option<_>>()?;
            Some(Route { peer: end.peer, remote, slot: other.slot })
        };
        record(rank)?.ends.iter().map(route).collect()
    }

    /// Returns the routes from `rank` to each other member, in the order of the records. Returns `None` if the rank is
    /// not a member, or if there are other members and the agreement is on a plan.
    #[must_use]
    pub fn region_routes(&self, rank: u32) -> Option<Vec<RegionRoute<'_>>> {
        let own_at = self.records.iter().position(|record| record.rank == rank)?;
        let own = self.records.get(own_at)?;
        let route = |(at, peer)| {
            let (own_slot, slot) =
                (own.region_slot(own_at, at)?, ExchangeRecord::region_slot(peer, at, own_at)?);
            Some(RegionRoute { peer, own_slot, slot })
        };
        self.records.iter().enumerate().filter(|(at, _)| *at != own_at).map(route).collect()
    }
}

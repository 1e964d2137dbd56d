//! Routes: the parts of an agreement that one rank needs. For a plan, the peer's end of each transfer of the rank. For
//! regions, the regions of each peer.

use std::collections::HashMap;

use super::{
    decide::Agreement,
    record::{AllocationId, Record, RegionPiece},
};

/// The peer's end of one transfer of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The peer, as a rank of the job.
    pub peer: u32,
    /// The peer's memory, if the rank copies: the allocation, and the offset of the buffer in the allocation in bytes.
    /// `None` if the peer copies.
    pub remote: Option<(AllocationId, u64)>,
    /// Index of the peer's slot: the words of the peer's memory into which the rank writes its signals.
    pub slot: u32,
}

/// The regions of one peer of a rank, and the slots for the signals between the rank and the peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionRoute {
    /// The peer, as a rank of the job.
    pub peer: u32,
    /// Index of the rank's slot, into which the peer writes its signals.
    pub own_slot: u32,
    /// Index of the peer's slot, into which the rank writes its signals.
    pub slot: u32,
    /// The regions that the peer shares.
    pub regions: Vec<RoutedRegion>,
}

/// A region of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutedRegion {
    /// The name that the peer gave the region.
    pub name: String,
    /// The pieces of the region: allocation, offset in the allocation in bytes, and length in bytes.
    pub pieces: Vec<(AllocationId, u64, u64)>,
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
            let remote = match end.part.copies() {
                false => None,
                true => Some((peer.export_of(other)?.id, other.offset)),
            };
            Some(Route { peer: end.peer, remote, slot: other.slot })
        };
        record(rank)?.ends.iter().map(route).collect()
    }

    /// Returns the routes from `rank` to each other member, in the order of the records. Returns `None` if the rank is
    /// not a member, if the members agreed on transfers, or if a piece has an invalid export index.
    #[must_use]
    pub fn region_routes(&self, rank: u32) -> Option<Vec<RegionRoute>> {
        let place = self.records.iter().position(|record| record.rank == rank)?;
        let own = self.records.get(place)?;
        let route = |(at, peer): (usize, &Record)| {
            let piece = |piece: &RegionPiece| {
                let export = peer.exports.get(piece.export as usize)?;
                Some((export.id, piece.offset, piece.bytes))
            };
            let regions = peer.regions.as_ref()?.regions.iter().map(|region| {
                let pieces = region.pieces.iter().map(piece).collect::<Option<_>>()?;
                Some(RoutedRegion { name: region.name.clone(), pieces })
            });
            Some(RegionRoute {
                peer: peer.rank,
                own_slot: own.region_slot(place, at)?,
                slot: peer.region_slot(at, place)?,
                regions: regions.collect::<Option<_>>()?,
            })
        };
        self.records.iter().enumerate().filter(|(at, _)| *at != place).map(route).collect()
    }
}

//! Routes: the peer's side of a rank's transfers in an agreed plan, and the regions of its peers.

use std::collections::HashMap;

use super::{
    decide::Agreement,
    record::{AllocationId, Record, RegionPiece},
};

/// The information about the peer's end of one of a rank's transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The peer, as a rank of the job.
    pub peer: u32,
    /// The memory that this end accesses, if it copies: the peer's allocation, and the first byte in it.
    pub remote: Option<(AllocationId, u64)>,
    /// The peer's slot for this rank's signals.
    pub slot: u32,
}

/// The regions of one peer of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionRoute {
    /// The peer, as a rank of the job.
    pub peer: u32,
    /// The rank's slot for the peer's signals.
    pub own_slot: u32,
    /// The peer's slot for this rank's signals.
    pub slot: u32,
    /// The regions that the peer shares.
    pub regions: Vec<RoutedRegion>,
}

/// A region of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutedRegion {
    /// The name that the peer gave it.
    pub name: String,
    /// Its memory: allocation, first byte in it, and length in bytes.
    pub pieces: Vec<(AllocationId, u64, u64)>,
}

impl Agreement {
    /// Returns the routes of the transfers of `rank`, in their order. `None` if the rank is not in the plan, or if
    /// a transfer has no counterpart or no memory to access. [`decide`](super::decide()) refuses such transfers.
    /// Roles and sizes are not compared here.
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

    /// Returns the routes from `rank` to each other member, in the order of the records. `None` if the rank is not a
    /// member, if the members agreed on transfers, or if a piece names no export of its rank.
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

//! The agreement of the members of a group on the [regions](Regions) that they share.

use std::sync::Mutex;

use cuda_driver::DevicePtr;

use super::{
    super::{
        Exchange, Memory,
        contribution::Contribution,
        core::TransferEndpoint,
        handles::Open,
        meet::AgreedExchange,
        protocol::{MemoryPiece, RegionRoute, SharedRegion},
        slots::words,
    },
    Regions,
    state::{Peer, RegionInfo, RegionsState},
};
use crate::error::Error;

impl Exchange {
    /// Shares regions of this rank's memory with all members. `regions` has the name and the memory of each region; the
    /// names of a rank's regions must differ. Collective over the group: every member calls it with its own regions, or
    /// with an empty list. The members open all regions of each other in this call, so later transfers between them
    /// need no agreement and no store.
    ///
    /// `name` is the name of the set of regions. Sets of regions and plans of an exchange share one namespace: an
    /// earlier set or plan of this name becomes stale, and its later transfers fail.
    ///
    /// Each rank needs one free [channel](super::super::ExchangeOptions::channels) for each other member. The call
    /// selects channels with adjacent numbers. It fails if a rank has no such range of free channels.
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange). Refusals are for example
    /// [`OutOfReach`](super::super::ExchangeRefusal::OutOfReach) if a region has no handle that a member can open, and
    /// [`PeerPrepareFailed`](super::super::ExchangeRefusal::PeerPrepareFailed) if two regions of a rank have the same
    /// name, or if a region has no bytes.
    pub fn share_regions(&self, name: &str, regions: &[(&str, Memory)]) -> Result<Regions, Error> {
        let all: Vec<usize> = (0..self.group().world_size()).collect();
        self.share_regions_among(&all, name, regions)
    }

    /// Like [`share_regions`](Self::share_regions), but only `members` take part. `members` are ranks in the group, and
    /// include this rank. If two ranks both belong to several sets of members, they must make the calls for these sets
    /// in the same order, as for [`exchange_among`](Self::exchange_among).
    ///
    /// # Errors
    /// As [`share_regions`](Self::share_regions). [`ErrorKind::NotAMember`](crate::ErrorKind::NotAMember) if `members`
    /// lacks this rank, or contains a number that is not a rank of the group.
    pub fn share_regions_among(
        &self,
        members: &[usize],
        name: &str,
        regions: &[(&str, Memory)],
    ) -> Result<Regions, Error> {
        let contribution = Contribution::Regions(regions);
        self.meet(members, name, &contribution, |agreed| self.build_regions(agreed, regions))
    }

    /// Builds the agreed regions. Returns `None` in each of these cases:
    /// - The agreement does not state the peers of this rank and their slots ([`RegionRoute`]).
    /// - It states a [slot](super::super::slots) of this rank that this rank has not allocated for this call.
    /// - A region lies in an allocation of a peer that is not open.
    fn build_regions(&self, agreed: &AgreedExchange<'_>, regions: &[(&str, Memory)]) -> Option<Regions> {
        let shared = &self.owner.shared;
        let ranks = shared.info.global_ranks();
        let mut peers: Vec<Option<Peer>> = ranks.iter().map(|_| None).collect();
        for route in agreed.agreement.region_routes(shared.rank())? {
            let rank_in_group = ranks.iter().position(|rank| *rank == route.peer.rank)?;
            *peers.get_mut(rank_in_group)? = Some(self.build_peer(agreed, route, rank_in_group, regions)?);
        }
        self.make_current(agreed, peers.iter().flatten().map(|peer| &peer.core));
        let info =
            |(name, memory): &(&str, Memory)| RegionInfo::new(name, vec![(memory.ptr(), memory.bytes())]);
        let inner = RegionsState {
            owner: self.owner.clone(),
            name: agreed.plan.to_owned(),
            generation: agreed.agreement.generation,
            own: regions.iter().map(info).collect(),
            peers,
        };
        Some(Regions::new(inner))
    }

    /// Builds the state of the transfers with the peer of `route`, whose rank within the group is `rank_in_group`.
    fn build_peer(
        &self,
        agreed: &AgreedExchange<'_>,
        route: RegionRoute<'_>,
        rank_in_group: usize,
        regions: &[(&str, Memory)],
    ) -> Option<Peer> {
        let (shared, peer) = (&self.owner.shared, route.peer);
        let mut imports = Open::new();
        let mut piece = |piece: &MemoryPiece| -> Option<(DevicePtr, usize)> {
            let export = peer.exports.get(piece.export as usize)?;
            let base = agreed.import(peer.rank, export.id, &mut imports)?;
            Some((base + piece.offset, usize::try_from(piece.bytes).ok()?))
        };
        let region = |SharedRegion { name, pieces }: &SharedRegion| {
            Some(RegionInfo::new(name, pieces.iter().map(&mut piece).collect::<Option<_>>()?))
        };
        let infos = peer.regions.as_ref()?.regions.iter().map(region).collect::<Option<_>>()?;
        let own_slot = route.own_slot as usize;
        if !agreed.slots.contains(&own_slot) {
            return None;
        }
        let theirs = shared.slab.buffer_ptr(rank_in_group).ok()?;
        let (own, theirs) = (words(shared.slab(), own_slot), words(theirs, route.slot as usize));
        let endpoint = TransferEndpoint::new(peer.rank, own, theirs);
        let memory = Contribution::Regions(regions).memory();
        let core = self.core(agreed.name(), own_slot..own_slot + 1, vec![endpoint], memory, imports, true);
        Some(Peer { core, regions: infos, waits: Mutex::new(0) })
    }
}

//! Mapping of the members' memory in a [commit](crate::SymmetricPool::commit): offers this rank's new segments and
//! signal pad (memory through which the ranks' kernels signal each other) to the other members, and opens (maps) the
//! memory that they offer.

use std::sync::Arc;

use cuda_driver::{DevicePtr, graph::RelaxedCapture, vmm::PhysicalMemory};
use process_group::{error_text, store::Deadline};

use crate::{
    agreement::{MemberMemory, OfferedMemory, PeerOffer, Segment},
    pool::PoolMemory,
    rendezvous::{OwnPad, PeerBuffers, PeerGroup},
    sharing::{self, Offer, OpeningOutcome, Party, Shareable, Site},
};

/// The memory that this rank offers in one commit. The other members can open it until this value is dropped.
pub(super) struct OfferedPeers {
    group: Arc<PeerGroup>,
    offer: Offer,
    /// This rank's signal pad. `None` if the members have opened each other's pads in an earlier commit.
    pad: Option<OwnPad>,
    /// The address and the length in bytes of each new segment.
    segments: Vec<(DevicePtr, usize)>,
}

/// The memory of all members, as opened (mapped) by this rank.
pub struct OpenedPeers {
    pub(super) group: Arc<PeerGroup>,
    /// The number of the first of `segments` in the group's list of [mapped
    /// segments](crate::membership::MappedSegments). Each later segment has the next number.
    pub(super) first: u64,
    /// This rank's pad, and the pads of all members. `None` if the group has its pads already.
    pub(super) pads: Option<(OwnPad, Arc<PeerBuffers>)>,
    /// The opened memory of each segment that the group commits, in the order of the segments.
    pub(super) segments: Vec<Arc<PeerBuffers>>,
}

impl OfferedPeers {
    /// Offers the new segments `segments` of `memory` to the members of `group`. Also offers this rank's pad if the
    /// group has no pads yet. `next` is the number that this rank proposes for the first of `segments` in the group's
    /// list of [mapped segments](crate::membership::MappedSegments). Returns the offered memory, and its description
    /// for this rank's [record](crate::agreement::CommitRecord) (its message to the members). On failure, returns a
    /// description of the problem as the error.
    pub(super) fn make(
        group: Arc<PeerGroup>,
        memory: &PoolMemory,
        segments: &[Segment],
        next: u64,
    ) -> Result<(Self, PeerOffer), String> {
        let context = &group.context;
        // The export must neither join an open capture nor invalidate it.
        let _relaxed = RelaxedCapture::enter(context.driver());
        let mut offer = Offer::new()?;
        let pad = match group.has_pads() {
            true => None,
            false => Some(
                OwnPad::make(context, group.info.world_size(), None).map_err(|error| error_text(&*error))?,
            ),
        };
        let exported_pad = match &pad {
            Some(pad) => Some(offer.export(pad.memory.shareable())?),
            None => None,
        };
        let ranges: Vec<(DevicePtr, usize)> = {
            let arena = memory.arena();
            let range = |it: &Segment| {
                let segment = arena.segments().get(it.ordinal as usize)?;
                Some((DevicePtr(segment.memory.address), segment.bytes as usize))
            };
            segments.iter().filter_map(range).collect()
        };
        let mut exports = Vec::new();
        for (begin, bytes) in &ranges {
            let physical = PhysicalMemory::retain(context, *begin, *bytes);
            let physical = physical.map_err(|error| error_text(&error))?;
            exports.push(offer.export(Shareable::Virtual(physical))?);
        }
        let site = Site { endpoint: offer.endpoint(), ..group.site.clone() };
        let memory = OfferedMemory { site, next, pad: exported_pad, segments: exports };
        Ok((Self { group, offer, pad, segments: ranges }, PeerOffer::Offered { memory }))
    }

    /// Opens the memory that the members offer. `members` has the offers of all members of the group. On failure,
    /// returns an outcome that describes it. This rank must post the outcome to the members in the commit's
    /// [agreement](crate::agreement).
    pub(super) fn open(
        &mut self,
        members: &[MemberMemory],
        deadline: Deadline,
    ) -> Result<OpenedPeers, OpeningOutcome> {
        let failed = |cause: String| OpeningOutcome::Failed { cause };
        let (context, info) = (&self.group.context, &self.group.info);
        let _relaxed = RelaxedCapture::enter(context.driver());
        let party = |rank: &u32| {
            let member = members.iter().find(|member| member.rank == *rank)?;
            let MemberMemory { memory, .. } = member;
            Some(Party { rank: *rank, site: &memory.site, exports: memory.exports() })
        };
        let parties: Option<Vec<Party<'_>>> = info.global_ranks().iter().map(party).collect();
        let parties = parties.ok_or_else(|| failed("the plan lacks a member".to_owned()))?;
        let count = parties.first().map_or(0, |party| party.exports.len());
        let wanted = |_, _| (0..count).collect();
        let pad_count = usize::from(self.pad.is_some());
        let name = |_, number: usize| match number.checked_sub(pad_count) {
            Some(segment) => format!("new segment {segment}"),
            None => "the signal pad".to_owned(),
        };
        let own_index = info.rank();
        let mut opened = sharing::open(context, &self.offer, own_index, &parties, wanted, name, deadline)?;
        let mut buffers = |number: usize, own: DevicePtr, bytes: usize| {
            let opened = (0..parties.len()).map(|at| opened.remove(&(at, number))).collect();
            PeerBuffers::mapped(context, own, bytes, opened)
                .map(Arc::new)
                .map_err(|error| failed(error_text(&error)))
        };
        let own_pad = self.pad.as_ref().map(|pad| (pad.memory.ptr(), pad.memory.bytes()));
        let pads = own_pad.map(|(own, bytes)| buffers(0, own, bytes)).transpose()?;
        let segments = (usize::from(pads.is_some())..count).zip(&self.segments);
        let segments = segments.map(|(number, (own, bytes))| buffers(number, *own, *bytes));
        let segments = segments.collect::<Result<_, _>>()?;
        let pads = self.pad.take().zip(pads);
        let first = members.iter().map(|member| member.memory.next).max().unwrap_or(0);
        Ok(OpenedPeers { group: self.group.clone(), first, pads, segments })
    }
}

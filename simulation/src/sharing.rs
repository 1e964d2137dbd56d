//! Exports the memory of ranks in their [meetings](super), and opens the memory that other members export. To *export*
//! memory is to make a description of it by which other members can *open* (map) it. A [`Party`] is a member of the
//! meeting, with its location and its exports.

use std::collections::HashMap;

use cuda_driver::sys::CUresult;
use memory_sharing::{self, Export, Exports, Imported, OpeningOutcome, Party, Shareable, Site};
use symm_agreement::{
    Agreed, MemberMemory, OfferedMemory, PeerMappings, PeerOffer, Segment, rendezvous::RendezvousRecord,
};
use symm_mem::SymmetricPool;

use crate::{
    device::{Device, Devices},
    pools::memory_of,
    rank::Task,
    trouble::Trouble,
    violation::{Violation, bail, ensure},
    work::{Answer, Work},
    world::World,
};

/// Opened memory, by the index of the party among all parties and the index of the export among the party's exports.
type Opened = HashMap<(usize, usize), Imported>;

impl World {
    /// Opens the memory that the other members of a rendezvous export in `records`, and reads the
    /// [number](Work::Meet::identity) at the start of each. Schedules the outcome and the numbers as an answer for the
    /// [state machine](Work) of the rank's rendezvous.
    pub(crate) fn share(
        &mut self,
        rank: u32,
        token: u64,
        records: &[RendezvousRecord],
    ) -> Result<(), Violation> {
        let device = self.ranks[rank as usize].device.clone();
        let own = records.iter().position(|record| record.rank == rank).unwrap_or(0);
        let parties: Vec<Party<'_>> = records
            .iter()
            .map(|it| Party { rank: it.rank, site: &it.site, exports: vec![&it.export] })
            .collect();
        let answer = match self.open_exports(rank, &device, own, &parties, |_, _| vec![0])? {
            Ok(opened) => {
                let imported = (0..records.len()).filter_map(|peer| opened.get(&(peer, 0)));
                let numbers = imported.map(|imported| device.read(imported.base().0));
                Answer::Shared(OpeningOutcome::Mapped, Some(numbers.collect::<Result<_, _>>()?))
            }
            Err(outcome) => Answer::Shared(outcome, None),
        };
        self.answer_soon(rank, token, answer);
        Ok(())
    }

    /// Opens memory of the other members for `device`, by [`memory_sharing::open_exports`]. `own` is the index of the
    /// rank in `parties`. `wanted` gets the indices of another party and of this rank, and returns the indices of the
    /// exports of that party that this rank opens. If the memory cannot be opened, the outcome is the inner error.
    /// Under [`Trouble::CannotMap`], the driver of the culprit (the rank that the trouble concerns) fails to map the
    /// memory.
    pub(crate) fn open_exports(
        &self,
        rank: u32,
        device: &Device,
        own: usize,
        parties: &[Party<'_>],
        wanted: impl Fn(usize, usize) -> Vec<usize>,
    ) -> Result<Result<Opened, OpeningOutcome>, Violation> {
        let Some(exports) = self.exports.get(&rank) else { bail!("rank {rank} opens memory in no meeting") };
        let devices = self.devices.as_ref().filter(|_| self.scenario.trouble_of(rank) == Trouble::CannotMap);
        let code = CUresult::CUDA_ERROR_OUT_OF_MEMORY.0;
        devices.map_or(Ok(()), |it| it.fail_next("cuMemMap", code))?;
        let name = |_, number| format!("export {number}");
        let none = HashMap::new();
        let opened =
            memory_sharing::open_exports(device.context(), exports, own, parties, wanted, name, none);
        devices.into_iter().for_each(Devices::fail_no_more);
        Ok(opened)
    }

    /// Opens some of the memory that the members of a commit export in `agreed`, and returns the outcome.
    ///
    /// To save computing time, the rank maps only one segment: the first new segment of the next member. From the
    /// mapping, it reads the segment's [identity](crate::library::Extent::identity), which must be that of the rank's
    /// own first new segment.
    pub(crate) fn open_segments(&self, rank: u32, agreed: &Agreed) -> Result<OpeningOutcome, Violation> {
        let state = &self.ranks[rank as usize];
        let (PeerMappings::Offered { members }, Some(Task { work: Work::Commit { segments, .. }, .. })) =
            (&agreed.peers, &state.task)
        else {
            return Ok(OpeningOutcome::Failed { cause: "nothing is offered".to_owned() });
        };
        let parties: Vec<Party<'_>> = members
            .iter()
            .map(|MemberMemory { rank, memory }| Party {
                rank: *rank,
                site: &memory.site,
                exports: memory.exports(),
            })
            .collect();
        let own = members.iter().position(|member| member.rank == rank).unwrap_or(0);
        let wanted = |from, to| if from == (to + 1) % members.len() { vec![0] } else { Vec::new() };
        let opened = match self.open_exports(rank, &state.device, own, &parties, wanted)? {
            Ok(opened) => opened,
            Err(outcome) => return Ok(outcome),
        };
        let own = segments.first().and_then(|first| state.extent(first.ordinal));
        for ((next, _), imported) in &opened {
            let found = state.device.read(imported.base().0)?;
            ensure!(
                own.is_some_and(|own| own.identity == found),
                "rank {rank} opens a segment of rank {}, and finds {found:#x} in it, expected {own:x?}",
                members[*next].rank
            );
        }
        Ok(OpeningOutcome::Mapped)
    }
}

/// Returns the location of a rank as other ranks see it. All ranks are in one process.
pub(crate) fn site(rank: u32) -> Site {
    Site { process: 1, ..Site::simulated(rank) }
}

/// Exports the memory of `device` that begins at `address`.
pub(crate) fn export(exports: &mut Exports, device: &Device, address: u64) -> Result<Export, Violation> {
    let Some(memory) = device.physical(address) else { bail!("there is no memory at {address:#x}") };
    exports.add(Shareable::Virtual(memory)).map_err(Violation)
}

/// Exports the new segments of a commit. The ranks export no signal pads (memory by which other members signal to a
/// rank).
pub(crate) fn offered(
    rank: u32,
    pool: &SymmetricPool,
    device: &Device,
    new: &[Segment],
    exports: &mut Exports,
) -> PeerOffer {
    let arena = memory_of(pool).arena();
    let export = |it: &Segment| {
        let memory = arena.segments().get(it.ordinal as usize).map(|segment| segment.memory);
        export(exports, device, memory.map_or(0, |memory| memory.address))
    };
    match new.iter().map(export).collect() {
        Ok(segments) => {
            PeerOffer::Offered { memory: OfferedMemory { site: site(rank), next: 0, pad: None, segments } }
        }
        Err(Violation(cause)) => PeerOffer::Missing { cause },
    }
}

//! A rank's rendezvous for its first block. The ranks are threads of one process, and share their memory through a
//! table, [`Offers`].

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    agreement::{GroupId, PoolId},
    rendezvous::protocol::{Ending, Readiness, Record, RendezvousProtocol, RendezvousRefusal, Subject},
};
use bootstrap::agreement::{Agreement, Input, Member, Output};
use cuda_driver::vmm::{Mapping, PhysicalMemory};
use gpu_sim::sched;

use super::{
    rank::{Ended, Killed, MARK, Rank, Said, mark},
    scenario::Trouble,
};
use crate::{
    agreement::hash::chain,
    sharing::{self, Export, Handle, Outcome, Site},
};

/// Key of shared memory: the group's uid, the round of the rendezvous in the group, and the rank that owns the memory.
type Whose = (u64, u64, u32);

/// Memory that ranks share during a rendezvous.
#[derive(Default)]
pub(super) struct Offers(Mutex<BTreeMap<Whose, PhysicalMemory>>);

impl Offers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Whose, PhysicalMemory>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the memory of a dead rank.
    pub(super) fn forget(&self, rank: u32) {
        self.lock().retain(|(.., owner), _| *owner != rank);
    }
}

/// Mappings of the segments that contain the peers' first blocks.
type Peers = Vec<(u32, Mapping)>;

impl Rank {
    /// Runs a rendezvous of a group.
    pub(super) fn meet(&mut self, uid: u64, deadline: Duration) -> Result<Ended, Killed> {
        let begun = sched::now();
        let Some(member) = self.members.get_mut(&uid) else { panic!("the rank is in the group") };
        let (members, round) = (member.group.members.clone(), member.meetings);
        member.meetings += 1;
        let record = self.record(uid, round, &members);
        let whose = (uid, round, self.rank);
        let own = self.first_block().and_then(|(place, _)| {
            self.source.physical(self.arena.segments()[place.ordinal as usize].memory.address)
        });
        self.offers.lock().extend(own.map(|memory| (whose, memory)));
        let (name, patience) = (record.prefix(), deadline / 2);
        let member = Member {
            name,
            rank: self.rank,
            members: members.clone(),
            generation: 0,
            patience,
            deadline: Some(deadline),
        };
        let machine = Agreement::<RendezvousProtocol>::new(member, record, u64::from(self.rank));
        let mut machine = machine.expect("the rank is a member");
        let mut output = machine.begin(sched::now());
        let mut peers = Peers::new();
        let conclusion = loop {
            self.step()?;
            let input = match output {
                Output::Done(conclusion) => break conclusion,
                Output::Store(ask) => Input::Store(self.ask(ask, &members)),
                Output::Act { plan, .. } => Input::Acted(self.map(uid, round, &plan, &mut peers)),
            };
            output = machine.step(input, sched::now());
        };
        self.offers.lock().remove(&whose);
        let ended = sched::now();
        self.remove(conclusion.read);
        let result = conclusion.result.map_err(|ending| Ending::of(ending, RendezvousRefusal::from));
        let right = result.is_ok().then(|| peers.iter().all(|peer| self.finds_its_mark(peer)));
        let (rank, said, lacking) = (self.rank, Said::Meet(result), self.lacking);
        Ok(Ended {
            rank,
            group: uid,
            members,
            round,
            said,
            begun,
            ended,
            deadline,
            refused: false,
            right,
            lacking,
        })
    }

    /// Returns this rank's record for the others.
    fn record(&self, uid: u64, number: u64, members: &[u32]) -> Record {
        let block =
            self.first_block().map(|(place, _)| (place, &self.arena.segments()[place.ordinal as usize]));
        let readiness = match block {
            Some(_) => Readiness::Ready,
            None => Readiness::Failed { cause: "no memory for the block".to_owned() },
        };
        let pool = PoolId { domain: 1, generation: 1, instance: 1, pool: 0 };
        let subject = block.map_or(Subject::Allocation, |(place, segment)| Subject::Pool {
            pool,
            ordinal: place.ordinal,
            log: segment.log.into(),
        });
        Record {
            group: GroupId { uid, epoch: 0 },
            life: 1,
            number,
            rank: self.rank,
            members: chain(0, members.iter().map(|rank| u64::from(*rank))),
            readiness,
            shared_devices: false,
            subject,
            offset: block.map_or(0, |(place, _)| place.offset),
            bytes: self.scenario.requests(self.rank)[0],
            mapped: None,
            site: Site { process: 1, ..Site::simulated(self.rank) },
            export: Export {
                bytes: block.map_or(0, |(_, segment)| segment.bytes),
                handle: Handle::DESCRIPTOR,
                token: self.rank.into(),
            },
        }
    }

    /// Maps the memory that the other members share, and adds the mappings to `peers`. Returns the outcome. If memory of
    /// members is gone, the outcome names these members.
    fn map(&self, uid: u64, round: u64, records: &[Record], peers: &mut Peers) -> Outcome {
        if self.scenario.trouble == Trouble::CannotMap && self.rank == self.scenario.culprit {
            return Outcome::Failed { cause: "no addresses".to_owned() };
        }
        let mut gone = Vec::new();
        for record in records.iter().filter(|record| record.rank != self.rank) {
            let lent = self.offers.lock().get(&(uid, round, record.rank)).cloned();
            match lent {
                Some(memory) => {
                    let mapping = sharing::map(&self.context, &memory, record.export.bytes as usize);
                    peers.push((record.rank, mapping.expect("there are addresses")));
                }
                None => gone.push(record.rank),
            }
        }
        if gone.is_empty() { Outcome::Mapped } else { Outcome::Alone { gone } }
    }

    /// Returns true if the first block of a peer contains that peer's [`mark`]. The peer's block has the same offset in
    /// its segment as this rank's first block.
    fn finds_its_mark(&self, (rank, mapping): &(u32, Mapping)) -> bool {
        let Some((place, _)) = self.first_block() else { return false };
        let mut found = [0];
        // SAFETY: the peer writes its mark only before its first rendezvous, so nobody writes it now.
        let read =
            unsafe { self.context.copy_to_host(&mut found, mapping.ptr() + place.offset as usize + MARK) };
        read.is_ok() && found == [mark(*rank)]
    }
}

//! Patterns of messages, each with the work that it can run concurrently.

use cuda_driver::{Context, DevicePtr, Stream, StreamFlags};
use process_group::{
    ProcessGroup,
    comm::DataType,
    group::{Batch, Buffer},
};
use symm_mem::{CommitOptions, Domain, Geometry, SymmetricPool, rendezvous::SymmetricMemory};

use super::rank::Rank;
use crate::bench::programs::support::{Result, timed};

/// Bytes of a large message.
const LARGE: usize = 256 << 20;
/// Bytes of a small message, and the number of them in sequence.
const SMALL: usize = 64 << 10;
const STEPS: usize = 64;
/// The most peers that one rank sends to at once.
const PEERS: usize = 3;

/// A pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    /// Rank 0 sends rank 1 a large message.
    OneWay,
    /// Ranks 0 and 1 send each other a large message.
    Opposite,
    /// Rank 0 sends three others a large message each.
    Fan,
    /// Small messages go down the ranks, and answers come back up: a pipeline's activations and gradients.
    Pipeline,
}

pub(crate) const CASES: [Case; 4] = [Case::OneWay, Case::Opposite, Case::Fan, Case::Pipeline];

impl Case {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::OneWay => "256 MiB in one direction",
            Self::Opposite => "256 MiB in both directions",
            Self::Fan => "256 MiB to each of three peers",
            Self::Pipeline => "64 KiB down and up, a step of 64",
        }
    }

    /// True for patterns whose messages depend on each other; false for copies that begin at once.
    pub(crate) fn is_in_order(self) -> bool {
        self == Self::Pipeline
    }

    /// Returns the reason if the pattern is impossible with this number of ranks.
    pub(crate) fn why_not(self, ranks: usize) -> Option<String> {
        (self == Self::Fan && ranks <= PEERS)
            .then(|| format!("{} ranks are needed, here are {ranks}", PEERS + 1))
    }
}

/// Transport of the messages.
pub(crate) enum Carrier {
    Group(ProcessGroup),
    /// A group's messages in batches.
    Batches(ProcessGroup),
    /// Copies by the senders alone, without notification: the speed of the links.
    CopyEngine,
}

/// The cases that are possible with this number of ranks and this carrier.
pub(super) fn possible(rank: &Rank<'_>, carrier: &Carrier) -> impl Iterator<Item = Case> {
    let (ranks, bare) = (rank.machine.ranks, matches!(carrier, Carrier::CopyEngine));
    CASES.into_iter().filter(move |case| case.why_not(ranks).is_none() && !(bare && case.is_in_order()))
}

/// One message of a rank.
struct Message {
    out: bool,
    peer: usize,
    buffer: Buffer,
    /// Index of the rank's stream.
    stream: usize,
}

/// The memory and the streams of one rank.
pub(crate) struct Messages {
    /// The memory is a block of this pool. Only groups that commit the pool use that.
    pub(super) pool: SymmetricPool,
    memory: SymmetricMemory,
    own: DevicePtr,
    streams: [Stream; PEERS],
}

impl Messages {
    /// Collective: all members of the group must call it.
    pub(crate) fn new(context: &Context, group: &ProcessGroup) -> Result<Self> {
        let stream = || Stream::new(context, StreamFlags::NON_BLOCKING);
        let pool = SymmetricPool::new(&Domain::of(group)?, context, Geometry::default())?;
        let block = pool.allocate((PEERS * LARGE) as u64)?;
        pool.commit(group, CommitOptions::default().windows(false))?;
        let memory = pool.symmetric_memory(&block, group.id())?;
        let own = memory.buffer_ptr(group.rank())?;
        Ok(Self { pool, memory, own, streams: [stream()?, stream()?, stream()?] })
    }

    fn buffer(&self, place: usize, bytes: usize) -> Buffer {
        Buffer::new(self.own + place * bytes, bytes, DataType::U8)
    }

    /// Returns the messages of `rank` of `size`, in the order of its calls. No two ranks wait for each other's next
    /// message, so this order cannot deadlock on one communicator either.
    fn plan(&self, case: Case, rank: usize, size: usize) -> Vec<Message> {
        let large =
            |out, peer, place| Message { out, peer, buffer: self.buffer(place, LARGE), stream: place };
        let small =
            |out, peer, place| Message { out, peer, buffer: self.buffer(place, SMALL), stream: place % 2 };
        match (case, rank) {
            (Case::OneWay, 0) => vec![large(true, 1, 0)],
            (Case::OneWay, 1) => vec![large(false, 0, 1)],
            (Case::Opposite, 0) => vec![large(true, 1, 0), large(false, 1, 1)],
            (Case::Opposite, 1) => vec![large(false, 0, 1), large(true, 0, 0)],
            (Case::Fan, 0) => (0..PEERS).map(|place| large(true, place + 1, place)).collect(),
            (Case::Fan, 1..=PEERS) => vec![large(false, 0, 0)],
            (Case::Pipeline, _) => {
                let (before, after) = (rank.checked_sub(1), Some(rank + 1).filter(|after| *after < size));
                let step = || {
                    let down = before.map(|peer| small(false, peer, 0)).into_iter();
                    let down = down.chain(after.map(|peer| small(true, peer, 2)));
                    let up = after.map(|peer| small(false, peer, 1)).into_iter();
                    down.chain(up.chain(before.map(|peer| small(true, peer, 3))))
                };
                (0..STEPS).flat_map(|_| step()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Runs every case once, which connects the ranks.
    pub(crate) fn warm(&self, rank: &Rank<'_>, carrier: &Carrier) -> Result<()> {
        for case in possible(rank, carrier) {
            self.time(rank, case, carrier)?;
        }
        Ok(())
    }

    /// Returns ns until all work is done on this rank, per message, or per step for a pipeline.
    pub(crate) fn time(&self, rank: &Rank<'_>, case: Case, carrier: &Carrier) -> Result<f64> {
        let plan = self.plan(case, rank.rank, rank.machine.ranks);
        // In a pipeline one step is a batch; in other patterns all messages of a rank are one batch.
        let steps = if case == Case::Pipeline { STEPS } else { 1 };
        rank.barrier.wait();
        let (us, ()) = timed(|| {
            match carrier {
                Carrier::Group(group) => {
                    plan.iter().try_for_each(|message| message.launch(group, &self.streams))?;
                }
                Carrier::Batches(group) => {
                    for step in plan.chunks((plan.len() / steps).max(1)) {
                        group.batch(&self.streams[0], |batch| {
                            step.iter().try_for_each(|message| message.queue(batch))
                        })?;
                    }
                }
                Carrier::CopyEngine => {
                    for Message { peer, buffer, stream, .. } in plan.iter().filter(|message| message.out) {
                        let to = self.memory.buffer_ptr(*peer)? + stream * LARGE;
                        // SAFETY: the peer's memory is as long as this rank's, and mapped; both go when the streams have
                        // been waited for, and nobody reads what is copied.
                        unsafe { self.streams[*stream].copy(to, buffer.ptr, buffer.bytes()) }?;
                    }
                }
            }
            Ok(self.streams.iter().try_for_each(Stream::synchronize)?)
        })?;
        rank.barrier.wait();
        Ok(us * 1e3 / steps as f64)
    }
}

impl Message {
    fn queue(&self, batch: &Batch<'_>) -> process_group::group::Result<()> {
        // SAFETY: the memory is as long, and goes when the streams have been waited for; messages that are received into
        // one place are of one case, whose bytes nobody reads.
        unsafe {
            if self.out { batch.send(self.buffer, self.peer) } else { batch.recv(self.buffer, self.peer) }
        }
    }

    fn launch(&self, group: &ProcessGroup, streams: &[Stream; PEERS]) -> process_group::group::Result<()> {
        let stream = &streams[self.stream];
        // SAFETY: as above.
        let work = unsafe {
            if self.out {
                group.raw().send(self.buffer, self.peer, stream)
            } else {
                group.raw().recv(self.buffer, self.peer, stream)
            }
        };
        work.map(drop)
    }
}

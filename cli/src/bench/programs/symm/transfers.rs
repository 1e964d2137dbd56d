//! Transfers from rank 0 to rank 1, and in both directions at once: by an exchanged plan, by copy engines alone, by
//! NCCL's messages. A plan uses two buffers in turn: while one is filled, its receiver releases the other.

use cuda_driver::{DevicePtr, Stream, StreamFlags};
use process_group::comm::{Communicator, DataType};
use symm_mem::{
    exchange::{Exchange, ExchangeOptions, Memory, Part, Plan},
    rendezvous::{CudaAllocator, PeerAllocator, Rendezvous, SymmetricMemory},
};

use super::rank::Rank;
use super::signals::PATIENCE;
use crate::bench::programs::support::{Result, far, timed};

const SIZES: [usize; 6] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20];

/// Transfer methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Copies by the sender into its peer's memory, without notification.
    CopyEngine,
    /// Copies by the receiver out of its peer's memory, without notification.
    CopyEngineReading,
    /// The sender copies, once the receiver is ready.
    Put,
    /// The receiver copies, once the sender is ready.
    Get,
    /// Messages of one communicator.
    Messages,
    /// Messages of two communicators, one in each direction.
    TwoCommunicators,
}

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::CopyEngine => "copy engine",
            Self::CopyEngineReading => "copy engine, reading",
            Self::Put => "put",
            Self::Get => "get",
            Self::Messages => "ncclSend/Recv",
            Self::TwoCommunicators => "ncclSend/Recv, two communicators",
        }
    }
}

const ONE_WAY: [Way; 5] = [Way::CopyEngine, Way::CopyEngineReading, Way::Put, Way::Get, Way::Messages];
const BOTH_WAYS: [Way; 6] =
    [Way::CopyEngine, Way::CopyEngineReading, Way::Put, Way::Get, Way::Messages, Way::TwoCommunicators];

/// Receive buffers, used in turn.
const BUFFERS: usize = 2;

pub(crate) struct Transfers {
    /// One part to send from, and the receive buffers.
    memory: SymmetricMemory,
    exchange: Exchange,
    /// Only on ranks 0 and 1: for each size and buffer the puts of both, then the gets from both.
    plan: Option<Plan>,
    /// One for sends, one for receives.
    streams: [Stream; 2],
}

impl Transfers {
    pub(crate) fn new(rank: &Rank<'_>, rendezvous: &Rendezvous) -> Result<Self> {
        let most = *sizes(rank).last().ok_or("no sizes")?;
        let memory = CudaAllocator::new(rank.context)?.allocate((1 + BUFFERS) * most)?;
        let all = Memory::from(&memory);
        let memory = rendezvous.rendezvous(&memory)?;
        let exchange = Exchange::new(rendezvous, ExchangeOptions::default())?;
        let plan = if rank.rank < 2 {
            let mut transfers = Vec::new();
            let places = sizes(rank).iter().flat_map(|bytes| (0..BUFFERS).map(|buffer| (*bytes, buffer)));
            for (bytes, buffer) in places {
                let (source, target) = (all.part(0, bytes)?, all.part((1 + buffer) * most, bytes)?);
                for (to, from) in [(Part::PutInitiator, Part::PutTarget), (Part::GetBy, Part::GetFrom)] {
                    for sender in 0..2 {
                        let (part, memory) =
                            if sender == rank.rank { (to, &source) } else { (from, &target) };
                        transfers.push(exchange.transfer(1 - rank.rank, part, memory)?);
                    }
                }
            }
            Some(exchange.exchange_among(&[0, 1], "transfers", &transfers)?)
        } else {
            None
        };
        let stream = || Stream::new(rank.context, StreamFlags::NON_BLOCKING);
        let transfers = Self { memory, exchange, plan, streams: [stream()?, stream()?] };
        // The first messages connect the ranks.
        transfers.round_of(rank, 0, false)?;
        Ok(transfers)
    }

    /// Releases the peers' memory.
    pub(crate) fn close(self) {
        drop((self.plan, self.memory));
        self.exchange.close(far());
    }

    pub(crate) fn round(&self, rank: &Rank<'_>, round: usize) -> Result<()> {
        self.round_of(rank, round, true)
    }

    fn round_of(&self, rank: &Rank<'_>, round: usize, told: bool) -> Result<()> {
        for (at, bytes) in sizes(rank).iter().copied().enumerate() {
            for (directions, ways) in [("one way", &ONE_WAY[..]), ("both ways", &BOTH_WAYS)] {
                // The order of the methods rotates, because each finds the state that the previous one left.
                for turn in 0..ways.len() {
                    let way = ways[(round + turn) % ways.len()];
                    let ns = self.time(rank, way, at, directions == "both ways")?;
                    if told {
                        rank.say(|| format!("{} {directions}\t{}\t{ns:.0}", size(bytes), way.name()));
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns ns of a transfer of size number `at` in each direction; ranks other than 0 and 1 only take part in the
    /// barriers.
    fn time(&self, rank: &Rank<'_>, way: Way, at: usize, both: bool) -> Result<f64> {
        let bytes = sizes(rank)[at];
        let count = if rank.embedded { 2 } else { ((1 << 30) / bytes).clamp(8, 64) };
        rank.barrier.wait();
        let (us, ()) = timed(|| {
            if let Some(plan) = &self.plan {
                let transfer = Transfer { all: self, plan, rank, way, at, bytes };
                let senders = if both { 0..2 } else { 0..1 };
                for sender in senders.clone() {
                    transfer.offer(sender, count)?;
                }
                for turn in 0..count {
                    // Messages of one communicator have the same order on both sides.
                    for sender in senders.clone() {
                        if sender == rank.rank {
                            transfer.send(turn, count)?
                        } else {
                            transfer.receive(turn, count)?
                        }
                    }
                }
            }
            self.streams.iter().try_for_each(Stream::synchronize)?;
            // The last transfer has arrived on both ranks.
            rank.barrier.wait();
            Ok(())
        })?;
        self.plan.as_ref().map_or(Ok(()), Plan::check)?;
        Ok(us * 1e3 / count as f64)
    }
}

/// One transfer, from the side of one rank.
struct Transfer<'a> {
    all: &'a Transfers,
    plan: &'a Plan,
    rank: &'a Rank<'a>,
    way: Way,
    /// Index of its size.
    at: usize,
    bytes: usize,
}

impl Transfer<'_> {
    fn peer(&self) -> usize {
        1 - self.rank.rank
    }

    /// Returns the address of a rank's send part (0) or one of its receive buffers (from 1 on).
    fn part(&self, rank: usize, part: usize) -> Result<DevicePtr> {
        Ok(self.all.memory.buffer_ptr(rank)? + part * (self.all.memory.bytes() / (1 + BUFFERS)))
    }

    /// Returns the communicator for messages from a rank.
    fn communicator(&self, sender: usize) -> &Communicator {
        // In both communicators these are ranks 0 and 1.
        let second = self.way == Way::TwoCommunicators && sender == 1;
        if second { self.rank.groups[0].communicator() } else { self.rank.world.communicator() }
    }

    /// Index in the plan of a rank's transfer in a turn.
    fn place(&self, sender: usize, turn: usize) -> usize {
        4 * (BUFFERS * self.at + turn % BUFFERS) + 2 * usize::from(self.way == Way::Get) + sender
    }

    /// The side that does not copy offers all buffers to its peer before any copy: an offer during a copy may be seen
    /// only after it.
    fn offer(&self, sender: usize, count: usize) -> Result<()> {
        let lender = match self.way {
            Way::Put => 1 - sender,
            Way::Get => sender,
            _ => return Ok(()),
        };
        if lender != self.rank.rank {
            return Ok(());
        }
        let stream = &self.all.streams[usize::from(lender != sender)];
        for turn in 0..BUFFERS.min(count) {
            // SAFETY: all parts stay until the streams are done, and nobody uses them in between.
            unsafe { self.plan.ready(self.place(sender, turn), stream) }?;
        }
        Ok(())
    }

    /// The side that does not copy: waits for the turn's buffer, and offers it to the peer for a later turn.
    ///
    /// # Safety
    /// As for [`Plan::ready`] and [`Plan::wait`].
    unsafe fn lend(&self, sender: usize, turn: usize, count: usize, stream: &Stream) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe {
            self.plan.wait(self.place(sender, turn), stream, PATIENCE)?;
            if turn + BUFFERS < count {
                self.plan.ready(self.place(sender, turn), stream)?;
            }
        }
        Ok(())
    }

    fn send(&self, turn: usize, count: usize) -> Result<()> {
        let (mine, peer, stream) = (self.rank.rank, self.peer(), &self.all.streams[0]);
        let (from, to) = (self.part(mine, 0)?, self.part(peer, 1)?);
        // SAFETY: all parts are as long and stay until the streams are done; nobody reads what is written before that,
        // and nobody writes what is read.
        unsafe {
            match self.way {
                Way::CopyEngine => stream.copy(to, from, self.bytes)?,
                Way::CopyEngineReading => {}
                Way::Put => self.plan.put(self.place(mine, turn), stream, PATIENCE)?,
                Way::Get => self.lend(mine, turn, count, stream)?,
                Way::Messages | Way::TwoCommunicators => {
                    self.communicator(mine).send(from, self.bytes, DataType::U8, peer, stream)?;
                }
            }
        }
        Ok(())
    }

    fn receive(&self, turn: usize, count: usize) -> Result<()> {
        let (mine, peer, stream) = (self.rank.rank, self.peer(), &self.all.streams[1]);
        let (from, to) = (self.part(peer, 0)?, self.part(mine, 1)?);
        // SAFETY: as above.
        unsafe {
            match self.way {
                Way::CopyEngine => {}
                Way::CopyEngineReading => stream.copy(to, from, self.bytes)?,
                Way::Put => self.lend(peer, turn, count, stream)?,
                Way::Get => self.plan.get(self.place(peer, turn), stream, PATIENCE)?,
                Way::Messages | Way::TwoCommunicators => {
                    self.communicator(peer).recv(to, self.bytes, DataType::U8, peer, stream)?;
                }
            }
        }
        Ok(())
    }
}

fn sizes(rank: &Rank<'_>) -> &'static [usize] {
    if rank.embedded { &SIZES[..3] } else { &SIZES }
}

fn size(bytes: usize) -> String {
    if bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) }
}

//! Memory from rank 0 to rank 1 and both ways at once: by signals and copy engines, by copy engines alone, by NCCL's messages.

use cuda_driver::{DevicePtr, Stream, StreamFlags};
use process_group::comm::{Communicator, DataType};
use symm_mem::rendezvous::{CudaAllocator, PeerAllocator, Rendezvous, SymmetricMemory};

use super::{
    Rank,
    signals::PATIENCE,
    support::{Result, timed},
};

const SIZES: [usize; 6] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20];

/// How a rank sends, and another receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Copies alone: nobody is told.
    CopyEngine,
    /// The sender copies, then signals.
    Put,
    /// The sender signals, then the receiver copies.
    Get,
    /// Messages of one communicator.
    Messages,
    /// Of two, one in each direction.
    TwoCommunicators,
}

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::CopyEngine => "copy engine",
            Self::Put => "put",
            Self::Get => "get",
            Self::Messages => "ncclSend/Recv",
            Self::TwoCommunicators => "ncclSend/Recv, two communicators",
        }
    }
}

const ONE_WAY: [Way; 4] = [Way::CopyEngine, Way::Put, Way::Get, Way::Messages];
const BOTH_WAYS: [Way; 5] = [Way::CopyEngine, Way::Put, Way::Get, Way::Messages, Way::TwoCommunicators];

pub(crate) struct Transfers {
    /// One half to send from, one to receive into.
    memory: SymmetricMemory,
    /// For what is sent, and for what is received.
    streams: [Stream; 2],
}

impl Transfers {
    pub(crate) fn new(rank: &Rank<'_>, rendezvous: &Rendezvous) -> Result<Self> {
        let memory = CudaAllocator::new(rank.context)?.allocate(2 * sizes(rank).last().unwrap_or(&0))?;
        let memory = rendezvous.rendezvous(&memory)?;
        let stream = || Stream::new(rank.context, StreamFlags::NON_BLOCKING);
        let transfers = Self { memory, streams: [stream()?, stream()?] };
        // Messages connect with the first.
        transfers.round_of(rank, 0, false)?;
        Ok(transfers)
    }

    pub(crate) fn round(&self, rank: &Rank<'_>, round: usize) -> Result<()> {
        self.round_of(rank, round, true)
    }

    fn round_of(&self, rank: &Rank<'_>, round: usize, told: bool) -> Result<()> {
        for bytes in sizes(rank).iter().copied() {
            for (directions, ways) in [("one way", &ONE_WAY[..]), ("both ways", &BOTH_WAYS)] {
                // Who comes first changes: what it finds is left by another.
                for turn in 0..ways.len() {
                    let way = ways[(round + turn) % ways.len()];
                    let ns = self.time(rank, way, bytes, directions == "both ways")?;
                    if told {
                        rank.say(|| format!("{} {directions}\t{}\t{ns:.0}", size(bytes), way.name()));
                    }
                }
            }
        }
        Ok(())
    }

    /// ns of a transfer of so many bytes in each direction; others than ranks 0 and 1 look on.
    fn time(&self, rank: &Rank<'_>, way: Way, bytes: usize, both: bool) -> Result<f64> {
        let count = if rank.embedded { 2 } else { ((1 << 30) / bytes).clamp(4, 64) };
        rank.barrier.wait();
        let (us, ()) = timed(|| {
            if rank.rank < 2 {
                let transfer = Transfer { all: self, rank, way, bytes };
                for _ in 0..count {
                    // Messages of one communicator are in one order on both sides.
                    for sender in if both { 0..2 } else { 0..1 } {
                        if sender == rank.rank { transfer.send()? } else { transfer.receive()? }
                    }
                }
            }
            self.streams.iter().try_for_each(Stream::synchronize)?;
            // The last has come where it was to come, on both ranks.
            rank.barrier.wait();
            Ok(())
        })?;
        self.memory.check()?;
        Ok(us * 1e3 / count as f64)
    }
}

/// One transfer, from the side of one rank.
struct Transfer<'a> {
    all: &'a Transfers,
    rank: &'a Rank<'a>,
    way: Way,
    bytes: usize,
}

impl Transfer<'_> {
    fn peer(&self) -> usize {
        1 - self.rank.rank
    }

    /// Where a rank sends from (0) or receives into (1).
    fn half(&self, rank: usize, half: usize) -> Result<DevicePtr> {
        Ok(self.all.memory.buffer_ptr(rank)? + half * (self.all.memory.bytes() / 2))
    }

    /// The communicator of what goes from a rank.
    fn communicator(&self, sender: usize) -> &Communicator {
        // Both have ranks 0 and 1 as such.
        let second = self.way == Way::TwoCommunicators && sender == 1;
        if second { self.rank.groups[0].communicator() } else { self.rank.world.communicator() }
    }

    /// A signal from one rank to the other: of its own channel for each, so that directions do not wait for each other.
    fn channel(&self, sender: usize) -> u32 {
        2 + sender as u32
    }

    fn send(&self) -> Result<()> {
        let (mine, peer, memory, stream) =
            (self.rank.rank, self.peer(), &self.all.memory, &self.all.streams[0]);
        let (from, to) = (self.half(mine, 0)?, self.half(peer, 1)?);
        // SAFETY: both halves are as long and stay until the streams are done; nobody reads what is written before that.
        unsafe {
            match self.way {
                Way::CopyEngine => stream.copy(to, from, self.bytes)?,
                Way::Put => {
                    stream.copy(to, from, self.bytes)?;
                    memory.put_signal(stream, peer, self.channel(mine), PATIENCE)?;
                }
                Way::Get => memory.put_signal(stream, peer, self.channel(mine), PATIENCE)?,
                Way::Messages | Way::TwoCommunicators => {
                    self.communicator(mine).send(from, self.bytes, DataType::U8, peer, stream)?;
                }
            }
        }
        Ok(())
    }

    fn receive(&self) -> Result<()> {
        let (mine, peer, memory, stream) =
            (self.rank.rank, self.peer(), &self.all.memory, &self.all.streams[1]);
        let to = self.half(mine, 1)?;
        // SAFETY: as above.
        unsafe {
            match self.way {
                Way::CopyEngine => {}
                Way::Put => memory.wait_signal(stream, peer, self.channel(peer), PATIENCE)?,
                Way::Get => {
                    memory.wait_signal(stream, peer, self.channel(peer), PATIENCE)?;
                    stream.copy(to, self.half(peer, 0)?, self.bytes)?;
                }
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

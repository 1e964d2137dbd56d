//! Collectives: the parameters of a call, and the data movement through the staging chunks.
//!
//! The data moves in rounds of one chunk. In each round, the ranks that provide data stage it, all ranks wait for
//! all, and the ranks that receive data read it. Staging has room for two rounds, so one wait per round is enough: a
//! rank that stages round k + 2 has seen all ranks arrive for round k + 1, which they do after reading round k.
//! Reductions fold in rank order, so all ranks and all chunkings give the same bits. [`Kind::AllReduce`] and
//! [`Kind::Reduce`] let each rank reduce its slice of the chunk and publish the result in a third buffer.

use std::fmt;
use std::ops::Range;

use super::comm::Comm;
use super::error::{Failure, Interrupted};
use super::reduce::{Element, Op, reduce, scale};
use super::shm::{CHUNK, Plane};
use crate::memory::View;

/// The kind of collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    Reduce,
    AllToAll,
    Gather,
    Scatter,
}

impl Kind {
    const NAMES: [&str; 8] = [
        "ncclAllReduce",
        "ncclBroadcast",
        "ncclAllGather",
        "ncclReduceScatter",
        "ncclReduce",
        "ncclAlltoAll",
        "ncclGather",
        "ncclScatter",
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// True if the collective has a root.
    fn rooted(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    pub(crate) fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }
}

/// The factor of [`Op::PreMulSum`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Factor {
    /// One element, in the first bytes.
    Value(u64),
    /// The address of one element, which is read when the call runs.
    At(u64),
}

/// The parameters of a call without its buffers. All must be equal on all ranks, except the factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) kind: Kind,
    pub(crate) element: Element,
    pub(crate) op: Op,
    /// For [`Op::PreMulSum`]: the factor of this rank's elements. Each rank has its own.
    pub(crate) factor: Option<Factor>,
    pub(crate) root: usize,
    /// Elements, as the call counts them: one rank's share in gathers and scatters.
    pub(crate) count: usize,
}

impl Shape {
    /// The parameters as words to compare between ranks; parameters that the kind does not use are zero.
    pub(crate) fn words(&self) -> [u64; 5] {
        let op = if self.kind.reduces() { self.op as u64 } else { 0 };
        let root = if self.kind.rooted() { self.root as u64 } else { 0 };
        [self.kind as u64, self.element as u64, op, root, self.count as u64]
    }

    /// Refuses a count whose size in bytes overflows.
    pub(crate) fn check(&self, comm: &Comm) -> Result<(), Failure> {
        let bytes =
            self.count.checked_mul(self.element.size()).and_then(|share| share.checked_mul(comm.size));
        match bytes {
            Some(_) => Ok(()),
            None => Err(Failure::argument(format!("{self}: more bytes than memory has"))),
        }
    }

    /// Formats the words of another rank as text.
    pub(crate) fn describe(words: &[u64; 5]) -> String {
        let kind = Kind::NAMES.get(words[0] as usize).copied().unwrap_or("an unknown collective");
        let element =
            Element::ALL.get(words[1] as usize).map_or("?".into(), |e| format!("{e:?}").to_lowercase());
        let op = Op::ALL
            .get(words[2] as usize)
            .map_or("premultiplied sum".into(), |op| format!("{op:?}").to_lowercase());
        format!("{kind} of {} {element} ({op}, root {})", words[4], words[3])
    }

    /// Bytes of the send buffer and of the receive buffer of `rank`.
    pub(crate) fn lengths(&self, rank: usize, size: usize) -> (usize, usize) {
        let share = self.count * self.element.size();
        let root = rank == self.root;
        match self.kind {
            Kind::AllReduce => (share, share),
            Kind::Broadcast => (if root { share } else { 0 }, share),
            Kind::AllGather => (share, share * size),
            Kind::ReduceScatter => (share * size, share),
            Kind::Reduce => (share, if root { share } else { 0 }),
            Kind::AllToAll => (share * size, share * size),
            Kind::Gather => (share, if root { share * size } else { 0 }),
            Kind::Scatter => (if root { share * size } else { 0 }, share),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Self::describe(&self.words()))
    }
}

/// Moves the data of a collective on which all ranks agree; `factor` is this rank's resolved factor.
pub(crate) fn run(
    comm: &Comm,
    shape: &Shape,
    factor: Option<u64>,
    send: &View,
    recv: &View,
) -> Result<(), Interrupted> {
    let mover = Mover { comm, shape, factor, send, recv };
    if comm.size == 1 {
        mover.alone();
        return Ok(());
    }
    match shape.kind {
        Kind::AllReduce | Kind::Reduce => mover.reduce_and_share(),
        _ => mover.pass(),
    }
}

struct Mover<'a> {
    comm: &'a Comm,
    shape: &'a Shape,
    factor: Option<u64>,
    send: &'a View,
    recv: &'a View,
}

impl Mover<'_> {
    /// A communicator of one rank copies; a sum or average of one value is that value.
    fn alone(&self) {
        if let Some(factor) = self.factor {
            let mut products = vec![0; self.share()];
            self.send.read(0, &mut products);
            scale(&mut products, self.shape.element, factor);
            self.recv.write(0, &products);
            return;
        }
        if self.send.as_ptr() != self.recv.as_ptr() {
            self.recv.copy_from(self.send);
        }
    }

    fn size(&self) -> usize {
        self.comm.size
    }

    fn is_root(&self) -> bool {
        self.comm.rank == self.shape.root
    }

    /// Bytes of one rank's share of the buffers.
    fn share(&self) -> usize {
        self.shape.count * self.shape.element.size()
    }

    fn meet(&self) -> Result<(), Interrupted> {
        self.comm.barrier(Plane::Stream, self.shape.kind.name())
    }

    /// Copies `range` of the send buffer to `at` in this rank's staging chunk.
    fn stage(&self, round: usize, range: Range<usize>, at: usize) {
        let shared = self.comm.shared();
        let place = shared.layout().staging(self.comm.rank, round) + at;
        // SAFETY: our staging chunk is ours to write until we arrive for this round: all have read the last round
        // of this parity, since they arrived for the one between.
        let chunk = unsafe { shared.bytes_mut(place, range.len()) };
        self.send.read(range.start, chunk);
        if let Some(factor) = self.factor {
            scale(chunk, self.shape.element, factor);
        }
    }

    /// Returns `len` bytes at `at` of the chunk that `rank` staged.
    fn staged(&self, rank: usize, round: usize, at: usize, len: usize) -> &[u8] {
        let shared = self.comm.shared();
        // SAFETY: everybody has arrived for this round, so the chunk is written; its rank writes it again only when
        // we have arrived for the next round.
        unsafe { shared.bytes(shared.layout().staging(rank, round) + at, len) }
    }

    /// All-reduce and reduce: each rank reduces its slice of every chunk, then the receiving ranks take the whole.
    /// Round k + 1 is staged while round k is reduced, so one wait per round is enough.
    fn reduce_and_share(&self) -> Result<(), Interrupted> {
        let Shape { element, op, .. } = *self.shape;
        let shared = self.comm.shared();
        let total = self.share();
        let chunk = |round: usize| round * CHUNK..total.min((round + 1) * CHUNK);
        let rounds = total.div_ceil(CHUNK);
        self.stage(0, chunk(0), 0);
        self.meet()?;
        for round in 0..rounds {
            let whole = chunk(round).len() / element.size();
            let cut = |rank: usize| whole * rank / self.size() * element.size();
            let slice = cut(self.comm.rank)..cut(self.comm.rank + 1);
            let inputs: Vec<&[u8]> =
                (0..self.size()).map(|rank| self.staged(rank, round, slice.start, slice.len())).collect();
            let results = shared.layout().results(round);
            // SAFETY: this slice of the results is ours to write until we arrive; all have read it as it was two
            // rounds ago, since they arrived for the one between.
            let output = unsafe { shared.bytes_mut(results + slice.start, slice.len()) };
            reduce(output, &inputs, element, op);
            if round + 1 < rounds {
                self.stage(round + 1, chunk(round + 1), 0);
            }
            self.meet()?;
            if self.shape.kind == Kind::AllReduce || self.is_root() {
                let range = chunk(round);
                // SAFETY: everybody has arrived, so all slices are written, and nobody writes them again before we
                // have arrived twice more.
                self.recv.write(range.start, unsafe { shared.bytes(results, range.len()) });
            }
        }
        Ok(())
    }

    /// All other collectives: some ranks stage one piece, or one piece for every rank, and some ranks take pieces.
    fn pass(&self) -> Result<(), Interrupted> {
        let kind = self.shape.kind;
        let (size, own, root) = (self.size(), self.comm.rank, self.shape.root);
        let slotted = matches!(kind, Kind::ReduceScatter | Kind::AllToAll | Kind::Scatter);
        let gives = !matches!(kind, Kind::Broadcast | Kind::Scatter) || self.is_root();
        let slots = if slotted { size } else { 1 };
        // Whole elements of the widest type, for any number of ranks.
        let piece = CHUNK / slots / 8 * 8;
        let share = self.share();
        let mut result = Vec::new();
        for round in 0..share.div_ceil(piece) {
            let range = round * piece..share.min((round + 1) * piece);
            if gives {
                for slot in 0..slots {
                    let from = slot * share;
                    self.stage(round, from + range.start..from + range.end, slot * piece);
                }
            }
            self.meet()?;
            let at = if slotted { own * piece } else { 0 };
            match kind {
                Kind::ReduceScatter => {
                    let inputs: Vec<&[u8]> =
                        (0..size).map(|rank| self.staged(rank, round, at, range.len())).collect();
                    result.resize(range.len(), 0);
                    reduce(&mut result, &inputs, self.shape.element, self.shape.op);
                    self.recv.write(range.start, &result);
                }
                Kind::AllGather | Kind::AllToAll => self.take_all(round, at, &range),
                Kind::Gather if self.is_root() => self.take_all(round, at, &range),
                Kind::Gather => {}
                _ => self.recv.write(range.start, self.staged(root, round, at, range.len())),
            }
        }
        Ok(())
    }

    /// Copies a piece from every rank into that rank's share of the receive buffer.
    fn take_all(&self, round: usize, at: usize, range: &Range<usize>) {
        for rank in 0..self.size() {
            self.recv.write(rank * self.share() + range.start, self.staged(rank, round, at, range.len()));
        }
    }
}

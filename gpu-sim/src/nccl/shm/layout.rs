//! Memory layout of a communicator's shared memory.

use super::CARD_WORDS;

/// Bytes of one staging chunk. It is small enough that the chunks of a few ranks stay in the caches.
pub(crate) const CHUNK: usize = 512 << 10;

/// Bytes in flight between one ordered pair of ranks.
pub(crate) const PIPE: usize = 128 << 10;

const LINE: usize = 64;
const PAGE: usize = 4096;

/// The two independent sets of barriers and cards: host calls and stream work run concurrently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plane {
    Host,
    Stream,
}

/// Byte offsets for a communicator of some size.
///
/// ```text
/// header | per plane and rank: phase, two cards | per pair: words of a pipe | staging | results | pipes
/// ```
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    size: usize,
    pairs: usize,
    staging: usize,
    results: usize,
    pipes: usize,
    bytes: usize,
}

/// Bytes of one rank's words on a plane.
const SEAT: usize = LINE + (2 * CARD_WORDS * 8).next_multiple_of(LINE);
/// Bytes of the words of one pipe: the sender's lines and the receiver's.
const PAIR: usize = 4 * LINE;

impl Layout {
    pub(super) const MAGIC: usize = 0;
    pub(super) const SIZE: usize = 8;
    pub(super) const ID: usize = 16;
    /// One more than the last rank whose device faulted; 0 for none.
    pub(crate) const CASUALTY: usize = 24;
    pub(super) const SIGNAL: usize = LINE;
    const SEATS: usize = 2 * LINE;

    pub(super) fn new(size: usize) -> Self {
        let pairs = Self::SEATS + 2 * size * SEAT;
        let staging = (pairs + size * size * PAIR).next_multiple_of(PAGE);
        let results = staging + 2 * size * CHUNK;
        let pipes = results + 2 * CHUNK;
        let bytes = pipes + size * size * PIPE;
        Self { size, pairs, staging, results, pipes, bytes }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Offset of the bulk bytes, which follow all words.
    pub(super) fn bulk(&self) -> usize {
        self.staging
    }

    /// A rank's phase word on a plane.
    pub(crate) fn phase(&self, plane: Plane, rank: usize) -> usize {
        debug_assert!(rank < self.size);
        Self::SEATS + (plane as usize * self.size + rank) * SEAT
    }

    /// A rank's word that is not zero once the rank has left for good.
    pub(crate) fn departed(&self, rank: usize) -> usize {
        self.phase(Plane::Host, rank) + 8
    }

    /// Offset of a rank's invitation to a new communicator: its purpose, and the id's two words.
    pub(crate) fn invitation(&self, rank: usize) -> usize {
        self.phase(Plane::Host, rank) + 16
    }

    /// A rank's card of a phase. Cards of two successive phases have separate slots.
    pub(crate) fn card(&self, plane: Plane, rank: usize, phase: u64) -> usize {
        self.phase(plane, rank) + LINE + (phase % 2) as usize * CARD_WORDS * 8
    }

    /// The sender's words of a pair: messages posted, bytes produced, two descriptors of two words.
    pub(crate) fn sender(&self, from: usize, to: usize) -> usize {
        debug_assert!(from < self.size && to < self.size);
        self.pairs + (from * self.size + to) * PAIR
    }

    /// The receiver's words of a pair: like the sender's, with bytes consumed.
    pub(crate) fn receiver(&self, from: usize, to: usize) -> usize {
        self.sender(from, to) + 2 * LINE
    }

    /// Number of signals sent from one rank to the other.
    pub(crate) fn signals(&self, from: usize, to: usize) -> usize {
        self.sender(from, to) + LINE
    }

    /// 1 if a captured signal between these ranks has not been waited for, otherwise 0.
    pub(crate) fn graph_signals(&self, from: usize, to: usize) -> usize {
        self.signals(from, to) + 8
    }

    /// A rank's staging chunk for a round; even and odd rounds have separate chunks.
    pub(crate) fn staging(&self, rank: usize, round: usize) -> usize {
        debug_assert!(rank < self.size);
        self.staging + (rank * 2 + round % 2) * CHUNK
    }

    /// The chunk of results for a round; even and odd rounds have separate chunks. Every rank writes its slice.
    pub(crate) fn results(&self, round: usize) -> usize {
        self.results + round % 2 * CHUNK
    }

    /// The bytes of a pipe.
    pub(crate) fn pipe(&self, from: usize, to: usize) -> usize {
        debug_assert!(from < self.size && to < self.size);
        self.pipes + (from * self.size + to) * PIPE
    }
}

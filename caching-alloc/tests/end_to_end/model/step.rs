//! Operations of a program.

use super::super::common::MIB;

/// Number of streams that programs use. The last one carries collectives.
pub(super) const STREAMS: u64 = 4;

/// The pools that programs use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Default,
    /// One that may lend to the default pool, or borrow from it.
    Private,
    /// One that never splits.
    Whole,
    /// One whose pages move.
    Remapped,
    /// The graph pool. Only captures use it.
    Graph,
}

impl Which {
    pub(super) const ALL: [Self; 5] =
        [Self::Default, Self::Private, Self::Whole, Self::Remapped, Self::Graph];
    /// The number of pools without the graph pool.
    const OPEN: u64 = 4;

    fn open(bits: &mut Bits) -> Self {
        Self::ALL[bits.below(Self::OPEN) as usize]
    }
}

/// A step of a scenario. An index selects one of the existing objects, modulo their number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Allocates from this pool. `None` means the pool to which this thread's requests for the stream are routed.
    Allocate {
        bytes: u64,
        stream: u64,
        pool: Option<Which>,
    },
    Free(usize),
    /// A stream uses a block.
    Record(usize, u64),
    /// All work of a stream ends.
    Complete(u64),
    /// A capture that is not announced to the allocator begins or ends.
    Capture(u64, bool),
    /// A capture of the stream with the graph pool begins, or ends if it is running. With true, the memory of its
    /// graph is kept.
    Graph(u64, bool),
    DropGraph(usize),
    /// A graph uses a block.
    UseInGraph(usize),
    /// The graph and its executables are dropped.
    EndUse(usize),
    Freeze(Which, bool),
    Trim(u64),
    Route(Which),
    Unroute(usize),
    /// The segments of a block are held.
    Hold(usize),
    LetGo(usize),
    /// A pool is dropped, and another one takes its place.
    Renew(Which),
    /// The memory limit changes. 0 means no limit.
    Limit(u64),
    /// A tracker is attached, and the one of the last `Attach` is detached.
    Attach,
    /// The reader polls for new entries.
    CatchUp,
}

impl Step {
    /// Decodes a step. Every number is a step, and small numbers give simple steps.
    pub(super) fn of(number: u64) -> Self {
        let bits = &mut Bits(number);
        match bits.below(132) {
            0..=46 => Self::Allocate { bytes: bytes(bits), stream: bits.below(STREAMS), pool: pool(bits) },
            47..=91 => Self::Free(bits.index()),
            92..=99 => Self::Record(bits.index(), bits.below(STREAMS)),
            100..=106 => Self::Complete(bits.below(STREAMS)),
            107..=108 => Self::Capture(bits.below(STREAMS), bits.below(3) == 0),
            109..=111 => Self::Graph(bits.below(STREAMS), bits.below(2) == 0),
            112 => Self::DropGraph(bits.index()),
            113..=114 => {
                Self::Freeze(Which::ALL[bits.below(Which::ALL.len() as u64) as usize], bits.below(3) == 0)
            }
            115 => Self::Trim(bits.below(2) * bits.below(64) * MIB),
            116 => Self::Route(Which::open(bits)),
            117..=118 => Self::Unroute(bits.index()),
            119..=120 => Self::Hold(bits.index()),
            121..=123 => Self::LetGo(bits.index()),
            124 => Self::Renew([Which::Private, Which::Whole, Which::Remapped][bits.below(3) as usize]),
            125 => Self::Limit(bits.below(48) * MIB),
            126 => Self::Attach,
            127 => Self::CatchUp,
            128..=129 => Self::UseInGraph(bits.index()),
            _ => Self::EndUse(bits.index()),
        }
    }
}

fn bytes(bits: &mut Bits) -> u64 {
    match bits.below(8) {
        0..=1 => 512 * (1 + bits.below(8)),
        2 => 1 + bits.below(4096),
        3..=4 => 1 + bits.below(MIB),
        5..=6 => MIB + bits.below(4 * MIB),
        // Multiples of the step of segments and limits.
        _ => 2 * MIB * (1 + bits.below(3)),
    }
}

fn pool(bits: &mut Bits) -> Option<Which> {
    (bits.below(10) < 7).then(|| Which::open(bits))
}

/// A number, consumed in parts.
struct Bits(u64);

impl Bits {
    fn below(&mut self, bound: u64) -> u64 {
        let part = self.0 % bound;
        self.0 /= bound;
        part
    }

    fn index(&mut self) -> usize {
        self.below(1 << 16) as usize
    }
}

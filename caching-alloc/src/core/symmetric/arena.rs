//! The arena: placement, log and segments together.

use std::borrow::Cow;
use std::panic::Location;
use std::sync::Arc;

use super::journal::{Journal, SymmetricSegment};
use super::log::{Log, OperationKind};
use super::{Geometry, Placement, SEGMENT_STEP};
use crate::core::heap::{Heap, List, State};
use crate::core::size::{SizeError, UNIT, bytes_of, units_for};
use crate::core::source::{self, SegmentMemory, SegmentSource, SourceError};

/// One list for all sizes: blocks of a symmetric pool are few, and its segments precious.
const LIST: List = 0;

/// A symmetric pool's placement, over memory of one source.
#[derive(Debug)]
pub struct SymmetricArena {
    heap: Heap,
    /// What each block's owner asked for, in bytes, by the heap's names.
    requested: Vec<u64>,
    journal: Journal,
    source: Arc<dyn SegmentSource>,
    /// How many captures are under way.
    frozen: u32,
    /// Memory of retired segments that has not gone back.
    withheld: Vec<SegmentMemory>,
}

/// A block that was placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Where, on every rank.
    pub placement: Placement,
    /// Where, on this rank.
    pub address: u64,
    /// Its length: what was asked for, rounded up to 512 bytes.
    pub bytes: u64,
    /// Whether it lies in a segment that was made for it.
    pub grown: bool,
}

/// Why an arena could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SymmetricError {
    /// A size that no block can have.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// The arena is frozen and has no room.
    #[error(
        "the symmetric pool is frozen for capture and has no room for {wanted} bytes: a new segment of {missing} bytes \
         would be needed; run the captured region once before the capture, or reserve the memory before freezing"
    )]
    PoolWouldGrowDuringCapture {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes of the segment that is missing.
        missing: u64,
    },
    /// The source did not give a segment. The log counts the request as refused: ranks on which it succeeded are
    /// told apart from this one.
    #[error("segment {ordinal} of a symmetric pool, {bytes} bytes, could not be made")]
    Source {
        /// The segment's ordinal.
        ordinal: u32,
        /// Its size.
        bytes: u64,
        /// What the source said.
        #[source]
        source: SourceError,
    },
    /// The source's segments cannot be multiples of 2 MiB only.
    #[error(
        "the source makes segments in steps of {granularity} bytes; a symmetric pool needs steps that divide {SEGMENT_STEP}"
    )]
    Granularity {
        /// The source's granularity.
        granularity: u64,
    },
    /// Something was freed that is not a block.
    #[error("no block of the symmetric pool begins at segment {}, offset {}; was it freed before?", placement.ordinal, placement.offset)]
    NotAllocated {
        /// What was to be freed.
        placement: Placement,
    },
    /// A segment that is to go has blocks.
    #[error("segment {ordinal} of the symmetric pool still has {blocks} blocks")]
    SegmentInUse {
        /// The segment's ordinal.
        ordinal: u32,
        /// How many blocks.
        blocks: u64,
    },
    /// There is no such segment (any more).
    #[error("the symmetric pool has no segment {ordinal}, or has retired it")]
    NoSuchSegment {
        /// The ordinal.
        ordinal: u32,
    },
}

impl SymmetricArena {
    /// An empty arena over `source`; it makes its first segment when something is asked for.
    ///
    /// # Errors
    /// [`SymmetricError::Granularity`] if the source cannot make segments in steps of 2 MiB.
    pub fn new(source: Arc<dyn SegmentSource>, geometry: Geometry) -> Result<Self, SymmetricError> {
        let granularity = source.granularity();
        if granularity == 0 || !SEGMENT_STEP.is_multiple_of(granularity) {
            return Err(SymmetricError::Granularity { granularity });
        }
        let journal = Journal::new(geometry);
        let (heap, requested, withheld) = (Heap::with_tables(), Vec::new(), Vec::new());
        Ok(Self { heap, requested, journal, source, frozen: 0, withheld })
    }

    /// Places a block of `bytes`.
    ///
    /// # Errors
    /// [`SymmetricError::Size`], [`SymmetricError::PoolWouldGrowDuringCapture`], [`SymmetricError::Source`]. After
    /// any of them the arena is as it was, but for the last two its log says so.
    #[track_caller]
    #[inline]
    pub fn allocate(&mut self, bytes: u64) -> Result<Placed, SymmetricError> {
        self.place(bytes, Location::caller())
    }

    /// Places a block of `bytes` and logs it with the program's own word for it, which error texts then show. Tags
    /// are not compared between ranks.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    #[track_caller]
    pub fn allocate_tagged(
        &mut self,
        bytes: u64,
        tag: impl Into<Cow<'static, str>>,
    ) -> Result<Placed, SymmetricError> {
        let placed = self.place(bytes, Location::caller());
        // A size that no block can have is not logged.
        if !matches!(placed, Err(SymmetricError::Size(_))) {
            self.journal.tag(tag.into());
        }
        placed
    }

    /// Takes a block back. Its memory is reused from the next request on: the caller has ordered its uses before
    /// that, on every rank.
    ///
    /// # Errors
    /// [`SymmetricError::NotAllocated`]; nothing is changed or logged then.
    #[track_caller]
    pub fn free(&mut self, placement: Placement) -> Result<(), SymmetricError> {
        let Placement { ordinal, offset } = placement;
        let block = offset
            .is_multiple_of(UNIT)
            .then(|| self.heap.block_at(ordinal, u32::try_from(offset / UNIT).ok()?))
            .flatten()
            .filter(|id| self.heap.block(*id).state == State::Used)
            .ok_or(SymmetricError::NotAllocated { placement })?;
        let bytes = self.requested[block as usize];
        self.heap.free(block);
        self.journal.log(OperationKind::Free, bytes, Some(placement), Location::caller());
        Ok(())
    }

    /// From now on nothing grows: a request without room is an error. For capture.
    pub fn freeze(&mut self) {
        self.frozen += 1;
    }

    /// Ends [`freeze`](Self::freeze).
    pub fn unfreeze(&mut self) {
        self.frozen = self.frozen.saturating_sub(1);
    }

    /// Whether it is frozen.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.frozen > 0
    }

    /// Takes segment `ordinal` out of use: nothing is placed there any more, its number is not used again, and the
    /// log says so. Its memory stays until [`give_back`](Self::give_back).
    ///
    /// # Errors
    /// [`SymmetricError::NoSuchSegment`], [`SymmetricError::SegmentInUse`]; nothing is changed or logged then.
    #[track_caller]
    pub fn retire(&mut self, ordinal: u32) -> Result<(), SymmetricError> {
        let segment = self.segments().get(ordinal as usize).copied();
        let segment = segment.filter(|it| !it.retired).ok_or(SymmetricError::NoSuchSegment { ordinal })?;
        if !self.heap.remove_segment(ordinal) {
            return Err(SymmetricError::SegmentInUse { ordinal, blocks: self.blocks_in(ordinal) });
        }
        let begin = Placement { ordinal, offset: 0 };
        self.journal.log(OperationKind::Retire, segment.bytes, Some(begin), Location::caller());
        self.journal.retire(ordinal);
        self.withheld.push(segment.memory);
        Ok(())
    }

    /// Gives the memory of all retired segments back, if it has not gone yet. The caller has made sure that nothing
    /// reaches them: no window, no peer, no work on the device.
    ///
    /// # Errors
    /// What the source did not take, with what it said; the rest has gone back.
    pub fn give_back(&mut self) -> Result<(), Vec<(SegmentMemory, SourceError)>> {
        let give = |memory: SegmentMemory| self.source.release(&memory).err().map(|error| (memory, error));
        let failed: Vec<_> = std::mem::take(&mut self.withheld).into_iter().filter_map(give).collect();
        if failed.is_empty() { Ok(()) } else { Err(failed) }
    }

    /// How many blocks a segment has.
    #[must_use]
    pub fn blocks_in(&self, ordinal: u32) -> u64 {
        self.heap.blocks(ordinal).filter(|(_, block)| block.state == State::Used).count() as u64
    }

    /// Where the blocks begin that lie in the `bytes` at `place`, or partly.
    #[must_use]
    pub fn blocks_over(&self, place: Placement, bytes: u64) -> Vec<Placement> {
        let end = place.offset.saturating_add(bytes.max(1));
        self.heap
            .blocks(place.ordinal)
            .map(|(_, block)| block)
            .skip_while(|block| bytes_of(block.offset) + bytes_of(block.units) <= place.offset)
            .take_while(|block| bytes_of(block.offset) < end)
            .filter(|block| block.state == State::Used)
            .map(|block| Placement { ordinal: block.segment, offset: bytes_of(block.offset) })
            .collect()
    }

    /// All segments, by ordinal, with those that were retired. Only ever appended to.
    #[must_use]
    pub fn segments(&self) -> &[SymmetricSegment] {
        self.journal.segments()
    }

    /// What was asked so far.
    #[must_use]
    pub fn log(&self) -> &Log {
        self.journal.state()
    }

    /// How segments grow.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.journal.geometry()
    }

    /// Where the memory comes from.
    #[must_use]
    pub fn source(&self) -> &Arc<dyn SegmentSource> {
        &self.source
    }

    /// The address of a place on this rank, if it lies inside a segment.
    #[must_use]
    pub fn address(&self, placement: Placement) -> Option<u64> {
        let segment = self.segments().get(placement.ordinal as usize)?;
        (placement.offset < segment.bytes && !segment.retired)
            .then(|| segment.memory.address + placement.offset)
    }

    /// Blocks that are placed, by place, with the bytes that were asked for.
    pub fn blocks(&self) -> impl Iterator<Item = (Placement, u64)> {
        self.segments().iter().flat_map(|segment| self.heap.blocks(segment.ordinal)).filter_map(
            |(id, block)| {
                let placement = Placement { ordinal: block.segment, offset: bytes_of(block.offset) };
                (block.state == State::Used).then(|| (placement, self.requested[id as usize]))
            },
        )
    }

    /// Gives every segment back. The caller has made sure that nothing reaches them: no window, no peer, no work
    /// on the device.
    ///
    /// # Errors
    /// The segments that their source did not take, with what it said; the others have gone back.
    pub fn release(mut self) -> Result<(), Vec<(SegmentMemory, SourceError)>> {
        let live = self.journal.segments().iter().filter(|segment| !segment.retired);
        let live: Vec<SegmentMemory> = live.map(|segment| segment.memory).collect();
        self.withheld.extend(live);
        self.give_back()
    }

    fn place(&mut self, bytes: u64, site: &'static Location<'static>) -> Result<Placed, SymmetricError> {
        let units = units_for(bytes)?;
        let placed = self.heap.allocate(units, LIST, true);
        let (block, grown) = match placed {
            Some(block) => (block, None),
            None => {
                let memory = match self.grow(bytes) {
                    Ok(grown) => grown,
                    Err(error) => {
                        self.journal.log(OperationKind::Refuse, bytes, None, site);
                        return Err(error);
                    }
                };
                self.heap.add_segment(units_for(memory.bytes)?, LIST);
                let block = self.heap.allocate(units, LIST, true);
                (block.expect("a new segment has room for what it was made for"), Some(memory))
            }
        };
        if self.requested.len() <= block as usize {
            self.requested.resize(block as usize + 1, 0);
        }
        self.requested[block as usize] = bytes;
        let record = self.heap.block(block);
        let placement = Placement { ordinal: record.segment, offset: bytes_of(record.offset) };
        self.journal.log(OperationKind::Allocate, bytes, Some(placement), site);
        if let Some(memory) = grown {
            self.journal.enter(memory);
        }
        let base = self.segments()[placement.ordinal as usize].memory.address;
        let (address, grown) = (base + placement.offset, grown.is_some());
        Ok(Placed { placement, address, bytes: bytes_of(units), grown })
    }

    fn grow(&self, bytes: u64) -> Result<SegmentMemory, SymmetricError> {
        let (ordinal, segment) = self.journal.next_segment(bytes);
        if self.is_frozen() {
            return Err(SymmetricError::PoolWouldGrowDuringCapture { wanted: bytes, missing: segment });
        }
        source::allocate(&*self.source, segment).map_err(|source| SymmetricError::Source {
            ordinal,
            bytes: segment,
            source,
        })
    }
}

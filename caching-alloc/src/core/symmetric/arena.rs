//! The arena of a symmetric pool: places blocks in segments, and logs each operation.

use std::borrow::Cow;
use std::panic::Location;
use std::sync::Arc;

use super::journal::{Journal, SymmetricSegment};
use super::log::{Log, OperationKind};
use super::{Geometry, Placement, SEGMENT_STEP};
use crate::core::heap::{BlockId, Heap, List, Record, State};
use crate::core::size::{SizeError, bytes_of, units_for};
use crate::core::source::{self, MemoryInfo, SegmentMemory, SegmentSource, SourceError};

/// The tag of the request that [`SymmetricArena::reserve`] logs. The free that it logs has no tag.
pub const RESERVED: &str = "reserved";

/// The number of the heap's only list of free blocks. All sizes share it, because a symmetric pool has few blocks, and
/// its segments are expensive.
const LIST: List = 0;

/// Places the blocks of a symmetric pool in segments of one source. Dropping the arena does not release its segments:
/// call [`release`](Self::release).
#[derive(Debug)]
pub struct SymmetricArena {
    heap: Heap,
    /// The requested size of each block in bytes, indexed by the heap's block ids.
    requested: Vec<u64>,
    journal: Journal,
    source: Arc<dyn SegmentSource>,
    /// The number of active freezes.
    frozen: u32,
    /// Memory of retired segments that has not been released.
    withheld: Vec<SegmentMemory>,
}

/// A block that was placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// The block's place, which is the same on every rank.
    pub placement: Placement,
    /// The block's address on this rank.
    pub address: u64,
    /// The block's length: the requested size, rounded up to a multiple of 512 bytes.
    pub bytes: u64,
    /// True if a new segment was made for the block.
    pub grown: bool,
    /// The block's record in the heap, so that [`SymmetricArena::free`] does not search for it.
    pub(super) id: BlockId,
}

/// The error of an arena's operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SymmetricError {
    /// An invalid block size.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// The arena is frozen, and no segment has room for the block.
    #[error(
        "the symmetric pool is frozen for capture and has no room for {wanted} bytes: a new segment of {missing} bytes \
         would be needed; run the captured region once before the capture, or reserve the memory before freezing"
    )]
    PoolWouldGrowDuringCapture {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes of the new segment that would be needed.
        missing: u64,
    },
    /// The device has no memory for a new segment. See [`SymmetricArena::allocate`] for how to continue.
    #[error(
        "out of memory: {wanted} bytes need segment {ordinal} of a symmetric pool, of {segment} bytes; the pool has mapped \
         {reserved} bytes, {in_use} of them in blocks; {}; {}", describe_info(*info), remedy(*wanted, *segment, *info)
    )]
    OutOfMemory {
        /// Bytes asked for.
        wanted: u64,
        /// The ordinal of the segment.
        ordinal: u32,
        /// The size of the segment, which is the same on every rank.
        segment: u64,
        /// Bytes in all segments of the pool that are not retired.
        reserved: u64,
        /// Bytes in all blocks of the pool.
        in_use: u64,
        /// The device's memory, if the source reported it.
        info: Option<MemoryInfo>,
    },
    /// The source did not return a valid segment. See [`SymmetricArena::allocate`] for how to continue.
    #[error("segment {ordinal} of a symmetric pool, {bytes} bytes, could not be made")]
    Source {
        /// The segment's ordinal.
        ordinal: u32,
        /// The segment's size.
        bytes: u64,
        /// The source's error.
        #[source]
        source: SourceError,
    },
    /// The source's granularity does not divide 2 MiB.
    #[error(
        "the source makes segments in steps of {granularity} bytes; a symmetric pool needs steps that divide {SEGMENT_STEP}"
    )]
    Granularity {
        /// The source's granularity.
        granularity: u64,
    },
    /// No block begins at the place that was to be freed.
    #[error("no block of the symmetric pool begins at segment {}, offset {}; was it freed before?", placement.ordinal, placement.offset)]
    NotAllocated {
        /// The place that was passed.
        placement: Placement,
    },
    /// A segment to be retired still has blocks.
    #[error("segment {ordinal} of the symmetric pool still has {blocks} blocks")]
    SegmentInUse {
        /// The segment's ordinal.
        ordinal: u32,
        /// The number of blocks.
        blocks: u64,
    },
    /// There is no segment with this ordinal, or it was retired.
    #[error("the symmetric pool has no segment {ordinal}, or has retired it")]
    NoSuchSegment {
        /// The ordinal.
        ordinal: u32,
    },
}

fn place_of(block: &Record) -> Placement {
    Placement { ordinal: block.segment, offset: bytes_of(block.offset) }
}

fn describe_info(info: Option<MemoryInfo>) -> String {
    match info {
        Some(MemoryInfo { free, total }) => format!("the device has {free} of {total} bytes free"),
        None => "the device did not report its free memory".to_owned(),
    }
}

/// Returns the remedy for a lack of memory. If the whole device is too small, freeing memory does not help.
fn remedy(wanted: u64, segment: u64, info: Option<MemoryInfo>) -> &'static str {
    match info {
        Some(MemoryInfo { total, .. }) if total < wanted => {
            "the request is larger than the device's memory and can never fit: ask for less on every rank"
        }
        Some(MemoryInfo { total, .. }) if total < segment => {
            "the segment is larger than the device's memory and can never fit: make the pool with a smaller `Geometry` \
             on every rank"
        }
        _ => "free memory of the device, then repeat this request before any other of the pool",
    }
}

impl SymmetricArena {
    /// Makes an arena without segments. The first request allocates a segment from `source`.
    ///
    /// # Errors
    /// [`SymmetricError::Granularity`] if the source cannot make segments in steps of 2 MiB.
    pub fn new(source: Arc<dyn SegmentSource>, geometry: Geometry) -> Result<Self, SymmetricError> {
        let granularity = source.granularity();
        if granularity == 0 || !SEGMENT_STEP.is_multiple_of(granularity) {
            return Err(SymmetricError::Granularity { granularity });
        }
        let journal = Journal::new(geometry);
        let (heap, requested, withheld) = (Heap::with_unique_ordinals(), Vec::new(), Vec::new());
        Ok(Self { heap, requested, journal, source, frozen: 0, withheld })
    }

    /// Places a block of `bytes`. Makes a new segment if no segment has room for it.
    ///
    /// # Errors
    /// [`SymmetricError::Size`]. The arena is unchanged then.
    ///
    /// [`SymmetricError::PoolWouldGrowDuringCapture`], [`SymmetricError::OutOfMemory`], [`SymmetricError::Source`]. The
    /// arena is then unchanged, except that its log records a refused request. This log therefore differs from those of
    /// ranks on which the request succeeded. To make the logs equal again, repeat the request before any other
    /// operation on the arena. If it succeeds, it replaces the refused request in the log.
    #[track_caller]
    #[inline]
    pub fn allocate(&mut self, bytes: u64) -> Result<Placed, SymmetricError> {
        self.place(bytes, Location::caller())
    }

    /// Makes room for a block of `bytes`: a new segment, unless a segment has that room already. Places a block and
    /// frees it at once, and logs both operations. Returns where the block was.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    #[track_caller]
    pub fn reserve(&mut self, bytes: u64) -> Result<Placed, SymmetricError> {
        let placed = self.allocate_tagged(bytes, RESERVED)?;
        self.free(&placed)?;
        Ok(placed)
    }

    /// Like [`allocate`](Self::allocate), and adds a tag to the logged operation. Error texts that show the operation
    /// show the tag. Tags are not compared between ranks.
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
        // A request with an invalid size is not logged.
        if !matches!(placed, Err(SymmetricError::Size(_))) {
            self.journal.tag(tag.into());
        }
        placed
    }

    /// Frees a block that this arena has placed. The next request may reuse its memory. So on every rank, the caller
    /// must have ordered all uses of the block before the uses of later blocks.
    ///
    /// # Errors
    /// [`SymmetricError::NotAllocated`]; nothing is changed or logged then.
    #[track_caller]
    pub fn free(&mut self, &Placed { placement, id, .. }: &Placed) -> Result<(), SymmetricError> {
        let block = self.heap.get(id).filter(|block| block.state == State::Used);
        if block.map(place_of) != Some(placement) {
            return Err(SymmetricError::NotAllocated { placement });
        }
        let bytes = self.requested[id as usize];
        self.heap.free(id);
        self.journal.record(OperationKind::Free, bytes, Some(placement), Location::caller());
        Ok(())
    }

    /// Prevents growth during a graph capture: a request that needs a new segment fails, until
    /// [`unfreeze`](Self::unfreeze) is called. Calls nest.
    pub fn freeze(&mut self) {
        self.frozen += 1;
    }

    /// Undoes one call of [`freeze`](Self::freeze).
    pub fn unfreeze(&mut self) {
        self.frozen = self.frozen.saturating_sub(1);
    }

    /// Returns true if the arena is frozen.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.frozen > 0
    }

    /// Returns true if the log has a refused request after its first `length` operations. This rank's log may then
    /// differ from those of other ranks. A refused request that succeeds when it is repeated is no longer in the log;
    /// see [`allocate`](Self::allocate).
    #[must_use]
    pub fn has_refused_since(&self, length: u64) -> bool {
        self.journal.has_refused_since(length)
    }

    /// Retires segment `ordinal`, which must have no blocks. Nothing is placed there any more, the ordinal is not
    /// reused, and the log records the operation. The memory stays reserved until [`give_back`](Self::give_back).
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
        self.journal.record(OperationKind::Retire, segment.bytes, Some(begin), Location::caller());
        self.journal.retire(ordinal);
        self.withheld.push(segment.memory);
        Ok(())
    }

    /// Releases the memory of all retired segments. The caller must ensure that nothing accesses it: no window, no
    /// peer, no work on the device.
    ///
    /// # Errors
    /// Returns the memory that the source failed to release, with the source's errors. All other memory is released.
    /// Later calls do not try again.
    pub fn give_back(&mut self) -> Result<(), Vec<(SegmentMemory, SourceError)>> {
        let give = |memory: SegmentMemory| self.source.release(&memory).err().map(|error| (memory, error));
        let failed: Vec<_> = std::mem::take(&mut self.withheld).into_iter().filter_map(give).collect();
        if failed.is_empty() { Ok(()) } else { Err(failed) }
    }

    /// Returns the number of blocks in a segment.
    #[must_use]
    pub fn blocks_in(&self, ordinal: u32) -> u64 {
        self.heap.blocks(ordinal).filter(|(_, block)| block.state == State::Used).count() as u64
    }

    /// Returns the places of the blocks that overlap the `bytes` at `place`.
    #[must_use]
    pub fn blocks_over(&self, place: Placement, bytes: u64) -> Vec<Placement> {
        let end = place.offset.saturating_add(bytes.max(1));
        self.heap
            .blocks(place.ordinal)
            .map(|(_, block)| block)
            .skip_while(|block| bytes_of(block.offset) + bytes_of(block.units) <= place.offset)
            .take_while(|block| bytes_of(block.offset) < end)
            .filter(|block| block.state == State::Used)
            .map(place_of)
            .collect()
    }

    /// Returns all segments by ordinal, including retired ones. An entry is never removed.
    #[must_use]
    pub fn segments(&self) -> &[SymmetricSegment] {
        self.journal.segments()
    }

    /// Returns the log of all operations.
    #[must_use]
    pub fn log(&self) -> &Log {
        self.journal.log()
    }

    /// Returns the rule for the size of segments.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.journal.geometry()
    }

    /// Returns the source of the memory.
    #[must_use]
    pub fn source(&self) -> &Arc<dyn SegmentSource> {
        &self.source
    }

    /// Returns the address of a place on this rank, if the place lies in a segment that is not retired.
    #[must_use]
    pub fn address(&self, placement: Placement) -> Option<u64> {
        let segment = self.segments().get(placement.ordinal as usize)?;
        (placement.offset < segment.bytes && !segment.retired)
            .then(|| segment.memory.address + placement.offset)
    }

    /// Returns the places of all blocks, ordered by segment and offset, with their requested sizes in bytes.
    pub fn blocks(&self) -> impl Iterator<Item = (Placement, u64)> {
        let blocks = self.segments().iter().flat_map(|segment| self.heap.blocks(segment.ordinal));
        let used = blocks.filter(|(_, block)| block.state == State::Used);
        used.map(|(id, block)| (place_of(block), self.requested[id as usize]))
    }

    /// Releases the memory of all segments. The caller must ensure that nothing accesses it: no window, no peer, no
    /// work on the device.
    ///
    /// # Errors
    /// Returns the memory that the source failed to release, with the source's errors. All other memory is released.
    pub fn release(mut self) -> Result<(), Vec<(SegmentMemory, SourceError)>> {
        let live = self.journal.segments().iter().filter(|segment| !segment.retired);
        let live: Vec<SegmentMemory> = live.map(|segment| segment.memory).collect();
        self.withheld.extend(live);
        self.give_back()
    }

    fn place(&mut self, bytes: u64, site: &'static Location<'static>) -> Result<Placed, SymmetricError> {
        let units = units_for(bytes)?;
        let placed = self.heap.allocate(units, LIST, true);
        let (id, grown) = match placed {
            Some(id) => (id, None),
            None => {
                let memory = match self.grow(bytes) {
                    Ok(grown) => grown,
                    Err(error) => {
                        self.journal.record(OperationKind::Refuse, bytes, None, site);
                        return Err(error);
                    }
                };
                self.heap.add_segment(units_for(memory.bytes)?, LIST);
                let id = self.heap.allocate(units, LIST, true);
                (id.expect("a new segment has room for what it was made for"), Some(memory))
            }
        };
        if self.requested.len() <= id as usize {
            self.requested.resize(id as usize + 1, 0);
        }
        self.requested[id as usize] = bytes;
        let placement = place_of(self.heap.block(id));
        self.journal.record(OperationKind::Allocate, bytes, Some(placement), site);
        if let Some(memory) = grown {
            self.journal.add_segment(memory);
        }
        let base = self.segments()[placement.ordinal as usize].memory.address;
        let (address, grown) = (base + placement.offset, grown.is_some());
        Ok(Placed { placement, address, bytes: bytes_of(units), grown, id })
    }

    fn grow(&self, bytes: u64) -> Result<SegmentMemory, SymmetricError> {
        let (ordinal, segment) = self.journal.next_segment(bytes);
        if self.is_frozen() {
            return Err(SymmetricError::PoolWouldGrowDuringCapture { wanted: bytes, missing: segment });
        }
        source::allocate(&*self.source, segment).map_err(|source| match source {
            SourceError::OutOfMemory { .. } => {
                let ((reserved, in_use), info) = (self.journal.totals(), self.source.memory_info().ok());
                SymmetricError::OutOfMemory { wanted: bytes, ordinal, segment, reserved, in_use, info }
            }
            source => SymmetricError::Source { ordinal, bytes: segment, source },
        })
    }
}

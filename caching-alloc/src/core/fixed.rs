//! Memory of one stream alone: segments that stay where they are, and their blocks.

use super::heap::{BlockId, Heap, State};
use super::segment::{Segment, SizeClass};
use super::size::{Units, bytes_of};
use super::symmetric::Placement;

#[derive(Debug)]
pub(super) struct Fixed {
    pub(super) heap: Heap,
    /// By the heap's ordinals.
    pub(super) segments: Vec<Option<Segment>>,
    bases: Vec<u64>,
    /// Whether a block may be a part of a segment.
    split: bool,
}

impl Fixed {
    pub(super) fn new(split: bool) -> Self {
        Self { heap: Heap::default(), segments: Vec::new(), bases: Vec::new(), split }
    }

    pub(super) fn allocate(&mut self, units: Units, class: SizeClass) -> Option<(BlockId, u64, Units)> {
        let id = self.heap.allocate(units, class as u16, self.split)?;
        let block = self.heap.block(id);
        Some((id, self.bases[block.segment as usize] + bytes_of(block.offset), block.units))
    }

    pub(super) fn free(&mut self, id: BlockId) {
        self.heap.free(id);
    }

    /// Adds a segment, as one free block.
    pub(super) fn publish(&mut self, segment: Segment, units: Units) {
        self.heap.add_segment(units, segment.class() as u16);
        self.bases.push(segment.address());
        self.segments.push(Some(segment));
    }

    /// The segment that a used block lies in.
    pub(super) fn segment_of(&self, id: BlockId) -> Option<&Segment> {
        self.segments[self.heap.block(id).segment as usize].as_ref()
    }

    /// Where a block is in its pool.
    pub(super) fn placement(&self, id: BlockId) -> Placement {
        let block = self.heap.block(id);
        Placement { ordinal: block.segment, offset: bytes_of(block.offset) }
    }

    /// Takes out a segment that is one free block.
    pub(super) fn withdraw(&mut self, ordinal: usize) -> Option<Segment> {
        let removed = self.heap.remove_segment(u32::try_from(ordinal).ok()?);
        if removed { self.segments[ordinal].take() } else { None }
    }

    /// Takes out the shortest segment of the class that is one free block and has room for `units`.
    pub(super) fn withdraw_idle(&mut self, class: SizeClass, units: Units) -> Option<Segment> {
        let idle = self.segments.iter().enumerate().filter(|(ordinal, segment)| {
            segment
                .as_ref()
                .is_some_and(|segment| segment.class() == class && segment.bytes() >= bytes_of(units))
                && u32::try_from(*ordinal).is_ok_and(|ordinal| self.heap.is_free(ordinal))
        });
        let (_, ordinal) =
            idle.filter_map(|(ordinal, segment)| Some((segment.as_ref()?.bytes(), ordinal))).min()?;
        self.withdraw(ordinal)
    }

    /// Takes out segments that are free, newest first, of one class or of both, until they have `wanted` bytes.
    pub(super) fn withdraw_all(&mut self, class: Option<SizeClass>, wanted: u64) -> Vec<Segment> {
        let mut bytes = 0;
        let mut segments = Vec::new();
        for ordinal in (0..self.segments.len()).rev() {
            if bytes >= wanted {
                break;
            }
            let fits = |segment: &Segment| class.is_none_or(|class| segment.class() == class);
            if !self.segments[ordinal].as_ref().is_some_and(fits) {
                continue;
            }
            if let Some(segment) = self.withdraw(ordinal) {
                bytes += segment.bytes();
                segments.push(segment);
            }
        }
        segments
    }

    /// The longest free block of the class.
    pub(super) fn longest(&self, class: SizeClass) -> Units {
        self.heap.longest_free(class as u16)
    }

    /// Bytes of all segments of the class.
    pub(super) fn reserved(&self, class: SizeClass) -> u64 {
        self.segments.iter().flatten().filter(|segment| segment.class() == class).map(Segment::bytes).sum()
    }

    /// The segment that an address lies in, and its block there: whether it is free, where it begins, its length.
    pub(super) fn find(&self, address: u64) -> Option<(&Segment, Tile)> {
        let (ordinal, segment) = self.segments.iter().enumerate().find_map(|(ordinal, segment)| {
            let segment = segment.as_ref()?;
            (segment.address()..segment.memory().end()).contains(&address).then_some((ordinal, segment))
        })?;
        let offset = u32::try_from((address - segment.address()) / super::size::UNIT).ok()?;
        let id = self.heap.block_over(u32::try_from(ordinal).ok()?, offset)?;
        Some((segment, self.tile(segment, id)))
    }

    /// Every segment with the blocks that tile it.
    pub(super) fn tiles(&self) -> impl Iterator<Item = (&Segment, Vec<Tile>)> {
        self.segments.iter().enumerate().filter_map(|(ordinal, segment)| {
            let segment = segment.as_ref()?;
            let blocks = self.heap.blocks(u32::try_from(ordinal).ok()?);
            Some((segment, blocks.map(|(id, _)| self.tile(segment, id)).collect()))
        })
    }

    fn tile(&self, segment: &Segment, id: BlockId) -> Tile {
        let block = self.heap.block(id);
        let address = segment.address() + bytes_of(block.offset);
        Tile { id, address, units: block.units, is_free: block.state == State::Free }
    }
}

/// A block of the heap, as snapshots want it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tile {
    pub(super) id: BlockId,
    pub(super) address: u64,
    pub(super) units: Units,
    pub(super) is_free: bool,
}

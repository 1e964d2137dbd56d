//! Segments in which memory is mapped and unmapped, for re-mappable pools. The parts without usable memory are holes. A
//! used block becomes a hole when its memory is unmapped, or when its memory has moved away and no work uses its
//! addresses any more. A part of a hole becomes a used block when memory is to be mapped there.

use super::{BlockId, CHUNK, Heap, List, NONE, Record, Span, State};
use crate::core::size::Units;

impl Heap {
    /// Adds a segment of length 0, which [`extend`](Self::extend) lengthens. Returns its ordinal.
    pub(in crate::core) fn add_range(&mut self) -> u32 {
        let ordinal = self.next_ordinal();
        self.segments.push(Some(Span { units: 0, first: NONE, firsts: Vec::new() }));
        ordinal
    }

    /// Returns the length of a segment.
    pub(in crate::core) fn length(&self, segment: u32) -> Units {
        self.segments[segment as usize].as_ref().map_or(0, |span| span.units)
    }

    /// Lengthens a segment by a hole.
    pub(in crate::core) fn extend(&mut self, segment: u32, units: Units) {
        let offset = self.length(segment);
        let last = offset.checked_sub(1).and_then(|last| self.block_over(segment, last));
        let id = self.new_record(Record::new(segment, offset, units, 0));
        let span = self.span(segment);
        span.units += units;
        let chunks = span.units.div_ceil(CHUNK) as usize;
        span.firsts.resize(chunks, NONE);
        match last {
            None => span.first = id,
            Some(last) => self.join(last, id),
        }
        let first = &mut self.span(segment).firsts[(offset / CHUNK) as usize];
        if *first == NONE {
            *first = id;
        }
        self.records[id as usize].state = State::Used;
        self.make_hole(id);
    }

    /// Takes `units` at `offset` of the segment out of a block that is free or a hole. Returns them as a used block.
    /// The parts before and after them keep their state.
    pub(in crate::core) fn take_part(&mut self, id: BlockId, offset: Units, units: Units) -> BlockId {
        let was = self.records[id as usize].state;
        if was == State::Free {
            self.leave_index(id);
        }
        self.records[id as usize].state = State::Used;
        let before = offset - self.records[id as usize].offset;
        let mut taken = id;
        if before > 0 {
            taken = self.split(id, before);
            self.put_as(id, was);
        }
        if self.records[taken as usize].units > units {
            let rest = self.split(taken, units);
            self.put_as(rest, was);
        }
        taken
    }

    /// Allocates a block of `units` in the shortest free block of the list that is long enough. The place of the new
    /// block in the free block is:
    /// - If exactly one neighbour of the free block is a hole: at the end away from the hole. The rest can then merge
    ///   with memory that is mapped in the hole later. The end of the segment counts as a hole.
    /// - Else, if only the next neighbour is a used block of the requested length: at the end, beside it. Blocks of one
    ///   length are often freed together, and then merge into one free block.
    /// - Else: at the beginning.
    pub(in crate::core) fn allocate_off_holes(&mut self, units: Units, list: List) -> Option<BlockId> {
        let id = self.allocate_within(units, Units::MAX, list, false)?;
        let Record { units: whole, prev, next, .. } = self.records[id as usize];
        if whole == units {
            return Some(id);
        }
        let is_like = |id: BlockId| {
            let record = &self.records[id as usize];
            record.state == State::Used && record.units == units
        };
        let hole_before = self.is_hole(prev);
        let hole_after = next == NONE || self.is_hole(next);
        let at_end = if hole_before == hole_after { is_like(next) && !is_like(prev) } else { hole_before };
        let (taken, rest) =
            if at_end { (self.split(id, whole - units), id) } else { (id, self.split(id, units)) };
        self.put_in_index(rest);
        Some(taken)
    }

    /// Merges `right` into `left`, the block before it. Both must be used blocks.
    pub(in crate::core) fn unite(&mut self, left: BlockId, right: BlockId) {
        debug_assert_eq!(self.records[left as usize].next, right, "neighbours");
        self.absorb(left, right);
    }

    /// Frees a used block to this list, instead of the list that it came from.
    pub(in crate::core) fn free_into(&mut self, id: BlockId, list: List) {
        self.records[id as usize].list = list;
        self.free(id);
    }

    /// Turns a used block into a hole, and merges it with the holes beside it.
    pub(in crate::core) fn make_hole(&mut self, mut id: BlockId) {
        let Record { prev, next, .. } = self.records[id as usize];
        if self.is_hole(next) {
            self.absorb(id, next);
        }
        if self.is_hole(prev) {
            self.absorb(prev, id);
            id = prev;
        }
        self.records[id as usize].state = State::Hole;
    }

    fn is_hole(&self, id: BlockId) -> bool {
        self.records[id as usize].state == State::Hole
    }

    /// Sets the state of a part that [`take_part`](Self::take_part) has left. The part needs no merging. One
    /// neighbour is the used block that was taken. The other one was a neighbour of the undivided block. It would have
    /// been merged with that block if the two could merge.
    fn put_as(&mut self, id: BlockId, state: State) {
        match state {
            State::Free => self.put_in_index(id),
            other => self.records[id as usize].state = other,
        }
    }
}

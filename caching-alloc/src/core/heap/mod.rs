//! Placement of blocks in segments: pure logic, without addresses.
//!
//! A segment is an ordinal and a length. A block is a span of one segment. Lengths and offsets are in units of 512
//! bytes. The blocks of a segment cover it without gaps. Each free block is in a [list](List), and adjacent free
//! blocks of the same list are always merged. The place of a new block depends only on the history of calls. The
//! records of blocks are in one table, outside of the memory that they describe, and are reused. So once the table is
//! large enough, no operation allocates host memory for records.

mod index;
mod ranges;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use index::FreeIndex;

use super::size::Units;

/// Index of a block's record.
pub(super) type BlockId = u32;

/// The null block. A record with this index exists and is never free, so code can follow or write a link
/// without a check.
pub(super) const NONE: BlockId = 0;

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The record describes no block.
    Spare,
    /// Free, and in the index of its list.
    Free,
    /// In use by the heap's caller.
    Used,
    /// A part of a segment where no usable memory is mapped (see `ranges`).
    Hole,
}

/// The number of a list of free blocks. A block is allocated from one list, and free blocks of different lists are
/// not merged. Callers use one list for all blocks, one for each size class, or separate lists for each stream.
pub(super) type List = u16;

/// A block. Two records fit into a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(super) struct Record {
    /// Ordinal of the block's segment.
    pub(super) segment: u32,
    /// Offset in the segment.
    pub(super) offset: Units,
    /// Length of the block.
    pub(super) units: Units,
    /// State of the block.
    pub(super) state: State,
    /// The list to which the block returns when it is freed.
    pub(super) list: List,
    /// The previous block of the segment. In a spare record, the next spare record.
    prev: BlockId,
    next: BlockId,
    /// For a free block, the previous block in its bin. [`FreeIndex`] has bins of blocks with similar lengths, each
    /// linked in the order of [`is_before`](Self::is_before).
    less: BlockId,
    /// For a free block, the next block in its bin.
    greater: BlockId,
}

const _: () = assert!(size_of::<Record>() == 32);

impl Record {
    fn new(segment: u32, offset: Units, units: Units, list: List) -> Self {
        Self {
            segment,
            offset,
            units,
            state: State::Free,
            list,
            prev: NONE,
            next: NONE,
            less: NONE,
            greater: NONE,
        }
    }

    /// Returns true if this block comes before the other in the index. The order is by length, then by the segment's
    /// ordinal, then by offset.
    #[inline]
    fn is_before(&self, other: &Self) -> bool {
        let place = |record: &Self| u64::from(record.segment) << 32 | u64::from(record.offset);
        (self.units, place(self)) < (other.units, place(other))
    }
}

#[derive(Debug)]
struct Span {
    units: Units,
    first: BlockId,
    /// The side table: the first block that begins in each chunk (see [`CHUNK`]), or `NONE`. Empty if the heap has no
    /// side tables.
    firsts: Vec<BlockId>,
}

/// Length of a chunk in units (64 KiB). A side table has an entry for each chunk of a segment. With this length the
/// tables are small, and a look-up walks over few blocks.
const CHUNK: Units = 128;

/// Segments, and the blocks that cover them.
#[derive(Debug)]
pub(super) struct Heap {
    records: Vec<Record>,
    spare: BlockId,
    segments: Vec<Option<Span>>,
    /// Ordinals of removed segments, for new segments. `None` if ordinals are not reused.
    spare_ordinals: Option<BinaryHeap<Reverse<u32>>>,
    /// The index of the free blocks of each list.
    free: Vec<FreeIndex>,
    has_tables: bool,
}

impl Heap {
    /// Makes an empty heap without side tables: to find the block at an offset, it walks over the blocks of the
    /// segment. A new segment gets the smallest unused ordinal.
    pub(super) fn new() -> Self {
        let nobody = Record { state: State::Used, ..Record::new(0, 0, 0, List::MAX) };
        let (records, segments, free) = (vec![nobody], Vec::new(), Vec::new());
        let spare_ordinals = Some(BinaryHeap::new());
        Self { records, spare: NONE, segments, spare_ordinals, free, has_tables: false }
    }

    /// Makes an empty heap like [`new`](Self::new), but segments get the ordinals 0, 1, 2…, which are never reused.
    pub(super) fn with_unique_ordinals() -> Self {
        Self { spare_ordinals: None, ..Self::new() }
    }

    /// Makes an empty heap like [`with_unique_ordinals`](Self::with_unique_ordinals) with side tables, so that it finds
    /// the block at an offset fast.
    pub(super) fn with_tables() -> Self {
        Self { has_tables: true, ..Self::with_unique_ordinals() }
    }

    /// Adds a segment as one free block of the list, and returns its ordinal.
    pub(super) fn add_segment(&mut self, units: Units, list: List) -> u32 {
        let spare = self.spare_ordinals.as_mut().and_then(BinaryHeap::pop);
        let ordinal = spare.map_or_else(|| self.next_ordinal(), |Reverse(ordinal)| ordinal);
        let id = self.new_record(Record::new(ordinal, 0, units, list));
        let mut firsts = vec![NONE; if self.has_tables { units.div_ceil(CHUNK) as usize } else { 0 }];
        if let Some(first) = firsts.first_mut() {
            *first = id;
        }
        if ordinal == self.next_ordinal() {
            self.segments.push(None);
        }
        self.segments[ordinal as usize] = Some(Span { units, first: id, firsts });
        self.put_in_index(id);
        ordinal
    }

    fn next_ordinal(&self) -> u32 {
        u32::try_from(self.segments.len()).unwrap_or(u32::MAX)
    }

    /// Removes a segment if it is one free block. Returns true if it was removed.
    pub(super) fn remove_segment(&mut self, ordinal: u32) -> bool {
        if !self.is_free(ordinal) {
            return false;
        }
        let Some(span) = self.segments[ordinal as usize].take() else { return false };
        self.leave_index(span.first);
        self.drop_record(span.first);
        self.spare_ordinals.iter_mut().for_each(|spare| spare.push(Reverse(ordinal)));
        true
    }

    /// Returns true if a segment is one free block.
    pub(super) fn is_free(&self, ordinal: u32) -> bool {
        self.segments.get(ordinal as usize).and_then(Option::as_ref).is_some_and(|span| {
            let record = &self.records[span.first as usize];
            record.state == State::Free && record.units == span.units
        })
    }

    /// Allocates the shortest free block of the list with at least `units`. With `split`, shortens it to that length,
    /// and the rest stays free. Among blocks of equal length, takes the one in the segment with the lowest ordinal,
    /// and there the one with the lowest offset. If the list has had many blocks of similar length (see [`index`]),
    /// the result may be another block that is long enough.
    pub(super) fn allocate(&mut self, units: Units, list: List, split: bool) -> Option<BlockId> {
        self.allocate_within(units, Units::MAX, list, split)
    }

    /// Like [`allocate`](Self::allocate), but returns `None` if that block has more than `most` units.
    pub(super) fn allocate_within(
        &mut self,
        units: Units,
        most: Units,
        list: List,
        split: bool,
    ) -> Option<BlockId> {
        let index = self.free.get_mut(list as usize)?;
        let id = index.find(&self.records, units)?;
        let whole = self.records[id as usize].units;
        if whole > most {
            return None;
        }
        if split && whole > units {
            if FreeIndex::stays(&self.records, id, whole - units) {
                let rest = self.split(id, units);
                self.free[list as usize].put_in_place(&mut self.records, rest);
            } else {
                index.remove(&mut self.records, id);
                let rest = self.split(id, units);
                self.put_in_index(rest);
            }
        } else {
            index.remove(&mut self.records, id);
        }
        self.records[id as usize].state = State::Used;
        Some(id)
    }

    /// Frees a block and merges it with its free neighbours of the same list.
    pub(super) fn free(&mut self, mut id: BlockId) {
        let Record { prev, next, list, .. } = self.records[id as usize];
        if self.is_free_of(next, list) {
            self.leave_index(next);
            self.absorb(id, next);
        }
        if self.is_free_of(prev, list) {
            self.leave_index(prev);
            self.absorb(prev, id);
            id = prev;
        }
        self.put_in_index(id);
    }

    #[inline]
    fn is_free_of(&self, id: BlockId, list: List) -> bool {
        let record = &self.records[id as usize];
        record.state == State::Free && record.list == list
    }

    /// Returns a block's record.
    pub(super) fn block(&self, id: BlockId) -> &Record {
        &self.records[id as usize]
    }

    /// Returns a record, if there is one with this index. It may describe no block.
    pub(super) fn get(&self, id: BlockId) -> Option<&Record> {
        self.records.get(id as usize)
    }

    /// Returns the block that contains this offset of a segment.
    pub(super) fn block_over(&self, segment: u32, offset: Units) -> Option<BlockId> {
        let span = self.segments.get(segment as usize)?.as_ref()?;
        if offset >= span.units {
            return None;
        }
        let before = |id: &BlockId| *id != NONE && self.block(*id).offset <= offset;
        let chunks = span.firsts.get(..=(offset / CHUNK) as usize).unwrap_or_default();
        let mut id = chunks.iter().rev().copied().find(before).unwrap_or(span.first);
        while before(&self.block(id).next) {
            id = self.block(id).next;
        }
        Some(id)
    }

    /// Returns the blocks of a segment, first to last.
    pub(super) fn blocks(&self, segment: u32) -> impl Iterator<Item = (BlockId, &Record)> {
        let first =
            self.segments.get(segment as usize).and_then(Option::as_ref).map_or(NONE, |span| span.first);
        let follow = move |id: BlockId| (id != NONE).then_some(id);
        std::iter::successors(follow(first), move |id| follow(self.records[*id as usize].next))
            .map(|id| (id, &self.records[id as usize]))
    }

    /// Moves every free block of one list to another.
    pub(super) fn relist(&mut self, from: List, to: List) {
        while let Some(id) = self.free.get(from as usize).and_then(FreeIndex::any) {
            self.leave_index(id);
            self.records[id as usize].state = State::Used;
            self.free_into(id, to);
        }
    }

    /// Returns the length of the longest free block of the list, or 0.
    pub(super) fn longest_free(&self, list: List) -> Units {
        self.free.get(list as usize).map_or(0, |index| index.longest(&self.records))
    }

    fn span(&mut self, segment: u32) -> &mut Span {
        self.segments[segment as usize].as_mut().expect("a block's segment is there: blocks go with it")
    }

    fn put_in_index(&mut self, id: BlockId) {
        let record = &mut self.records[id as usize];
        record.state = State::Free;
        let list = record.list as usize;
        if list >= self.free.len() {
            self.free.resize_with(list + 1, FreeIndex::default);
        }
        self.free[list].insert(&mut self.records, id);
    }

    fn leave_index(&mut self, id: BlockId) {
        let list = self.records[id as usize].list as usize;
        self.free[list].remove(&mut self.records, id);
    }

    /// Shortens a block to `units`. The rest becomes a block with the same state, but is not added to an index. If
    /// the block is in an index, the caller must either remove it before this call, or let the rest replace it there
    /// after the call ([`FreeIndex::put_in_place`]).
    #[inline]
    fn split(&mut self, id: BlockId, units: Units) -> BlockId {
        let whole = self.records[id as usize];
        let Record { segment, offset, next, .. } = whole;
        let rest = offset + units;
        let at = self.new_record(Record { offset: rest, units: whole.units - units, prev: id, ..whole });
        let record = &mut self.records[id as usize];
        record.units = units;
        record.next = at;
        self.records[next as usize].prev = at;
        // The rest is the first block of its chunk, unless the shortened block begins in that chunk too.
        if self.has_tables && rest / CHUNK != offset / CHUNK {
            self.span(segment).firsts[(rest / CHUNK) as usize] = at;
        }
        at
    }

    /// Merges `right` into `left`, the block before it.
    #[inline]
    fn absorb(&mut self, left: BlockId, right: BlockId) {
        let Record { segment, offset, units, next, .. } = self.records[right as usize];
        self.drop_record(right);
        let record = &mut self.records[left as usize];
        let chunk = record.offset / CHUNK;
        record.units += units;
        record.next = next;
        self.records[next as usize].prev = left;
        // Unless `left` begins in the same chunk, `right` was the first block of its chunk. Now the next block is the
        // first, if it begins in that chunk.
        if self.has_tables && offset / CHUNK != chunk {
            let heir = if next != NONE && (offset + units) / CHUNK == offset / CHUNK { next } else { NONE };
            self.span(segment).firsts[(offset / CHUNK) as usize] = heir;
        }
    }

    fn join(&mut self, left: BlockId, right: BlockId) {
        self.records[left as usize].next = right;
        self.records[right as usize].prev = left;
    }

    #[inline]
    fn new_record(&mut self, record: Record) -> BlockId {
        let id = self.spare;
        if id == NONE {
            self.records.push(record);
            // 2^32 blocks would have at least 2 TiB of memory.
            return BlockId::try_from(self.records.len() - 1).expect("fewer than 2^32 blocks");
        }
        let place = &mut self.records[id as usize];
        self.spare = place.prev;
        *place = record;
        id
    }

    #[inline]
    fn drop_record(&mut self, id: BlockId) {
        let record = &mut self.records[id as usize];
        record.state = State::Spare;
        record.prev = self.spare;
        self.spare = id;
    }
}

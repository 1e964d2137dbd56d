//! Placement of blocks in segments: pure, and without addresses.
//!
//! A segment is an ordinal and a length; a block is a span of one segment. Blocks tile their segments, free
//! neighbours are always merged, and the place of a new block depends on the history of calls alone. Records are
//! kept out of the memory that they describe, in one table, and are used again: after warm-up nothing here
//! allocates.

mod index;
#[cfg(test)]
mod tests;

use index::{FreeIndex, Key};

use super::segment::SizeClass;
use super::size::Units;

/// Index of a block's record.
pub(super) type BlockId = u32;

/// No block.
pub(super) const NONE: BlockId = BlockId::MAX;

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Not a block: a record that waits for one.
    Spare,
    /// Free, merged and in the index.
    Free,
    /// Handed out.
    Used,
    /// Free but kept whole, for a request of the same length.
    Kept,
    /// Let go by its owner, in use by other streams.
    Pending,
}

/// A block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// Ordinal of its segment.
    pub(super) segment: u32,
    /// Where it begins in the segment.
    pub(super) offset: Units,
    /// Its length.
    pub(super) units: Units,
    /// What it is used for.
    pub(super) state: State,
    prev: BlockId,
    next: BlockId,
    /// A link for whoever keeps the block in a list.
    pub(super) link: BlockId,
    /// A second one, for whatever hangs on a used block.
    pub(super) uses: u32,
    /// What its owner asked for, in bytes.
    pub(super) requested: u64,
}

#[derive(Debug)]
struct Span {
    units: Units,
    class: SizeClass,
    first: BlockId,
    /// For each chunk the first block that begins in it.
    firsts: Vec<BlockId>,
}

/// Units of a chunk of the side table, 64 KiB: the table stays small, and a look-up walks few blocks.
const CHUNK: Units = 128;

/// Segments and the blocks that tile them.
#[derive(Debug)]
pub(super) struct Heap {
    records: Vec<Record>,
    spare: BlockId,
    segments: Vec<Option<Span>>,
    free: [FreeIndex; 2],
}

impl Default for Heap {
    fn default() -> Self {
        Self { records: Vec::new(), spare: NONE, segments: Vec::new(), free: Default::default() }
    }
}

impl Heap {
    /// Adds a segment, one free block, and returns its ordinal: 0, 1, 2… and never one twice.
    pub(super) fn add_segment(&mut self, units: Units, class: SizeClass) -> u32 {
        let ordinal = u32::try_from(self.segments.len()).unwrap_or(u32::MAX);
        let id = self.new_record(ordinal, 0, units);
        let mut firsts = vec![NONE; units.div_ceil(CHUNK) as usize];
        firsts[0] = id;
        self.segments.push(Some(Span { units, class, first: id, firsts }));
        self.put_in_index(id);
        ordinal
    }

    /// Removes a segment that is one free block. Returns whether it was.
    pub(super) fn remove_segment(&mut self, ordinal: u32) -> bool {
        if !self.is_free(ordinal) {
            return false;
        }
        let Some(span) = self.segments[ordinal as usize].take() else { return false };
        self.free[span.class as usize].remove(&self.key(span.first));
        self.drop_record(span.first);
        true
    }

    /// Whether a segment is one free block.
    pub(super) fn is_free(&self, ordinal: u32) -> bool {
        self.segments.get(ordinal as usize).and_then(Option::as_ref).is_some_and(|span| {
            let record = &self.records[span.first as usize];
            record.state == State::Free && record.units == span.units
        })
    }

    /// Hands out the least free block of the class with at least `units`, split to that length if `split`. Among
    /// equals the one of the oldest segment, and there the first.
    pub(super) fn allocate(&mut self, units: Units, class: SizeClass, split: bool) -> Option<BlockId> {
        let key = self.free[class as usize].take(units)?;
        let id = key.id;
        if split && key.units > units {
            let rest = self.new_record(key.segment, key.offset + units, key.units - units);
            let next = self.records[id as usize].next;
            self.records[id as usize].units = units;
            self.join(id, rest);
            self.join(rest, next);
            self.enter_start(rest);
            self.put_in_index(rest);
        }
        self.records[id as usize].state = State::Used;
        Some(id)
    }

    /// Takes a block back and merges it with its free neighbours.
    pub(super) fn free(&mut self, mut id: BlockId) {
        let Record { segment, prev, next, .. } = self.records[id as usize];
        let class = self.span(segment).class;
        if next != NONE && self.records[next as usize].state == State::Free {
            self.free[class as usize].remove(&self.key(next));
            self.absorb(id, next);
        }
        if prev != NONE && self.records[prev as usize].state == State::Free {
            self.free[class as usize].remove(&self.key(prev));
            self.absorb(prev, id);
            id = prev;
        }
        self.put_in_index(id);
    }

    /// A block's record.
    pub(super) fn block(&self, id: BlockId) -> &Record {
        &self.records[id as usize]
    }

    /// A block's record, to change its state (never to or from [`State::Free`]), links and request.
    pub(super) fn block_mut(&mut self, id: BlockId) -> &mut Record {
        &mut self.records[id as usize]
    }

    /// The block that begins at that place.
    pub(super) fn block_at(&self, segment: u32, offset: Units) -> Option<BlockId> {
        self.block_over(segment, offset).filter(|id| self.block(*id).offset == offset)
    }

    /// The block that has that place inside it.
    pub(super) fn block_over(&self, segment: u32, offset: Units) -> Option<BlockId> {
        let span = self.segments.get(segment as usize)?.as_ref()?;
        let chunks = span.firsts.get(..=(offset / CHUNK) as usize)?;
        let before = |id: &BlockId| *id != NONE && self.block(*id).offset <= offset;
        let mut id = *chunks.iter().rev().find(|id| before(id))?;
        while before(&self.block(id).next) {
            id = self.block(id).next;
        }
        Some(id)
    }

    /// A segment's blocks, first to last.
    pub(super) fn blocks(&self, segment: u32) -> impl Iterator<Item = (BlockId, &Record)> {
        let first =
            self.segments.get(segment as usize).and_then(Option::as_ref).map_or(NONE, |span| span.first);
        let follow = move |id: BlockId| (id != NONE).then_some(id);
        std::iter::successors(follow(first), move |id| follow(self.records[*id as usize].next))
            .map(|id| (id, &self.records[id as usize]))
    }

    /// The longest free block of the class.
    pub(super) fn longest_free(&self, class: SizeClass) -> Units {
        self.free[class as usize].longest()
    }

    fn span(&mut self, segment: u32) -> &mut Span {
        self.segments[segment as usize].as_mut().expect("a block's segment is there: blocks go with it")
    }

    fn key(&self, id: BlockId) -> Key {
        let Record { segment, offset, units, .. } = self.records[id as usize];
        Key { units, segment, offset, id }
    }

    fn put_in_index(&mut self, id: BlockId) {
        let key = self.key(id);
        let class = self.span(key.segment).class;
        let record = &mut self.records[id as usize];
        record.state = State::Free;
        record.requested = 0;
        self.free[class as usize].insert(key);
    }

    /// Makes `right` part of `left`.
    fn absorb(&mut self, left: BlockId, right: BlockId) {
        let Record { units, next, .. } = self.records[right as usize];
        self.leave_start(right);
        self.records[left as usize].units += units;
        self.join(left, next);
        self.drop_record(right);
    }

    /// Enters a new block into the side table.
    fn enter_start(&mut self, id: BlockId) {
        let Record { segment, offset, .. } = self.records[id as usize];
        let chunk = (offset / CHUNK) as usize;
        let first = self.span(segment).firsts[chunk];
        if first == NONE || self.records[first as usize].offset > offset {
            self.span(segment).firsts[chunk] = id;
        }
    }

    /// Takes a block out of the side table; the one behind it takes its place if it begins in the same chunk.
    fn leave_start(&mut self, id: BlockId) {
        let Record { segment, offset, next, .. } = self.records[id as usize];
        let chunk = offset / CHUNK;
        if self.span(segment).firsts[chunk as usize] == id {
            let heir = next != NONE && self.records[next as usize].offset / CHUNK == chunk;
            self.span(segment).firsts[chunk as usize] = if heir { next } else { NONE };
        }
    }

    fn join(&mut self, left: BlockId, right: BlockId) {
        self.records[left as usize].next = right;
        if right != NONE {
            self.records[right as usize].prev = left;
        }
    }

    fn new_record(&mut self, segment: u32, offset: Units, units: Units) -> BlockId {
        let record = Record {
            segment,
            offset,
            units,
            state: State::Free,
            prev: NONE,
            next: NONE,
            link: NONE,
            uses: NONE,
            requested: 0,
        };
        if self.spare == NONE {
            self.records.push(record);
            u32::try_from(self.records.len() - 1).unwrap_or(NONE)
        } else {
            let id = self.spare;
            self.spare = self.records[id as usize].link;
            self.records[id as usize] = record;
            id
        }
    }

    fn drop_record(&mut self, id: BlockId) {
        let record = &mut self.records[id as usize];
        record.state = State::Spare;
        record.link = self.spare;
        self.spare = id;
    }
}

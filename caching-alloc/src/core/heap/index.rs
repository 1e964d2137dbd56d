//! The free blocks of one list, for best fit.
//!
//! Bins of similar lengths, most with one block or none, so few comparisons are needed. One bit per bin marks
//! those that are not empty, and one bit per word of these. The blocks of a bin are linked through their
//! records in the order of (length, segment's ordinal, offset), never by address, so equal histories choose
//! equal places. In a crowded bin only the first blocks are in order. So no operation slows down with many
//! blocks, except the last search before memory is reported as exhausted.

use super::{BlockId, NONE, Record};
use crate::core::size::{BINS, Units, bin_of};

const WORDS: usize = BINS.div_ceil(64);
const _: () = assert!(WORDS <= 64, "a word has a bit for each");

/// Limit on the blocks of a bin that are examined, and so on those in order.
pub(super) const ORDERED: usize = 16;

#[derive(Debug)]
pub(super) struct FreeIndex {
    /// The least block of each bin.
    heads: Box<[BlockId; BINS]>,
    occupied: [u64; WORDS],
    words: u64,
}

impl Default for FreeIndex {
    fn default() -> Self {
        Self { heads: Box::new([NONE; BINS]), occupied: [0; WORDS], words: 0 }
    }
}

impl FreeIndex {
    #[inline]
    pub(super) fn insert(&mut self, records: &mut [Record], id: BlockId) {
        let bin = bin_of(records[id as usize].units);
        self.occupied[bin / 64] |= 1 << (bin % 64);
        self.words |= 1 << (bin / 64);
        let (mut less, mut greater) = (NONE, self.heads[bin]);
        if greater != NONE {
            (less, greater) = place(records, id, greater);
        }
        let record = &mut records[id as usize];
        (record.less, record.greater) = (less, greater);
        records[greater as usize].less = id;
        match less {
            NONE => self.heads[bin] = id,
            _ => records[less as usize].greater = id,
        }
    }

    /// Branch-free, since a block's position as first or last of its bin is unpredictable.
    #[inline]
    pub(super) fn remove(&mut self, records: &mut [Record], id: BlockId) {
        let Record { units, less, greater, .. } = records[id as usize];
        records[greater as usize].less = less;
        records[less as usize].greater = greater;
        let bin = bin_of(units);
        let head = if less == NONE { greater } else { self.heads[bin] };
        self.heads[bin] = head;
        let word = &mut self.occupied[bin / 64];
        *word &= !(u64::from(head == NONE) << (bin % 64));
        self.words &= !(u64::from(*word == 0) << (bin / 64));
    }

    /// Returns true if the rest of a block that was [found](Self::find), `left` units, belongs in its place
    /// in the index, so no other block need be moved: it stays in the same bin, of which the block is the
    /// first. A found block that is not the first was chosen because the first is too short, so more than a
    /// bin's width is taken from it.
    #[inline]
    pub(super) fn stays(records: &[Record], found: BlockId, left: Units) -> bool {
        bin_of(records[found as usize].units) == bin_of(left)
    }

    /// Puts the rest of a block, with its neighbours, in the block's place in the index, if it
    /// [stays](Self::stays).
    #[inline]
    pub(super) fn put_in_place(&mut self, records: &mut [Record], id: BlockId) {
        let Record { units, less, greater, .. } = records[id as usize];
        debug_assert_eq!(less, NONE, "the first of its bin");
        records[greater as usize].less = id;
        self.heads[bin_of(units)] = id;
    }

    /// The least block of at least `units`.
    #[inline]
    pub(super) fn find(&self, records: &[Record], units: Units) -> Option<BlockId> {
        let bin = bin_of(units);
        let fits = |id: &BlockId| records[*id as usize].units >= units;
        // No block has length 0.
        let head = self.heads[bin];
        if fits(&head) {
            return Some(head);
        }
        if let Some(id) = self.blocks(records, bin).take(ORDERED).find(fits) {
            return Some(id);
        }
        match self.next_occupied(bin + 1) {
            Some(bin) => Some(self.heads[bin]),
            None => self.blocks(records, bin).find(fits),
        }
    }

    /// Length of the longest block.
    pub(super) fn longest(&self, records: &[Record]) -> Units {
        let Some(word) = self.words.checked_ilog2() else { return 0 };
        let bin = word * 64 + self.occupied[word as usize].ilog2();
        self.blocks(records, bin as usize).map(|id| records[id as usize].units).max().unwrap_or(0)
    }

    /// Any block.
    pub(super) fn any(&self) -> Option<BlockId> {
        self.next_occupied(0).map(|bin| self.heads[bin])
    }

    /// Every block.
    #[cfg(test)]
    pub(super) fn all(&self, records: &[Record]) -> impl Iterator<Item = BlockId> {
        (0..BINS).flat_map(|bin| self.blocks(records, bin))
    }

    #[inline]
    fn blocks(&self, records: &[Record], bin: usize) -> impl Iterator<Item = BlockId> {
        let some = |id: BlockId| (id != NONE).then_some(id);
        std::iter::successors(some(self.heads[bin]), move |id| some(records[*id as usize].greater))
    }

    #[inline]
    fn next_occupied(&self, from: usize) -> Option<usize> {
        let word = from / 64;
        let bits = self.occupied.get(word)? & (u64::MAX << (from % 64));
        let later = self.words & (u64::MAX - 1) << word;
        if bits == 0 && later == 0 {
            return None;
        }
        let word = if bits == 0 { later.trailing_zeros() as usize } else { word };
        let bits = if bits == 0 { self.occupied[word] } else { bits };
        Some(word * 64 + bits.trailing_zeros() as usize)
    }
}

/// The neighbours of a block in a bin whose least block is `head`.
#[inline]
fn place(records: &[Record], id: BlockId, head: BlockId) -> (BlockId, BlockId) {
    let new = records[id as usize];
    let (mut less, mut greater) = (NONE, head);
    for _ in 0..ORDERED {
        if greater == NONE || new.is_before(&records[greater as usize]) {
            break;
        }
        (less, greater) = (greater, records[greater as usize].greater);
    }
    (less, greater)
}

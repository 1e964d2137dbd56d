//! The index of the free blocks of one [list](super::List), for best fit.
//!
//! The blocks are in bins of similar lengths. Most bins have one block or none, so a search needs few comparisons. A
//! bitmap marks the bins that are not empty, and a second one marks the words of the first that are not zero. The
//! blocks of a bin are linked through their records, in the order of length, segment ordinal and offset. Addresses
//! have no influence, so equal histories of calls lead to equal places.
//!
//! An insertion or a search examines at most [`ORDERED`] blocks of a bin, so its time does not grow with the number
//! of blocks. The exceptions are [`FreeIndex::longest`], and a search that finds no block in higher bins. A bin is
//! crowded if it has had more than [`ORDERED`] blocks at one time since it was last empty. The blocks of a crowded bin
//! may be out of order.

use super::{BlockId, NONE, Record};
use crate::core::size::{BINS, Units, bin_of};

const WORDS: usize = BINS.div_ceil(64);
const _: () = assert!(WORDS <= 64, "a word has a bit for each");

/// The largest number of blocks of a bin that an insertion or a search examines. A bin that is not crowded is in order.
pub(super) const ORDERED: usize = 16;

#[derive(Debug)]
pub(super) struct FreeIndex {
    /// The first block of each bin.
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

    /// Removes a block. Avoids branches, because whether the block is the first or the last of its bin cannot be
    /// predicted.
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

    /// Returns true if the block `found` and its rest belong in the same bin. [`find`](Self::find) returned the block.
    /// The rest is the part, of `left` units, that stays free when the block is split.
    ///
    /// If the result is true, the block is the first of its bin, so the rest can take the block's place in the index.
    /// Proof: suppose that the block is not the first. Then the request belongs in the same bin, so the rest is shorter
    /// than the width of the bin. No bin has lengths shorter than its own width, so the rest belongs in a lower bin,
    /// and the result is false.
    #[inline]
    pub(super) fn stays(records: &[Record], found: BlockId, left: Units) -> bool {
        bin_of(records[found as usize].units) == bin_of(left)
    }

    /// Puts `id`, the rest of a split block, in the place of that block in the index. Called if the rest
    /// [stays](Self::stays) in the bin of the undivided block. The record of the rest has a copy of the block's links.
    #[inline]
    pub(super) fn put_in_place(&mut self, records: &mut [Record], id: BlockId) {
        let Record { units, less, greater, .. } = records[id as usize];
        debug_assert_eq!(less, NONE, "the first of its bin");
        records[greater as usize].less = id;
        self.heads[bin_of(units)] = id;
    }

    /// Returns the first block, in the order of the index, that has at least `units`, if there is one. If that block is
    /// in a crowded bin, the result may be another block that is long enough, also one from a higher bin.
    #[inline]
    pub(super) fn find(&self, records: &[Record], units: Units) -> Option<BlockId> {
        let bin = bin_of(units);
        let fits = |id: &BlockId| records[*id as usize].units >= units;
        // The head of an empty bin is `NONE`. Its record has length 0, so it never fits.
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

    /// Returns the length of the longest block, or 0.
    pub(super) fn longest(&self, records: &[Record]) -> Units {
        let Some(word) = self.words.checked_ilog2() else { return 0 };
        let bin = word * 64 + self.occupied[word as usize].ilog2();
        self.blocks(records, bin as usize).map(|id| records[id as usize].units).max().unwrap_or(0)
    }

    /// Returns any block.
    pub(super) fn any(&self) -> Option<BlockId> {
        self.next_occupied(0).map(|bin| self.heads[bin])
    }

    /// Returns every block of the bins that the bitmaps mark.
    #[cfg(test)]
    pub(super) fn all(&self, records: &[Record]) -> impl Iterator<Item = BlockId> {
        let bins = std::iter::successors(self.next_occupied(0), |bin| self.next_occupied(bin + 1));
        bins.flat_map(|bin| self.blocks(records, bin))
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

/// Returns the neighbours between which a block is inserted in a bin. `head` is the first block of the bin.
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

//! The free blocks of one list, for best fit.
//!
//! Bins of near lengths, each a short sorted vector; a bit per bin that is not empty. The order is (length,
//! segment's ordinal, offset): never an address, so that equal histories choose equal places.

use super::BlockId;
use crate::core::size::{BINS, Units, bin_of};

const WORDS: usize = BINS.div_ceil(64);

/// Keys that a bin has room for from its first on.
const ROOM: usize = 32;

/// A free block, as the index orders it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) units: Units,
    pub(super) segment: u32,
    pub(super) offset: Units,
    pub(super) id: BlockId,
}

#[derive(Debug)]
pub(super) struct FreeIndex {
    bins: Vec<Vec<Key>>,
    occupied: [u64; WORDS],
}

impl Default for FreeIndex {
    fn default() -> Self {
        Self { bins: vec![Vec::new(); BINS], occupied: [0; WORDS] }
    }
}

impl FreeIndex {
    pub(super) fn insert(&mut self, key: Key) {
        let bin = bin_of(key.units);
        let keys = &mut self.bins[bin];
        if keys.capacity() == 0 {
            // Rarely more, so that bins soon stop growing.
            keys.reserve(ROOM);
        }
        let at = keys.partition_point(|other| *other < key);
        keys.insert(at, key);
        self.occupied[bin / 64] |= 1 << (bin % 64);
    }

    pub(super) fn remove(&mut self, key: &Key) {
        let bin = bin_of(key.units);
        let at = self.bins[bin].partition_point(|other| other < key);
        debug_assert_eq!(self.bins[bin].get(at), Some(key), "a free block is in the index");
        self.remove_at(bin, at);
    }

    fn remove_at(&mut self, bin: usize, at: usize) -> Key {
        let keys = &mut self.bins[bin];
        let key = keys.remove(at);
        if keys.is_empty() {
            self.occupied[bin / 64] &= !(1 << (bin % 64));
        }
        key
    }

    /// Takes out the least block of at least `units`.
    pub(super) fn take(&mut self, units: Units) -> Option<Key> {
        let bin = bin_of(units);
        let at = self.bins[bin].partition_point(|key| key.units < units);
        if at < self.bins[bin].len() {
            return Some(self.remove_at(bin, at));
        }
        let next = self.next_occupied(bin + 1)?;
        Some(self.remove_at(next, 0))
    }

    /// Length of the longest block.
    pub(super) fn longest(&self) -> Units {
        let word = self.occupied.iter().rposition(|word| *word != 0);
        word.and_then(|word| {
            let bin = word * 64 + 63 - self.occupied[word].leading_zeros() as usize;
            self.bins[bin].last()
        })
        .map_or(0, |key| key.units)
    }

    fn next_occupied(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut bits = self.occupied.get(word)? & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            bits = *self.occupied.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }
}

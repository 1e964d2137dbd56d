//! The free blocks of one list, for best fit.
//!
//! Bins of near lengths, each a short sorted vector; a bit per bin that is not empty. The order is (length,
//! segment's ordinal, offset): never an address, so that equal histories choose equal places.

use super::BlockId;
use crate::core::size::{BINS, Units, bin_of};

const WORDS: usize = BINS.div_ceil(64);

/// Keys that a bin has room for from its first on.
const ROOM: usize = 32;

/// A free block, as the index orders it: length, segment, offset and name in one number, from the highest bits down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(u128);

impl Key {
    #[inline]
    pub(super) fn new(units: Units, segment: u32, offset: Units, id: BlockId) -> Self {
        let place = u64::from(segment) << 32 | u64::from(offset);
        Self(u128::from(units) << 96 | u128::from(place) << 32 | u128::from(id))
    }

    #[inline]
    pub(super) fn units(self) -> Units {
        (self.0 >> 96) as Units
    }

    #[inline]
    pub(super) fn segment(self) -> u32 {
        (self.0 >> 64) as u32
    }

    #[inline]
    pub(super) fn offset(self) -> Units {
        (self.0 >> 32) as Units
    }

    #[inline]
    pub(super) fn id(self) -> BlockId {
        self.0 as BlockId
    }
}

#[derive(Debug)]
pub(super) struct FreeIndex {
    bins: Box<[Vec<Key>; BINS]>,
    occupied: [u64; WORDS],
}

impl Default for FreeIndex {
    fn default() -> Self {
        Self { bins: Box::new([const { Vec::new() }; BINS]), occupied: [0; WORDS] }
    }
}

impl FreeIndex {
    pub(super) fn insert(&mut self, key: Key) {
        let bin = bin_of(key.units());
        let keys = &mut self.bins[bin];
        if keys.capacity() == 0 {
            // Rarely more, so that bins soon stop growing.
            keys.reserve(ROOM);
        }
        match keys.last() {
            Some(last) if *last > key => {
                let at = keys.partition_point(|other| *other < key);
                keys.insert(at, key);
            }
            _ => keys.push(key),
        }
        self.occupied[bin / 64] |= 1 << (bin % 64);
    }

    pub(super) fn remove(&mut self, key: Key) {
        let bin = bin_of(key.units());
        let keys = &self.bins[bin];
        let at = if keys.len() == 1 { 0 } else { keys.partition_point(|other| *other < key) };
        debug_assert_eq!(keys.get(at), Some(&key), "a free block is in the index");
        self.remove_at(bin, at);
    }

    #[inline]
    fn remove_at(&mut self, bin: usize, at: usize) -> Key {
        let keys = &mut self.bins[bin];
        let key = keys[at];
        if keys.len() == 1 {
            keys.clear();
            self.occupied[bin / 64] &= !(1 << (bin % 64));
        } else {
            keys.remove(at);
        }
        key
    }

    /// Takes out the least block of at least `units`, unless it has more than `most`.
    pub(super) fn take(&mut self, units: Units, most: Units) -> Option<Key> {
        let mut bin = bin_of(units);
        let mut at = 0;
        let keys = &self.bins[bin];
        // Most bins have few keys, and the last is the longest.
        if keys.last().is_some_and(|last| last.units() >= units) {
            at = keys.partition_point(|key| key.units() < units);
        } else {
            bin = self.next_occupied(bin + 1)?;
        }
        (self.bins[bin][at].units() <= most).then(|| self.remove_at(bin, at))
    }

    /// Length of the longest block.
    pub(super) fn longest(&self) -> Units {
        let word = self.occupied.iter().rposition(|word| *word != 0);
        word.and_then(|word| {
            let bin = word * 64 + 63 - self.occupied[word].leading_zeros() as usize;
            self.bins[bin].last()
        })
        .map_or(0, |key| key.units())
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

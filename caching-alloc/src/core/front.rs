//! Cache of freed blocks, kept whole for the next request of the same length: the fast path of allocation and
//! free.
//!
//! A fixed table of lists, with two possible slots for each length. If both slots are taken by other lengths,
//! the block goes to the heap. The cached bytes are bounded. At the bound, a few blocks of each length in
//! turn go to the heap. So the cached lengths are those in use, and no single free takes long. Of long blocks
//! only the last one is cached, and only for the next request that the heap would serve: if that has another
//! length, the block goes to the heap first, as if it had never been cached.

use super::heap::{BlockId, NONE};
use super::lease::{Leases, Tenancy};
use super::size::{UNIT, Units, bytes_of};

const SLOTS: usize = 1024;

/// Blocks longer than the bound divided by this are not cached in slots.
const SHARE: u64 = 16;

#[derive(Clone, Copy, Debug)]
struct Slot {
    units: Units,
    head: BlockId,
}

#[derive(Debug)]
pub(super) struct Front {
    slots: Box<[Slot; SLOTS]>,
    /// A bit for each slot that may have a block, and the next slot to evict from.
    touched: [u64; SLOTS / 64],
    hand: usize,
    kept: u64,
    limit: u64,
    /// The limit at creation, which is the maximum.
    most: u64,
    /// The longest block that is cached in slots.
    longest: Units,
    /// True if the last long block is cached; and that block.
    keeps_long: bool,
    long: BlockId,
}

impl Front {
    /// Makes a cache of at most `limit` bytes, and of the last long block if it `keeps_long`.
    pub(super) fn new(limit: u64, keeps_long: bool) -> Self {
        Self {
            slots: Box::new([Slot { units: 0, head: NONE }; SLOTS]),
            touched: [0; SLOTS / 64],
            hand: 0,
            kept: 0,
            limit,
            most: limit,
            longest: Units::try_from(limit / SHARE / UNIT).unwrap_or(Units::MAX),
            keeps_long,
            long: NONE,
        }
    }

    /// Lowers or raises the limit, at most to the limit at creation. One block is always cached.
    pub(super) fn limit_to(&mut self, bytes: u64) {
        self.limit = bytes.min(self.most);
    }

    /// Takes a block of exactly this length, to be handed out.
    #[inline]
    pub(super) fn take(&mut self, leases: &mut Leases, units: Units) -> Option<BlockId> {
        if !self.is_short(units) {
            let id = self.long;
            if id == NONE || leases[id].units != units {
                return None;
            }
            self.long = NONE;
            leases.set(id, Tenancy::Owned);
            return Some(id);
        }
        let [first, second] = places(units);
        let holds = |slot: &Slot| slot.units == units && slot.head != NONE;
        let place = if holds(&self.slots[first]) { first } else { second };
        let slot = &mut self.slots[place];
        if !holds(slot) {
            return None;
        }
        let id = slot.head;
        slot.head = leases[id].link;
        leases.set(id, Tenancy::Owned);
        self.kept -= bytes_of(units);
        Some(id)
    }

    /// Returns true if blocks must be evicted before one of this length is cached.
    #[inline]
    pub(super) fn is_full_for(&self, units: Units) -> bool {
        self.is_short(units) && self.kept > 0 && self.kept + bytes_of(units) > self.limit
    }

    /// Caches a block that is no longer used. Returns the block that goes to the heap instead: this one, or
    /// one that it replaced.
    #[inline]
    pub(super) fn keep(&mut self, leases: &mut Leases, id: BlockId) -> Option<BlockId> {
        let units = leases[id].units;
        if !self.is_short(units) {
            if !self.keeps_long {
                return Some(id);
            }
            leases.set(id, Tenancy::Kept);
            let before = std::mem::replace(&mut self.long, id);
            return (before != NONE).then_some(before);
        }
        let [first, second] = places(units);
        let holds = |at: &usize| self.slots[*at].units == units;
        let is_free = |at: &usize| self.slots[*at].head == NONE;
        let place = [first, second].into_iter().find(holds);
        let Some(place) = place.or_else(|| [first, second].into_iter().find(is_free)) else {
            return Some(id);
        };
        let slot = &mut self.slots[place];
        leases[id].link = slot.head;
        leases.set(id, Tenancy::Kept);
        slot.head = id;
        if slot.units != units {
            slot.units = units;
        }
        // A store delays the next lock operation, so it is made only if the value changes.
        let (touched, bit) = (&mut self.touched[place / 64], 1 << (place % 64));
        if *touched & bit == 0 {
            *touched |= bit;
        }
        self.kept += bytes_of(units);
        None
    }

    /// Takes the long block out, for the heap.
    #[inline]
    pub(super) fn give_long(&mut self) -> Option<BlockId> {
        let long = std::mem::replace(&mut self.long, NONE);
        (long != NONE).then_some(long)
    }

    /// Evicts the long block and at most `most` others. Returns whether there are more.
    pub(super) fn drain(
        &mut self,
        leases: &mut Leases,
        most: usize,
        mut give: impl FnMut(&mut Leases, BlockId),
    ) -> bool {
        if let Some(id) = self.give_long() {
            give(leases, id);
        }
        self.evict(leases, most, give);
        self.kept > 0
    }

    /// Evicts at most `most` short blocks, a few of each length in turn.
    pub(super) fn evict(
        &mut self,
        leases: &mut Leases,
        mut most: usize,
        mut give: impl FnMut(&mut Leases, BlockId),
    ) {
        while let Some(place) = self.next_touched() {
            let slot = &mut self.slots[place];
            self.hand = place;
            while slot.head != NONE {
                if most == 0 {
                    return;
                }
                most -= 1;
                let id = slot.head;
                slot.head = leases[id].link;
                self.kept -= bytes_of(slot.units);
                give(leases, id);
            }
            self.touched[place / 64] &= !(1 << (place % 64));
        }
    }

    /// The first slot from the hand on, with wrap-around, that may have a block.
    fn next_touched(&self) -> Option<usize> {
        let first = self.hand / 64;
        let ahead = u64::MAX << (self.hand % 64);
        (0..=self.touched.len()).find_map(|step| {
            let word = (first + step) % self.touched.len();
            let mask = match step {
                0 => ahead,
                step if step == self.touched.len() => !ahead,
                _ => u64::MAX,
            };
            let touched = self.touched[word] & mask;
            (touched != 0).then(|| word * 64 + touched.trailing_zeros() as usize)
        })
    }

    /// Returns true if any block is cached.
    #[inline]
    pub(super) fn keeps_any(&self) -> bool {
        self.kept > 0 || self.long != NONE
    }

    #[inline]
    fn is_short(&self, units: Units) -> bool {
        units <= self.longest
    }
}

#[inline]
fn places(units: Units) -> [usize; 2] {
    let first = (units.wrapping_mul(0x9e37_79b1) >> 22) as usize;
    [first, first ^ 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(blocks: &[Units]) -> (Leases, Vec<BlockId>) {
        let mut leases = Leases::default();
        let ids = (1..).zip(blocks);
        ids.clone().for_each(|(block, units)| leases.add(block, 0, *units));
        (leases, ids.map(|(block, _)| block).collect())
    }

    fn drained(front: &mut Front, leases: &mut Leases) -> usize {
        let mut count = 0;
        while front.drain(leases, 3, |leases, id| {
            leases.end(id);
            count += 1;
        }) {}
        count
    }

    #[test]
    fn the_last_in_of_the_same_length_is_the_first_out() {
        let (mut leases, ids) = with(&[3, 3, 4]);
        let mut front = Front::new(1 << 20, false);
        assert!(ids.iter().all(|id| front.keep(&mut leases, *id).is_none()));
        assert_eq!(front.take(&mut leases, 3), Some(ids[1]));
        assert_eq!(front.take(&mut leases, 3), Some(ids[0]));
        assert_eq!(front.take(&mut leases, 3), None);
        assert_eq!(front.take(&mut leases, 5), None);
        assert_eq!(front.take(&mut leases, 4), Some(ids[2]));
        assert_eq!(front.kept, 0);
    }

    #[test]
    fn no_more_is_kept_than_the_bound() {
        let limit = 100 * 512;
        let (mut leases, ids) = with(&[6; 16]);
        let mut front = Front::new(limit, false);
        for id in ids {
            assert!(!front.is_full_for(6));
            assert!(front.keep(&mut leases, id).is_none() && front.kept <= limit);
        }
        assert!(front.is_full_for(6));
        assert_eq!(drained(&mut front, &mut leases), 16);
        assert_eq!(drained(&mut front, &mut leases), 0);
        assert!((1..=16).all(|id| leases.get(id).is_none()));
        // A sixteenth of the bound is 6.25 units: longer ones are not kept.
        let long = 1;
        leases.add(long, 0, 7);
        assert!(!front.is_full_for(7) && front.keep(&mut leases, long) == Some(long));
    }

    #[test]
    fn blocks_give_way_a_few_of_each_length_in_turn() {
        let (mut leases, ids) = with(&[1, 2, 3, 1, 2, 3, 1, 2, 3]);
        let mut front = Front::new(1 << 20, false);
        assert!(ids.iter().all(|id| front.keep(&mut leases, *id).is_none()));
        let mut lengths = Vec::new();
        for step in 0..5 {
            front.evict(&mut leases, 2, |leases, id| {
                lengths.push(leases[id].units);
                leases.end(id);
            });
            assert_eq!(lengths.len(), (2 * step + 2).min(9));
        }
        // All of a length go before the next one is looked at, so that none stays for ever.
        assert!([0, 3, 6].iter().all(|at| lengths[*at..at + 3].iter().all(|units| *units == lengths[*at])));
        assert_eq!(front.kept, 0);
        assert!(!front.keeps_any());
    }

    #[test]
    fn the_last_long_block_is_kept_until_another_or_the_heap_wants_its_place() {
        let (mut leases, ids) = with(&[100, 200, 100]);
        let mut front = Front::new(100 * 512, true);
        assert_eq!(front.keep(&mut leases, ids[0]), None);
        assert_eq!(front.take(&mut leases, 200), None);
        assert_eq!(front.take(&mut leases, 100), Some(ids[0]));
        assert_eq!(front.take(&mut leases, 100), None);
        assert_eq!(front.keep(&mut leases, ids[1]), None);
        assert_eq!(front.keep(&mut leases, ids[2]), Some(ids[1]));
        assert_eq!(front.give_long(), Some(ids[2]));
        assert_eq!(front.give_long(), None);
        assert_eq!(front.keep(&mut leases, ids[0]), None);
        assert_eq!(drained(&mut front, &mut leases), 1);
        assert_eq!(drained(&mut front, &mut leases), 0);
    }

    #[test]
    fn a_length_without_a_slot_is_not_kept() {
        let mut front = Front::new(1 << 30, false);
        let same = |units: &Units| places(*units)[0] / 2 == places(1)[0] / 2;
        let lengths: Vec<Units> = (1..50_000).filter(same).take(3).collect();
        let (mut leases, ids) = with(&lengths);
        let kept: Vec<_> = ids.iter().map(|id| front.keep(&mut leases, *id).is_none()).collect();
        assert_eq!(kept, [true, true, false], "two others have its slots");
        assert_eq!(front.take(&mut leases, lengths[1]), Some(ids[1]));
        assert_eq!(front.take(&mut leases, lengths[0]), Some(ids[0]));
    }
}

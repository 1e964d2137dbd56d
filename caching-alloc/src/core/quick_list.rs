//! The quick list, a cache of freed blocks: the fast path of allocation and free. A cached block is not merged with
//! its neighbours, so the next request of the same length can take it as it is. All other free blocks are in the
//! heap, which merges them.
//!
//! Short blocks are cached in a table of linked lists, one list for each length. A length has two possible slots in
//! the table. If other lengths have taken both, the block goes to the heap instead. The bytes in short blocks are
//! limited. A free that would exceed the limit first evicts a bounded number of blocks to the heap. Evictions empty one
//! slot after the other, so no length stays cached for ever without being requested.
//!
//! Of the long blocks, only the one that was freed last is cached, outside the table. Re-mappable pools cache no long
//! block. The next request that the table does not serve takes the long block out of the cache. If the request has the
//! same length, it gets that block. Otherwise the long block goes to the heap first, and the heap then serves the
//! request. So the heap places the request as if the long block had never been cached.

use super::block_meta::{BlockStatus, BlockTable};
use super::heap::{BlockId, NONE};
use super::size::{UNIT, Units, bytes_of};

const SLOTS: usize = 1024;

/// A block is long if it has more bytes than the limit passed to [`QuickList::new`], divided by this.
const SHARE: u64 = 16;

#[derive(Clone, Copy, Debug)]
struct Slot {
    units: Units,
    head: BlockId,
}

#[derive(Debug)]
pub(super) struct QuickList {
    slots: Box<[Slot; SLOTS]>,
    /// A bit for each slot. It is set if the slot may have a block.
    touched: [u64; SLOTS / 64],
    /// The slot at which the next eviction starts.
    evict_at: usize,
    /// Bytes in the cached short blocks.
    kept: u64,
    /// Limit on `kept`.
    limit: u64,
    /// The limit at creation, which is the maximum.
    max_limit: u64,
    /// The length of the longest short block.
    longest: Units,
    /// True if the long block that was freed last is to be cached.
    keeps_long: bool,
    /// The cached long block, or `NONE`.
    long: BlockId,
}

impl QuickList {
    /// Makes an empty cache for at most `limit` bytes of short blocks and, with `keeps_long`, for one long block.
    pub(super) fn new(limit: u64, keeps_long: bool) -> Self {
        Self {
            slots: Box::new([Slot { units: 0, head: NONE }; SLOTS]),
            touched: [0; SLOTS / 64],
            evict_at: 0,
            kept: 0,
            limit,
            max_limit: limit,
            longest: Units::try_from(limit / SHARE / UNIT).unwrap_or(Units::MAX),
            keeps_long,
            long: NONE,
        }
    }

    /// Sets the limit to `bytes`, or to the limit at creation if that is lower. Even at limit 0, one short block can be
    /// cached.
    pub(super) fn limit_to(&mut self, bytes: u64) {
        self.limit = bytes.min(self.max_limit);
    }

    /// Takes a cached block of exactly this length out of the cache, to be handed out.
    #[inline]
    pub(super) fn take(&mut self, blocks: &mut BlockTable, units: Units) -> Option<BlockId> {
        if !self.is_short(units) {
            let id = self.long;
            if id == NONE || blocks[id].units != units {
                return None;
            }
            self.long = NONE;
            blocks.set(id, BlockStatus::Owned);
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
        slot.head = blocks.set(id, BlockStatus::Owned).link;
        self.kept -= bytes_of(units);
        Some(id)
    }

    /// Returns true if other blocks must be evicted before a block of this length is cached.
    #[inline]
    pub(super) fn is_full_for(&self, units: Units) -> bool {
        self.is_short(units) && self.kept > 0 && self.kept + bytes_of(units) > self.limit
    }

    /// Caches a block of `units` that is no longer used. Returns the block that the caller must return to the heap, if
    /// any: this block if it could not be cached, or the long block that it replaced.
    #[inline]
    pub(super) fn keep(&mut self, blocks: &mut BlockTable, id: BlockId, units: Units) -> Option<BlockId> {
        if !self.is_short(units) {
            if !self.keeps_long {
                return Some(id);
            }
            blocks.set(id, BlockStatus::Kept);
            let before = std::mem::replace(&mut self.long, id);
            return (before != NONE).then_some(before);
        }
        let [first, second] = places(units);
        let slots = &self.slots;
        let place = if slots[first].units == units {
            first
        } else if slots[second].units == units {
            second
        } else if slots[first].head == NONE {
            first
        } else if slots[second].head == NONE {
            second
        } else {
            return Some(id);
        };
        let slot = &mut self.slots[place];
        blocks.set(id, BlockStatus::Kept).link = slot.head;
        slot.head = id;
        // A store delays the next lock operation, so `units` and `touched` are only written if they change.
        if slot.units != units {
            slot.units = units;
        }
        let (touched, bit) = (&mut self.touched[place / 64], 1 << (place % 64));
        if *touched & bit == 0 {
            *touched |= bit;
        }
        self.kept += bytes_of(units);
        None
    }

    /// Takes the long block out of the cache. The caller must return it to the heap.
    #[inline]
    pub(super) fn give_long(&mut self) -> Option<BlockId> {
        let long = std::mem::replace(&mut self.long, NONE);
        (long != NONE).then_some(long)
    }

    /// Evicts the long block and at most `most` short blocks, and passes each to `give`. Returns true if short blocks
    /// are left.
    pub(super) fn drain(
        &mut self,
        blocks: &mut BlockTable,
        most: usize,
        mut give: impl FnMut(&mut BlockTable, BlockId),
    ) -> bool {
        if let Some(id) = self.give_long() {
            give(blocks, id);
        }
        self.evict(blocks, most, give);
        self.kept > 0
    }

    /// Evicts at most `most` short blocks, and passes each to `give`. Continues where the last eviction stopped, and
    /// empties a slot before it goes on to the next one.
    pub(super) fn evict(
        &mut self,
        blocks: &mut BlockTable,
        mut most: usize,
        mut give: impl FnMut(&mut BlockTable, BlockId),
    ) {
        while let Some(place) = self.next_touched() {
            let slot = &mut self.slots[place];
            self.evict_at = place;
            while slot.head != NONE {
                if most == 0 {
                    return;
                }
                most -= 1;
                let id = slot.head;
                slot.head = blocks[id].link;
                self.kept -= bytes_of(slot.units);
                give(blocks, id);
            }
            self.touched[place / 64] &= !(1 << (place % 64));
        }
    }

    /// Returns the first slot that may have a block. The search starts at `evict_at` and wraps around.
    fn next_touched(&self) -> Option<usize> {
        let first = self.evict_at / 64;
        let ahead = u64::MAX << (self.evict_at % 64);
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

/// Returns the indices of the two slots that blocks of this length can have.
#[inline]
fn places(units: Units) -> [usize; 2] {
    let first = (units.wrapping_mul(0x9e37_79b1) >> 22) as usize;
    [first, first ^ 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(lengths: &[Units]) -> (BlockTable, Vec<BlockId>) {
        let mut blocks = BlockTable::default();
        let ids = (1..).zip(lengths);
        ids.clone().for_each(|(block, units)| blocks.add(block, 0, *units));
        (blocks, ids.map(|(block, _)| block).collect())
    }

    fn keep(quick: &mut QuickList, blocks: &mut BlockTable, id: BlockId) -> Option<BlockId> {
        let units = blocks[id].units;
        quick.keep(blocks, id, units)
    }

    fn drained(quick: &mut QuickList, blocks: &mut BlockTable) -> usize {
        let mut count = 0;
        while quick.drain(blocks, 3, |blocks, id| {
            blocks.end(id);
            count += 1;
        }) {}
        count
    }

    #[test]
    fn the_last_in_of_the_same_length_is_the_first_out() {
        let (mut blocks, ids) = with(&[3, 3, 4]);
        let mut quick = QuickList::new(1 << 20, false);
        assert!(ids.iter().all(|id| keep(&mut quick, &mut blocks, *id).is_none()));
        assert_eq!(quick.take(&mut blocks, 3), Some(ids[1]));
        assert_eq!(quick.take(&mut blocks, 3), Some(ids[0]));
        assert_eq!(quick.take(&mut blocks, 3), None);
        assert_eq!(quick.take(&mut blocks, 5), None);
        assert_eq!(quick.take(&mut blocks, 4), Some(ids[2]));
        assert_eq!(quick.kept, 0);
    }

    #[test]
    fn no_more_is_kept_than_the_limit() {
        let limit = 100 * 512;
        let (mut blocks, ids) = with(&[6; 16]);
        let mut quick = QuickList::new(limit, false);
        for id in ids {
            assert!(!quick.is_full_for(6));
            assert!(keep(&mut quick, &mut blocks, id).is_none() && quick.kept <= limit);
        }
        assert!(quick.is_full_for(6));
        assert_eq!(drained(&mut quick, &mut blocks), 16);
        assert_eq!(drained(&mut quick, &mut blocks), 0);
        assert!((1..=16).all(|id| blocks.get(id).is_none()));
        // A sixteenth of the limit is 6.25 units: longer blocks are not kept.
        let long = 1;
        blocks.add(long, 0, 7);
        assert!(!quick.is_full_for(7) && keep(&mut quick, &mut blocks, long) == Some(long));
    }

    #[test]
    fn eviction_empties_one_length_after_the_other() {
        let (mut blocks, ids) = with(&[1, 2, 3, 1, 2, 3, 1, 2, 3]);
        let mut quick = QuickList::new(1 << 20, false);
        assert!(ids.iter().all(|id| keep(&mut quick, &mut blocks, *id).is_none()));
        let mut lengths = Vec::new();
        for step in 0..5 {
            quick.evict(&mut blocks, 2, |blocks, id| {
                lengths.push(blocks[id].units);
                blocks.end(id);
            });
            assert_eq!(lengths.len(), (2 * step + 2).min(9));
        }
        // All blocks of a length are evicted before the next length, so no block stays for ever.
        assert!([0, 3, 6].iter().all(|at| lengths[*at..at + 3].iter().all(|units| *units == lengths[*at])));
        assert_eq!(quick.kept, 0);
        assert!(!quick.keeps_any());
    }

    #[test]
    fn the_last_long_block_is_kept_until_it_is_taken_or_replaced() {
        let (mut blocks, ids) = with(&[100, 200, 100]);
        let mut quick = QuickList::new(100 * 512, true);
        assert_eq!(keep(&mut quick, &mut blocks, ids[0]), None);
        assert_eq!(quick.take(&mut blocks, 200), None);
        assert_eq!(quick.take(&mut blocks, 100), Some(ids[0]));
        assert_eq!(quick.take(&mut blocks, 100), None);
        assert_eq!(keep(&mut quick, &mut blocks, ids[1]), None);
        assert_eq!(keep(&mut quick, &mut blocks, ids[2]), Some(ids[1]));
        assert_eq!(quick.give_long(), Some(ids[2]));
        assert_eq!(quick.give_long(), None);
        assert_eq!(keep(&mut quick, &mut blocks, ids[0]), None);
        assert_eq!(drained(&mut quick, &mut blocks), 1);
        assert_eq!(drained(&mut quick, &mut blocks), 0);
    }

    #[test]
    fn a_length_without_a_slot_is_not_kept() {
        let mut quick = QuickList::new(1 << 30, false);
        let same = |units: &Units| places(*units)[0] / 2 == places(1)[0] / 2;
        let lengths: Vec<Units> = (1..50_000).filter(same).take(3).collect();
        let (mut blocks, ids) = with(&lengths);
        let kept: Vec<_> = ids.iter().map(|id| keep(&mut quick, &mut blocks, *id).is_none()).collect();
        assert_eq!(kept, [true, true, false], "two others have its slots");
        assert_eq!(quick.take(&mut blocks, lengths[1]), Some(ids[1]));
        assert_eq!(quick.take(&mut blocks, lengths[0]), Some(ids[0]));
    }
}

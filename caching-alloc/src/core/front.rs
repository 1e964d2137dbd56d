//! Freed blocks, kept whole for the next request of the same length: the quick way in and out.
//!
//! A fixed table of lists, two possible slots a length. A length that finds both taken by others is not kept;
//! the blocks of it go to the heap. Bounded in bytes; over the bound everything goes to the heap, so that the
//! lengths kept are those in use. Long blocks are not kept at all: they are few, and whole.

use super::heap::{BlockId, Heap, NONE, State};
use super::size::{Units, bytes_of};

const SLOTS: usize = 1024;

/// No block longer than this part of the bound is kept.
const SHARE: u64 = 16;

#[derive(Clone, Copy, Debug)]
struct Slot {
    units: Units,
    head: BlockId,
}

#[derive(Debug)]
pub(super) struct Front {
    slots: Box<[Slot]>,
    /// A bit for each slot that has had a block since the last drain.
    touched: [u64; SLOTS / 64],
    kept: u64,
    limit: u64,
}

impl Front {
    /// A front that keeps at most `limit` bytes.
    pub(super) fn new(limit: u64) -> Self {
        Self {
            slots: vec![Slot { units: 0, head: NONE }; SLOTS].into_boxed_slice(),
            touched: [0; SLOTS / 64],
            kept: 0,
            limit,
        }
    }

    /// A block of exactly that length, handed out.
    pub(super) fn take(&mut self, heap: &mut Heap, units: Units) -> Option<BlockId> {
        let slot = self.slot_of(units)?;
        let id = slot.head;
        let block = heap.block_mut(id);
        slot.head = std::mem::replace(&mut block.link, NONE);
        block.state = State::Used;
        self.kept -= bytes_of(units);
        Some(id)
    }

    /// Takes a block that is not used any more; merges it into the heap if it is not to be kept.
    pub(super) fn put(&mut self, heap: &mut Heap, id: BlockId) {
        let units = heap.block(id).units;
        let bytes = bytes_of(units);
        if bytes > self.limit / SHARE {
            heap.free(id);
            return;
        }
        if self.kept + bytes > self.limit {
            self.drain(heap);
        }
        let [first, second] = places(units);
        let found = [first, second].into_iter().find(|at| self.slots[*at].units == units);
        let place = found.or_else(|| [first, second].into_iter().find(|at| self.slots[*at].head == NONE));
        let Some(place) = place else {
            heap.free(id);
            return;
        };
        let slot = &mut self.slots[place];
        let block = heap.block_mut(id);
        block.link = slot.head;
        block.state = State::Kept;
        block.requested = 0;
        *slot = Slot { units, head: id };
        self.touched[place / 64] |= 1 << (place % 64);
        self.kept += bytes;
    }

    /// Merges everything into the heap. Returns whether there was anything.
    pub(super) fn drain(&mut self, heap: &mut Heap) -> bool {
        if self.kept == 0 {
            return false;
        }
        for (word, touched) in self.touched.iter_mut().enumerate() {
            while *touched != 0 {
                let slot = &mut self.slots[word * 64 + touched.trailing_zeros() as usize];
                *touched &= *touched - 1;
                while slot.head != NONE {
                    let id = slot.head;
                    slot.head = std::mem::replace(&mut heap.block_mut(id).link, NONE);
                    heap.free(id);
                }
            }
        }
        self.kept = 0;
        true
    }

    fn slot_of(&mut self, units: Units) -> Option<&mut Slot> {
        let [first, second] = places(units);
        let holds = |slot: &Slot| slot.units == units && slot.head != NONE;
        let place = if holds(&self.slots[first]) { first } else { second };
        Some(&mut self.slots[place]).filter(|slot| holds(slot))
    }
}

fn places(units: Units) -> [usize; 2] {
    let first = (units.wrapping_mul(0x9e37_79b1) >> 22) as usize;
    [first, first ^ 1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::segment::SizeClass::Large;

    fn with(blocks: &[Units]) -> (Heap, Vec<BlockId>) {
        let mut heap = Heap::default();
        heap.add_segment(100_000, Large);
        let ids = blocks.iter().map(|units| heap.allocate(*units, Large, true).unwrap()).collect();
        (heap, ids)
    }

    #[test]
    fn the_last_in_of_the_same_length_is_the_first_out() {
        let (mut heap, ids) = with(&[3, 3, 4]);
        let mut front = Front::new(1 << 20);
        ids.iter().for_each(|id| front.put(&mut heap, *id));
        assert_eq!(front.take(&mut heap, 3), Some(ids[1]));
        assert_eq!(front.take(&mut heap, 3), Some(ids[0]));
        assert_eq!(front.take(&mut heap, 3), None);
        assert_eq!(front.take(&mut heap, 5), None);
        assert_eq!(front.take(&mut heap, 4), Some(ids[2]));
        assert_eq!(front.kept, 0);
    }

    #[test]
    fn no_more_is_kept_than_the_bound() {
        let limit = 100 * 512;
        let (mut heap, ids) = with(&[6; 40]);
        let mut front = Front::new(limit);
        for id in ids {
            front.put(&mut heap, id);
            assert!(front.kept <= limit);
        }
        assert_eq!(front.kept, 8 * 6 * 512, "over the bound all went to the heap, and it began anew");
        assert!(front.drain(&mut heap));
        assert!(!front.drain(&mut heap));
        assert!(heap.is_free(0), "all is merged");
        // A seventeenth of the bound is too long to be kept.
        let long = heap.allocate(7, Large, true).unwrap();
        front.put(&mut heap, long);
        assert!(front.kept == 0 && heap.is_free(0));
    }

    #[test]
    fn a_length_without_a_slot_goes_to_the_heap() {
        let mut front = Front::new(1 << 30);
        let same = |units: &Units| places(*units)[0] / 2 == places(1)[0] / 2;
        let lengths: Vec<Units> = (1..50_000).filter(same).take(3).collect();
        let (mut heap, ids) = with(&lengths);
        ids.iter().for_each(|id| front.put(&mut heap, *id));
        assert_eq!(front.take(&mut heap, lengths[2]), None, "two others have its slots");
        assert_eq!(front.take(&mut heap, lengths[1]), Some(ids[1]));
        assert_eq!(front.take(&mut heap, lengths[0]), Some(ids[0]));
    }
}

//! Layout and allocation of a rank's slots: words in device memory by which its peers signal to it.

use std::ops::Range;

use cuda_driver::DevicePtr;

/// Size of a slot in bytes. A slot consists of four 32-bit words in device memory, by which one peer signals to this
/// rank. A slot is used for one of these:
/// - one transfer of a [plan](super::Plan). The transfer runs in rounds: one end signals that its buffer is ready,
///   and the other end copies and signals that the copy is done. Each of these signals writes the count word, or in a
///   graph the toggle word.
/// - the transfers between the [regions](super::Regions) of this rank and the peer. Each
///   [notification](super::Regions::transfer_and_notify) from the peer writes the count word.
///
/// This rank sets all words to 0 before the peer learns the slot's number. Once the plan, or the transfers between the
/// regions, have [failed](super::Fault), this rank also writes the count and the toggle, to release its own waits. Once
/// the peer has set the abort word, the count and the toggle are invalid.
///
/// | word | written by | meaning |
/// |---|---|---|
/// | count | the peer | the last round that the peer has signalled, or the number of notifications that it has sent |
/// | toggle | the peer sets it, this rank resets it | 1 if the peer has signalled for the current round of a graph |
/// | abort | the peer | 1 if the plan, or the transfers between the regions, have failed on the peer |
/// | dropped | the peer | 1 if the peer has dropped its regions: no further notification comes |
pub(super) const SLOT_BYTES: usize = 16;

/// Addresses of the words of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Words {
    pub(super) count: DevicePtr,
    pub(super) toggle: DevicePtr,
    pub(super) abort: DevicePtr,
    pub(super) dropped: DevicePtr,
}

/// Returns the addresses of the words of slot `slot` in the slab (array of slots) at `slab`.
pub(super) fn words(slab: DevicePtr, slot: usize) -> Words {
    let begin = slab + slot * SLOT_BYTES;
    Words { count: begin, toggle: begin + 4usize, abort: begin + 8usize, dropped: begin + 12usize }
}

/// The free slots of this rank's slab.
#[derive(Debug)]
pub struct Slots {
    /// Free ranges, ascending; no two of them are adjacent.
    free: Vec<Range<usize>>,
}

impl Slots {
    /// `count` slots, all of them free.
    pub fn new(count: usize) -> Self {
        let whole = 0..count;
        Self { free: if count == 0 { Vec::new() } else { vec![whole] } }
    }

    /// Allocates the first `count` adjacent slots that are free. Returns `None` if no `count` adjacent slots are free.
    pub fn take(&mut self, count: usize) -> Option<Range<usize>> {
        if count == 0 {
            return Some(0..0);
        }
        let at = self.free.iter().position(|range| range.len() >= count)?;
        let range = &mut self.free[at];
        let taken = range.start..range.start + count;
        range.start += count;
        if range.start == range.end {
            self.free.remove(at);
        }
        Some(taken)
    }

    /// Frees slots that [`take`](Self::take) returned.
    pub fn give_back(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let at = self.free.partition_point(|free| free.start < range.start);
        self.free.insert(at, range);
        // Merges the range with the next free range, then with the previous one, if they are adjacent.
        for at in [at, at.saturating_sub(1)] {
            if let [first, second, ..] = &self.free[at..]
                && first.end == second.start
            {
                self.free[at].end = second.end;
                self.free.remove(at + 1);
            }
        }
    }

    /// Number of free slots.
    pub fn free(&self) -> usize {
        self.free.iter().map(Range::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_slot_is_taken_twice_and_all_come_back(
            requests in proptest::collection::vec((1usize..9, any::<bool>()), 1..60),
        ) {
            let mut slots = Slots::new(64);
            let mut taken: Vec<Range<usize>> = Vec::new();
            for (count, take) in requests {
                if take {
                    let Some(range) = slots.take(count) else { continue };
                    prop_assert_eq!(range.len(), count);
                    prop_assert!(range.end <= 64);
                    prop_assert!(taken.iter().all(|other| other.end <= range.start || range.end <= other.start));
                    taken.push(range);
                } else if !taken.is_empty() {
                    slots.give_back(taken.swap_remove(count % taken.len()));
                }
                prop_assert_eq!(slots.free() + taken.iter().map(Range::len).sum::<usize>(), 64);
            }
            taken.into_iter().for_each(|range| slots.give_back(range));
            prop_assert_eq!(slots.take(64), Some(0..64));
        }
    }
}

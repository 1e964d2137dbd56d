//! Symmetric address space: one range per communicator, in which every window gets a place.

use std::collections::BTreeMap;

/// Granularity of places in bytes.
const PAGE: u64 = 2 << 20;

/// A range of addresses from 0, allocated first fit.
#[derive(Debug)]
pub(crate) struct Space {
    bytes: u64,
    /// Free ranges: start → length.
    free: BTreeMap<u64, u64>,
    /// True if freed ranges are reused (not in 2.27).
    reuses: bool,
}

impl Space {
    pub(crate) fn new(bytes: u64, reuses: bool) -> Self {
        Self { bytes, free: BTreeMap::from([(0, bytes)]), reuses }
    }

    /// Takes a place for `bytes`; returns `None` if there is no room.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        let bytes = bytes.checked_next_multiple_of(PAGE)?;
        let (&start, &len) = self.free.iter().find(|&(_, &len)| len >= bytes)?;
        self.free.remove(&start);
        if len > bytes {
            self.free.insert(start + bytes, len - bytes);
        }
        Some(start)
    }

    /// Frees a place.
    pub(crate) fn give(&mut self, start: u64, bytes: u64) {
        if !self.reuses {
            return;
        }
        let (mut start, mut len) = (start, bytes.next_multiple_of(PAGE));
        if let Some(after) = self.free.remove(&(start + len)) {
            len += after;
        }
        if let Some((&before, &gap)) = self.free.range(..start).next_back()
            && before + gap == start
        {
            (start, len) = (before, gap + len);
        }
        self.free.insert(start, len);
    }

    /// Bytes of the largest free range.
    pub(crate) fn largest(&self) -> u64 {
        self.free.values().copied().max().unwrap_or(0)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn places_never_overlap_and_all_comes_back(
            steps in proptest::collection::vec((any::<bool>(), 1u64..40 << 20, any::<proptest::sample::Index>()), 0..200),
        ) {
            let mut space = Space::new(256 << 20, true);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (take, bytes, which) in steps {
                if take {
                    let Some(start) = space.take(bytes) else {
                        prop_assert!(space.largest() < bytes.next_multiple_of(PAGE));
                        continue;
                    };
                    let end = start + bytes.next_multiple_of(PAGE);
                    prop_assert!(end <= space.bytes());
                    prop_assert!(taken.iter().all(|&(s, b)| end <= s || start >= s + b.next_multiple_of(PAGE)));
                    taken.push((start, bytes));
                } else if !taken.is_empty() {
                    let (start, bytes) = taken.swap_remove(which.index(taken.len()));
                    space.give(start, bytes);
                }
            }
            for (start, bytes) in taken {
                space.give(start, bytes);
            }
            prop_assert_eq!(space.largest(), space.bytes());
        }
    }

    #[test]
    fn the_bump_allocator_never_gives_again() {
        let mut space = Space::new(8 << 20, false);
        let first = space.take(4 << 20).unwrap();
        space.give(first, 4 << 20);
        assert_ne!(space.take(4 << 20), Some(first));
        assert_eq!(space.take(1), None);
    }
}

//! The memory of one stream cache with segments at fixed addresses: the segments and their blocks.

use std::collections::BTreeMap;

use super::heap::{BlockId, Heap, State};
use super::segment::Segment;
use super::size::{SizeClass, UNIT, Units, bytes_of};

/// A predicate that selects segments. Its arguments are a segment and the age of the segment, as in
/// [`Fixed::idle_ages`].
pub(super) type Fits<'a> = &'a dyn Fn(&Segment, u64) -> bool;

#[derive(Debug)]
pub(super) struct Fixed {
    pub(super) heap: Heap,
    /// The segments, indexed by the heap's ordinals.
    pub(super) segments: Vec<Option<Segment>>,
    bases: Vec<u64>,
    /// The ordinals of the segments, by address.
    by_address: BTreeMap<u64, usize>,
    splitting: Splitting,
    /// For each segment, the value of `now` when a block of it was last known to be in use.
    used: Vec<u64>,
    /// The number of calls of [`grow_older`](Self::grow_older) so far.
    now: u64,
}

/// Limits on splitting free blocks, and on how much longer than its request a block may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Splitting {
    /// The longest block that is split. A longer block is handed out whole, and only for a request that is also longer
    /// than this.
    pub(super) longest: Units,
    /// For requests longer than `longest`: how many units longer than the request a block may be.
    pub(super) waste: Units,
}

impl Splitting {
    /// All blocks may be split.
    pub(super) const ALL: Self = Self { longest: Units::MAX, waste: Units::MAX };
    /// No block may be split.
    pub(super) const NONE: Self = Self { longest: 0, waste: Units::MAX };

    /// Returns the length of the longest block that may serve a request of `units`, and whether a block is split for
    /// it.
    fn most(&self, units: Units) -> (Units, bool) {
        if units <= self.longest { (self.longest, true) } else { (units.saturating_add(self.waste), false) }
    }
}

/// The state of a range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The range lies in one free block.
    Free,
    /// The range is exactly that of this used block.
    Used(BlockId),
    /// None of the others: for example, a used block lies in a part of the range.
    Overlapped,
    /// No segment contains the first address.
    Gone,
}

impl Fixed {
    pub(super) fn new(splitting: Splitting) -> Self {
        let (segments, bases, used) = (Vec::new(), Vec::new(), Vec::new());
        let by_address = BTreeMap::new();
        Self { heap: Heap::new(), segments, bases, by_address, splitting, used, now: 0 }
    }

    pub(super) fn allocate(&mut self, units: Units, class: SizeClass) -> Option<(BlockId, u64, Units)> {
        let (most, split) = self.splitting.most(units);
        let id = self.heap.allocate_within(units, most, class as u16, split)?;
        let block = self.heap.block(id);
        self.used[block.segment as usize] = self.now;
        Some((id, self.bases[block.segment as usize] + bytes_of(block.offset), block.units))
    }

    pub(super) fn free(&mut self, id: BlockId) {
        self.heap.free(id);
    }

    /// Adds a segment. It becomes one free block.
    pub(super) fn publish(&mut self, segment: Segment, units: Units) {
        let ordinal = self.heap.add_segment(units, segment.class() as u16) as usize;
        if ordinal == self.segments.len() {
            self.segments.push(None);
            self.bases.push(0);
            self.used.push(0);
        }
        self.bases[ordinal] = segment.address();
        self.by_address.insert(segment.address(), ordinal);
        self.used[ordinal] = self.now;
        self.segments[ordinal] = Some(segment);
    }

    /// Returns the segment that contains a used block.
    pub(super) fn segment_of(&self, id: BlockId) -> Option<&Segment> {
        self.segments[self.heap.block(id).segment as usize].as_ref()
    }

    /// Removes a segment, if it is one free block. Returns `None` otherwise.
    pub(super) fn withdraw(&mut self, ordinal: usize) -> Option<Segment> {
        let removed = self.heap.remove_segment(u32::try_from(ordinal).ok()?);
        let segment = self.segments[ordinal].take_if(|_| removed)?;
        self.by_address.remove(&segment.address());
        Some(segment)
    }

    /// Removes the shortest segment of the class that is one free block and may serve a request of `units`.
    pub(super) fn withdraw_idle(&mut self, class: SizeClass, units: Units) -> Option<Segment> {
        let fits = bytes_of(units)..=bytes_of(self.splitting.most(units).0);
        let idle = self.segments.iter().enumerate().filter(|(ordinal, segment)| {
            segment
                .as_ref()
                .is_some_and(|segment| segment.class() == class && fits.contains(&segment.bytes()))
                && self.is_idle(*ordinal)
        });
        let (_, ordinal) =
            idle.filter_map(|(ordinal, segment)| Some((segment.as_ref()?.bytes(), ordinal))).min()?;
        self.withdraw(ordinal)
    }

    fn is_idle(&self, ordinal: usize) -> bool {
        u32::try_from(ordinal).is_ok_and(|ordinal| self.heap.is_free(ordinal))
    }

    /// Called before the allocator reserves more memory. Adds one to the age of each segment without used blocks.
    pub(super) fn grow_older(&mut self) {
        self.now += 1;
        for ordinal in 0..self.segments.len() {
            if !self.is_idle(ordinal) {
                self.used[ordinal] = self.now;
            }
        }
    }

    /// Returns the ages of the segments without used blocks. The age is the number of calls of
    /// [`grow_older`](Self::grow_older) since a block of the segment was last in use.
    pub(super) fn idle_ages(&self) -> Vec<u64> {
        let idle = (0..self.segments.len()).filter(|ordinal| self.is_idle(*ordinal));
        idle.map(|ordinal| self.now - self.used[ordinal]).collect()
    }

    /// Removes segments that are one free block and that `fits` selects, newest first, until they have `wanted` bytes
    /// together.
    pub(super) fn withdraw_all(&mut self, fits: Fits<'_>, wanted: u64) -> Vec<Segment> {
        let mut bytes = 0;
        let mut segments = Vec::new();
        let mut all: Vec<_> = self
            .segments
            .iter()
            .enumerate()
            .filter_map(|(ordinal, segment)| {
                let age = self.now - self.used[ordinal];
                segment.as_ref().filter(|segment| fits(segment, age)).map(|segment| (segment.id(), ordinal))
            })
            .collect();
        all.sort_unstable_by(|left, right| right.cmp(left));
        for (_, ordinal) in all {
            if bytes >= wanted {
                break;
            }
            if let Some(segment) = self.withdraw(ordinal) {
                bytes += segment.bytes();
                segments.push(segment);
            }
        }
        segments
    }

    /// Returns the length of the longest free block of the class.
    pub(super) fn longest(&self, class: SizeClass) -> Units {
        self.heap.longest_free(class as u16)
    }

    /// Returns the bytes in all segments of the class.
    pub(super) fn reserved(&self, class: SizeClass) -> u64 {
        self.segments.iter().flatten().filter(|segment| segment.class() == class).map(Segment::bytes).sum()
    }

    /// Returns the segment that contains an address, and the block there.
    pub(super) fn find(&self, address: u64) -> Option<(&Segment, BlockView)> {
        let (_, ordinal) = self.by_address.range(..=address).next_back()?;
        let ordinal = *ordinal;
        let segment = self.segments[ordinal].as_ref().filter(|segment| address < segment.memory().end())?;
        let offset = u32::try_from((address - segment.address()) / UNIT).ok()?;
        let id = self.heap.block_over(u32::try_from(ordinal).ok()?, offset)?;
        Some((segment, self.view(segment, id)))
    }

    /// Returns the state of the range of `units` that begins at `address`.
    pub(super) fn place(&self, address: u64, units: Units) -> Place {
        let Some((_, view)) = self.find(address) else { return Place::Gone };
        let end = address + bytes_of(units);
        match view {
            BlockView { id, address: first, units: whole, is_free: false }
                if (first, whole) == (address, units) =>
            {
                Place::Used(id)
            }
            BlockView { address: first, units: whole, is_free: true, .. }
                if end <= first + bytes_of(whole) =>
            {
                Place::Free
            }
            _ => Place::Overlapped,
        }
    }

    /// Takes the range of `units` that begins at `address` out of a free block, as a used block. Returns `None` if the
    /// range does not lie in one free block.
    pub(super) fn allocate_at(&mut self, address: u64, units: Units) -> Option<BlockId> {
        let (_, view) = self.find(address).filter(|_| self.place(address, units) == Place::Free)?;
        let block = self.heap.block(view.id);
        let offset = block.offset + Units::try_from((address - view.address) / UNIT).ok()?;
        self.used[block.segment as usize] = self.now;
        Some(self.heap.take_part(view.id, offset, units))
    }

    /// Returns true if there is no segment.
    pub(super) fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    fn view(&self, segment: &Segment, id: BlockId) -> BlockView {
        let block = self.heap.block(id);
        let address = segment.address() + bytes_of(block.offset);
        BlockView { id, address, units: block.units, is_free: block.state == State::Free }
    }
}

/// A block of a heap with its address.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockView {
    pub(super) id: BlockId,
    pub(super) address: u64,
    pub(super) units: Units,
    pub(super) is_free: bool,
}

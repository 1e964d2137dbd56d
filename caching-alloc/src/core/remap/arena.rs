//! Blocks, pages and addresses of a re-mappable pool.
//!
//! A reserved range of addresses is a segment of the heap. (The type [`Segment`] stands for a page here.) The heap's
//! segment is lengthened when memory is mapped after its end. Its holes are the parts without usable memory: nothing is
//! mapped there, or only pages that are now used at other addresses (stale addresses). Short and long blocks have
//! separate ranges (see [`Tier`]).
//!
//! The free memory of a stream is its [arena list](ArenaList). The stream can use memory that it has freed at once.
//! Another stream can use that memory only if its work is ordered after the work of the stream that freed the memory.

use super::plan::longest_page;
use crate::core::fixed::BlockView;
use crate::core::heap::{BlockId, Heap, List, Record, State};
use crate::core::pending::Wait;
use crate::core::segment::Segment;
use crate::core::size::{UNIT, Units, bytes_of};
use crate::core::stream::EventId;

/// A block is short if it is no longer than the limit on the length of new pages ([`longest_page`]) divided by this.
const SHORT_SHARE: u64 = 64;

#[derive(Debug)]
pub(in crate::core) struct Arena {
    pub(super) heap: Heap,
    /// The ranges, indexed by the heap's ordinals.
    pub(super) ranges: Vec<Range>,
    /// Length of the smallest page in units. Every page begins at a multiple of it.
    pub(super) granule: Units,
    /// Old addresses of moved pages, which work may still use.
    old_mappings: Vec<OldMapping>,
    /// Stale addresses: parts of holes in which moved pages are still mapped, although they are only used at their new
    /// addresses.
    pub(super) stale: Vec<FreeSpan>,
    /// Units in the blocks that caches have allocated.
    taken: u64,
    /// The pool's peak in bytes: the largest sum of the bytes in use and the bytes requested, over all calls of
    /// [`note_active`](Self::note_active).
    active_peak: u64,
    /// Number of calls to the source for moving pages so far.
    pub(in crate::core) move_calls: u64,
    /// Length of the longest short block.
    short: Units,
    /// While the pool has reserved fewer bytes than this, plans may use new pages without moving idle ones first. When
    /// the source runs out of memory for such new pages, the ceiling is set to the memory that the pool has reserved
    /// then. The ceiling is `u64::MAX` before that, and again once the pool has reserved more than the ceiling.
    pub(in crate::core) ceiling: u64,
}

/// The kind of a range: for short blocks or for long ones. A page cannot move while a block is in it, so a short
/// block would keep a long page in place. A block is placed in the other tier only as a fallback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Tier {
    Short,
    Long,
}

/// The number of an arena list: the free memory of one stream in both tiers, or [`Arena::SHARED_LIST`]. For each arena
/// list, the heap has two lists, one per tier.
pub(in crate::core) type ArenaList = u16;

impl Tier {
    /// Returns the heap's list for the memory of an arena list in this tier.
    fn heap_list(self, list: ArenaList) -> List {
        list * 2 + self as List
    }
}

/// Returns the arena list to which a list of the heap belongs.
fn arena_list_of(heap_list: List) -> ArenaList {
    heap_list / 2
}

/// A range of addresses in which pages are mapped.
#[derive(Debug)]
pub(super) struct Range {
    pub(super) tier: Tier,
    pub(super) base: u64,
    /// Length of the reserved addresses.
    pub(super) limit: Units,
    /// For each granule, the page that begins there.
    pub(super) pages: Vec<Option<Segment>>,
}

/// Old addresses of moved pages. The pages stay mapped there at least until the last use of these addresses has ended.
#[derive(Debug)]
pub(in crate::core) struct OldMapping {
    /// The last use of the addresses.
    pub(in crate::core) wait: Wait,
    pub(in crate::core) places: Vec<Place>,
}

/// The resources left by a dropped pool.
#[derive(Debug, Default)]
pub(in crate::core) struct Remains {
    pub(in crate::core) pages: Vec<Segment>,
    /// Old addresses of moved pages, as (address, bytes).
    pub(in crate::core) old: Vec<(u64, u64)>,
    /// The events that mark the last uses of old addresses.
    pub(in crate::core) events: Vec<EventId>,
    /// The ranges, as (base, bytes).
    pub(in crate::core) ranges: Vec<(u64, u64)>,
}

/// A block's addresses.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) struct Place {
    pub(in crate::core) address: u64,
    pub(in crate::core) bytes: u64,
    pub(in crate::core) block: BlockId,
}

/// A free block that was taken out of its arena list.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) struct Fragment {
    pub(super) block: BlockId,
    pub(in crate::core) list: ArenaList,
}

/// Consecutive units of a range: neighbouring free blocks of any arena lists, or a part of a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) struct FreeSpan {
    pub(super) range: u32,
    pub(super) offset: Units,
    pub(super) units: Units,
}

impl FreeSpan {
    pub(super) fn end(&self) -> Units {
        self.offset + self.units
    }
}

impl Arena {
    /// The maximum number of streams. Their arena lists are numbered from 1.
    pub(in crate::core) const STREAMS: usize = ArenaList::MAX as usize / 2 - 1;
    /// The arena list of the free memory that any stream may use at once: the host has seen the end of all its uses.
    pub(in crate::core) const SHARED_LIST: ArenaList = 0;

    /// Makes an arena without ranges. The lengths of its pages are multiples of `granularity` bytes, which is a
    /// multiple of 512.
    pub(in crate::core) fn new(granularity: u64) -> Self {
        Self {
            heap: Heap::with_tables(),
            ranges: Vec::new(),
            granule: Units::try_from(granularity / UNIT).unwrap_or(Units::MAX).max(1),
            old_mappings: Vec::new(),
            stale: Vec::new(),
            taken: 0,
            active_peak: 0,
            short: 0,
            move_calls: 0,
            ceiling: u64::MAX,
        }
    }

    /// Adds a range of reserved addresses, for pages with blocks of this tier.
    pub(in crate::core) fn add_range(&mut self, base: u64, bytes: u64, tier: Tier) {
        let limit = Units::try_from(bytes / UNIT).unwrap_or(Units::MAX);
        self.heap.add_range();
        self.ranges.push(Range { tier, base, limit, pages: Vec::new() });
    }

    /// Returns the tier of a block with this length.
    #[inline]
    pub(in crate::core) fn tier(&self, units: Units) -> Tier {
        if units <= self.short { Tier::Short } else { Tier::Long }
    }

    /// Allocates a block from an arena list. Returns its id, address and length, or `None` if no free block fits.
    pub(in crate::core) fn allocate(
        &mut self,
        units: Units,
        list: ArenaList,
    ) -> Option<(BlockId, u64, Units)> {
        self.allocate_in(self.tier(units), units, list)
    }

    /// Like [`allocate`](Self::allocate), but in the other tier: that of long blocks if this block is short, and the
    /// reverse.
    pub(in crate::core) fn allocate_elsewhere(
        &mut self,
        units: Units,
        list: ArenaList,
    ) -> Option<(BlockId, u64, Units)> {
        let tier = if self.tier(units) == Tier::Short { Tier::Long } else { Tier::Short };
        self.allocate_in(tier, units, list)
    }

    #[inline]
    fn allocate_in(&mut self, tier: Tier, units: Units, list: ArenaList) -> Option<(BlockId, u64, Units)> {
        let id = self.heap.allocate_off_holes(units, tier.heap_list(list))?;
        self.taken += u64::from(units);
        Some((id, self.address(id), units))
    }

    /// Frees a block to the arena list that it came from.
    pub(in crate::core) fn free(&mut self, id: BlockId) {
        self.taken -= u64::from(self.heap.block(id).units);
        self.heap.free(id);
    }

    /// Returns the length of the longest free block of an arena list.
    pub(in crate::core) fn longest(&self, list: ArenaList) -> Units {
        [Tier::Short, Tier::Long]
            .map(|tier| self.heap.longest_free(tier.heap_list(list)))
            .into_iter()
            .max()
            .unwrap_or(0)
    }

    /// Updates the pool's peak and the length of short blocks, for a request of `units`. Returns the peak in bytes: the
    /// largest sum of the bytes in use and the bytes requested, over all calls so far. Blocks in the quick lists of
    /// caches count as in use, so the caller should first merge them into the heap.
    pub(in crate::core) fn note_active(&mut self, units: Units) -> u64 {
        self.active_peak = self.active_peak.max(self.taken * UNIT + bytes_of(units));
        let longest_page = longest_page(self.active_peak, self.smallest_page());
        self.short = Units::try_from(longest_page / SHORT_SHARE / UNIT).unwrap_or(Units::MAX);
        self.active_peak
    }

    /// Returns the length of the smallest page in bytes.
    pub(in crate::core) fn smallest_page(&self) -> u64 {
        bytes_of(self.granule)
    }

    /// Removes the [ceiling](Self::ceiling) if the pool has since reserved more. `reserved` is its reserved memory in
    /// bytes.
    pub(in crate::core) fn remove_exceeded_ceiling(&mut self, reserved: u64) {
        if reserved > self.ceiling {
            self.ceiling = u64::MAX;
        }
    }

    pub(super) fn address(&self, id: BlockId) -> u64 {
        let block = self.heap.block(id);
        self.ranges[block.segment as usize].base + bytes_of(block.offset)
    }

    /// Returns the spans of neighbouring free blocks of the allowed arena lists, in order of range and offset.
    pub(super) fn free_spans(&self, allowed: &dyn Fn(ArenaList) -> bool) -> Vec<FreeSpan> {
        let mut free_spans: Vec<FreeSpan> = Vec::new();
        for range in 0..u32::try_from(self.ranges.len()).unwrap_or(0) {
            let free = self
                .heap
                .blocks(range)
                .filter(|(_, b)| b.state == State::Free && allowed(arena_list_of(b.list)));
            for (_, block) in free {
                match free_spans.last_mut() {
                    Some(span) if span.range == range && span.end() == block.offset => {
                        span.units += block.units
                    }
                    _ => free_spans.push(FreeSpan { range, offset: block.offset, units: block.units }),
                }
            }
        }
        free_spans
    }

    /// Takes the free memory between two offsets of a range out of its arena lists. Returns a fragment for each free
    /// block.
    pub(super) fn detach(&mut self, range: u32, mut from: Units, to: Units) -> Vec<Fragment> {
        let mut fragments = Vec::new();
        while from < to {
            let id = self.heap.block_over(range, from).expect("blocks cover their range");
            let block = self.heap.block(id);
            debug_assert_eq!(block.state, State::Free);
            let (list, units) = (block.list, (block.offset + block.units).min(to) - from);
            fragments
                .push(Fragment { block: self.heap.take_part(id, from, units), list: arena_list_of(list) });
            from += units;
        }
        fragments
    }

    /// Returns detached memory to the arena lists that it came from.
    pub(in crate::core) fn restore(&mut self, fragments: Vec<Fragment>) {
        fragments.into_iter().for_each(|fragment| self.free_to(fragment.block, fragment.list));
    }

    /// Frees detached neighbours to one arena list, as one free block.
    pub(in crate::core) fn give(&mut self, fragments: &[Fragment], list: ArenaList) {
        if let Some(block) = self.unite(fragments.iter().map(|fragment| fragment.block)) {
            self.free_to(block, list);
        }
    }

    /// Frees a used block to an arena list.
    pub(super) fn free_to(&mut self, block: BlockId, list: ArenaList) {
        let range = self.heap.block(block).segment as usize;
        self.heap.free_into(block, self.ranges[range].tier.heap_list(list));
    }

    /// Merges detached neighbours into one block. Returns `None` if there are none.
    pub(super) fn unite(&mut self, blocks: impl Iterator<Item = BlockId>) -> Option<BlockId> {
        blocks.reduce(|left, right| {
            self.heap.unite(left, right);
            left
        })
    }

    /// Takes the shortest span of at least `units` out of its arena lists. The span may consist of neighbouring free
    /// blocks of several allowed lists. With `tier`, searches that tier only.
    pub(in crate::core) fn detach_fit(
        &mut self,
        units: Units,
        tier: Option<Tier>,
        allowed: &dyn Fn(ArenaList) -> bool,
    ) -> Option<Vec<Fragment>> {
        let free_spans = self.free_spans(allowed);
        let fits = free_spans.into_iter().filter(|span| {
            span.units >= units && tier.is_none_or(|tier| self.ranges[span.range as usize].tier == tier)
        });
        let best = fits.min_by_key(|span| (span.units, span.range, span.offset))?;
        Some(self.detach(best.range, best.offset, best.end()))
    }

    /// Returns the addresses of a block.
    pub(super) fn place(&self, block: BlockId) -> Place {
        Place { address: self.address(block), bytes: bytes_of(self.heap.block(block).units), block }
    }

    /// Stores the old addresses of moved pages for [`take_old_mappings`](Self::take_old_mappings).
    pub(super) fn leave_old_mapping(&mut self, wait: Wait, places: Vec<Place>) {
        self.old_mappings.push(OldMapping { wait, places });
    }

    /// Takes the old addresses of moved pages, to check their events.
    pub(in crate::core) fn take_old_mappings(&mut self) -> Vec<OldMapping> {
        std::mem::take(&mut self.old_mappings)
    }

    /// Stores those old addresses again whose uses have not ended.
    pub(in crate::core) fn keep_old_mappings(&mut self, old_mappings: Vec<OldMapping>) {
        self.old_mappings.extend(old_mappings);
    }

    /// Turns a block with old addresses of moved pages into a hole. The caller ensures that no work uses these
    /// addresses any more. The pages are still mapped there, so the addresses become stale.
    pub(in crate::core) fn retire_block(&mut self, block: BlockId) {
        let Record { segment: range, offset, units, .. } = *self.heap.block(block);
        let mut span = FreeSpan { range, offset, units };
        self.stale.retain(|other| {
            let meets = other.range == range && (other.end() == span.offset || span.end() == other.offset);
            if meets {
                span = FreeSpan {
                    offset: span.offset.min(other.offset),
                    units: span.units + other.units,
                    ..span
                };
            }
            !meets
        });
        self.stale.push(span);
        self.heap.make_hole(block);
    }

    /// Takes all stale addresses, if they have more than `most` bytes. The caller unmaps them.
    pub(in crate::core) fn take_stale(&mut self, most: u64) -> Vec<FreeSpan> {
        let bytes: u64 = self.stale.iter().map(|span| bytes_of(span.units)).sum();
        if bytes > most { std::mem::take(&mut self.stale) } else { Vec::new() }
    }

    /// Returns the first address of a span, and its length in bytes.
    pub(in crate::core) fn span(&self, span: FreeSpan) -> (u64, u64) {
        (self.ranges[span.range as usize].base + bytes_of(span.offset), bytes_of(span.units))
    }

    /// Takes the addresses of a span out of the holes, because unmapping them has failed. They are then never used
    /// again.
    pub(in crate::core) fn leak_span(&mut self, span: FreeSpan) {
        let mut at = span.offset;
        while let Some(id) = (at < span.end()).then(|| self.heap.block_over(span.range, at)).flatten() {
            let block = self.heap.block(id);
            let (state, end) = (block.state, span.end().min(block.offset + block.units));
            if state == State::Hole {
                // The block stays used, and nothing refers to it.
                self.heap.take_part(id, at, end - at);
            }
            at = end;
        }
    }

    /// Returns true if any hole has room for a block of `units`, in the tier of that block.
    pub(in crate::core) fn has_room(&self, units: Units) -> bool {
        self.site(&[], units, 0).is_some()
    }

    /// Returns all resources, for release after the pool was dropped.
    pub(in crate::core) fn dissolve(self) -> Remains {
        let stale = self.stale.iter().map(|span| self.span(*span));
        let places = self.old_mappings.iter().flat_map(|old_mapping| &old_mapping.places);
        Remains {
            old: stale.chain(places.map(|place| (place.address, place.bytes))).collect(),
            events: self.old_mappings.iter().filter_map(|old_mapping| old_mapping.wait.event).collect(),
            ranges: self.ranges.iter().map(|range| (range.base, bytes_of(range.limit))).collect(),
            pages: self.ranges.into_iter().flat_map(|range| range.pages).flatten().collect(),
        }
    }

    /// Returns all pages under a block, in order of address.
    pub(in crate::core) fn pages_of(&self, id: BlockId) -> Vec<Segment> {
        let block = self.heap.block(id);
        let mut pages = Vec::new();
        let mut at = block.offset;
        while let Some(page) =
            (at < block.offset + block.units).then(|| self.page_at(block.segment, at)).flatten()
        {
            let end = page.memory().end() - self.ranges[block.segment as usize].base;
            pages.push(page.clone());
            at = Units::try_from(end / UNIT).unwrap_or(Units::MAX);
        }
        pages
    }

    fn page_at(&self, range: u32, offset: Units) -> Option<&Segment> {
        let range = self.ranges.get(range as usize)?;
        let address = range.base + bytes_of(offset);
        let pages = range.pages.get(..=(offset / self.granule) as usize)?;
        pages.iter().rev().find_map(Option::as_ref).filter(|page| address < page.memory().end())
    }

    /// Appends the pages of a range that begin in the `most` granules from `first` on. Returns `Some(true)` if the
    /// range has further granules, and `None` if there is no such range.
    pub(in crate::core) fn copy_pages(
        &self,
        range: usize,
        first: usize,
        most: usize,
        pages: &mut Vec<Segment>,
    ) -> Option<bool> {
        let all = &self.ranges.get(range)?.pages;
        let end = all.len().min(first + most);
        pages.extend(all.get(first..end).unwrap_or_default().iter().flatten().cloned());
        Some(end < all.len())
    }

    /// Moves the free memory of a stream's arena list to [`SHARED_LIST`](Self::SHARED_LIST). The host must have seen
    /// the end of the stream's work.
    pub(in crate::core) fn share_list(&mut self, list: ArenaList) {
        for tier in [Tier::Short, Tier::Long] {
            self.heap.relist(tier.heap_list(list), tier.heap_list(Self::SHARED_LIST));
        }
    }

    /// Returns true if an arena list has no free memory.
    pub(in crate::core) fn is_list_empty(&self, list: ArenaList) -> bool {
        self.longest(list) == 0
    }

    /// Returns the page and the block that contain an address.
    pub(in crate::core) fn find(&self, address: u64) -> Option<(&Segment, BlockView)> {
        let (ordinal, range) = (0..).zip(&self.ranges).find(|(ordinal, range)| {
            (range.base..range.base + bytes_of(self.heap.length(*ordinal))).contains(&address)
        })?;
        let offset = Units::try_from((address - range.base) / UNIT).ok()?;
        let segment = self.page_at(ordinal, offset)?;
        Some((segment, self.view(self.heap.block_over(ordinal, offset)?)))
    }

    fn view(&self, id: BlockId) -> BlockView {
        let block = self.heap.block(id);
        BlockView { id, address: self.address(id), units: block.units, is_free: block.state == State::Free }
    }
}

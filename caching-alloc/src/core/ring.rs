//! The ring of a cache's newest block entries, and the outbox of entries that are not delivered to trackers yet.
//!
//! An entry takes 48 bytes. Its time is the cache's time stamp, so adding an entry needs no clock query. The stamp is
//! renewed every [`STAMP`] entries, and when memory is added to the cache because a request found no free block.

use std::time::Instant;

use super::entry::{Action, BlockSpan, Entry};
use super::request::RequestInfo;
use super::segment::PoolId;
use super::size::{Units, bytes_of};
use super::stream::StreamId;

/// The number of entries between two queries of the clock.
pub(super) const STAMP: u64 = 64;

/// The capacity of the longest ring, in entries (768 MiB).
const LONGEST: usize = 1 << 24;

/// The number of entries in a page of the ring.
const PAGE: u64 = 256;
const _: () = assert!(PAGE.is_multiple_of(STAMP), "a page is full only when the clock is queried");

type Page = Box<[RawEntry; PAGE as usize]>;

fn new_page() -> Page {
    Box::new([RawEntry::default(); PAGE as usize])
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RawEntry {
    pub(super) address: u64,
    pub(super) requested: u64,
    pub(super) time_ns: u64,
    pub(super) units: Units,
    pub(super) event: BlockEvent,
    /// `None` only in places of the ring that have no entry yet.
    pub(super) info: Option<RequestInfo>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum BlockEvent {
    #[default]
    Alloc,
    FreeRequested,
    FreeCompleted,
    /// A free that is requested and completed at once. It is stored as one raw entry, and delivered as two entries.
    Free,
}

impl BlockEvent {
    fn count(self) -> u64 {
        if self == Self::Free { 2 } else { 1 }
    }
}

/// The device, pool and stream of a cache, for its entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) device: u32,
    pub(super) pool: PoolId,
    pub(super) stream: StreamId,
}

#[derive(Debug)]
pub(super) struct Ring {
    /// The page to which entries are added.
    page: Page,
    /// The newest full pages. They are allocated as entries are added, so a rarely used stream needs little memory.
    full: Vec<Page>,
    /// The maximum number of raw entries in the ring, a power of two.
    capacity: u64,
    /// The number of raw entries that were added so far.
    pushed: u64,
    /// The number of raw entries so far that are delivered as two entries.
    doubled: u64,
    /// The creation time of the allocator.
    born: Instant,
    /// The current time stamp, in nanoseconds since the creation.
    clock: u64,
    /// The outbox: entries that are not delivered yet. Always empty while there are no block trackers.
    outbox: Vec<RawEntry>,
    /// True while there are block trackers.
    pub(super) subscribed: bool,
}

/// Raw entries that were taken out of a cache, so that they can be expanded to entries without a lock.
#[derive(Debug, Default)]
pub(super) struct Batch {
    raw: Vec<RawEntry>,
    /// The number of the last entry.
    last: u64,
}

impl Batch {
    /// Appends the expanded entries to `entries`, oldest first.
    pub(super) fn expand(&self, origin: Origin, entries: &mut Vec<Entry>) {
        expand(&self.raw, self.last, origin, entries);
    }
}

/// A copy of a ring's entries, made piece by piece. It has the entries up to the moment at which it began.
#[derive(Debug)]
pub(super) struct RingCopy {
    batch: Batch,
    /// The numbers of the next raw entry to copy, and of the raw entry at which the copy ends.
    next: u64,
    end: u64,
}

impl RingCopy {
    /// Allocates memory for the whole copy.
    pub(super) fn reserve(&mut self) {
        self.batch.raw.reserve((self.end - self.next) as usize);
    }

    /// Appends the expanded entries of the copy to `entries`, oldest first.
    pub(super) fn expand(&self, origin: Origin, entries: &mut Vec<Entry>) {
        self.batch.expand(origin, entries);
    }
}

impl Ring {
    pub(super) fn new(capacity: usize, born: Instant) -> Self {
        let capacity = capacity.clamp(1, LONGEST).next_power_of_two() as u64;
        Self {
            page: new_page(),
            full: Vec::new(),
            capacity,
            pushed: 0,
            doubled: 0,
            born,
            clock: nanoseconds_since(born),
            outbox: Vec::new(),
            subscribed: false,
        }
    }

    /// Adds an entry. `requested` is in bytes. Always inlined: every hit and every free adds one, and a call would pass
    /// the arguments through memory.
    #[inline(always)]
    pub(super) fn push(
        &mut self,
        event: BlockEvent,
        address: u64,
        units: Units,
        requested: u64,
        info: RequestInfo,
    ) {
        let entry = RawEntry { address, requested, time_ns: self.clock, units, event, info: Some(info) };
        self.page[(self.pushed % PAGE) as usize] = entry;
        self.pushed += 1;
        if event == BlockEvent::Free {
            self.doubled += 1;
        }
        if self.subscribed {
            self.outbox.push(entry);
        }
        if self.pushed.is_multiple_of(STAMP) {
            self.stamp();
        }
    }

    /// Called after every [`STAMP`] entries.
    #[cold]
    fn stamp(&mut self) {
        self.clock = nanoseconds_since(self.born);
        if self.pushed.is_multiple_of(PAGE) {
            self.store_page();
        }
    }

    /// Stores the current page, which is full. Then the oldest stored page becomes the current one, or a new
    /// page if the ring has not reached its capacity.
    fn store_page(&mut self) {
        let at = self.index_of(self.pushed - 1);
        if at == self.full.len() {
            self.full.push(std::mem::replace(&mut self.page, new_page()));
        } else {
            std::mem::swap(&mut self.page, &mut self.full[at]);
        }
    }

    /// Returns the index in `full` of the page of a raw entry.
    fn index_of(&self, number: u64) -> usize {
        ((number / PAGE) % self.capacity.div_ceil(PAGE)) as usize
    }

    /// Returns a raw entry that is still in the ring.
    fn entry(&self, number: u64) -> RawEntry {
        let is_current = number / PAGE == self.pushed / PAGE;
        let page = if is_current { &self.page } else { &self.full[self.index_of(number)] };
        page[(number % PAGE) as usize]
    }

    /// Ensures that later entries are not older than `now`, in nanoseconds since the creation of the allocator.
    pub(super) fn renew(&mut self, now: u64) {
        self.clock = self.clock.max(now);
    }

    /// Returns the number of entries so far. A free that is completed at once counts as two.
    pub(super) fn number(&self) -> u64 {
        self.pushed + self.doubled
    }

    /// Returns the number of operations so far: blocks that were handed out or freed, and freed blocks whose uses on
    /// other streams have ended since.
    pub(super) fn operations(&self) -> u64 {
        self.pushed
    }

    /// Returns the number of raw entries that are not delivered yet.
    pub(super) fn waiting(&self) -> usize {
        self.outbox.len()
    }

    /// Moves the entries of the outbox to `batch`. The previous entries of `batch` are dropped, and the outbox reuses
    /// their memory.
    pub(super) fn take_outbox(&mut self, batch: &mut Batch) {
        batch.raw.clear();
        std::mem::swap(&mut batch.raw, &mut self.outbox);
        batch.last = self.number();
    }

    /// Begins a copy of the entries that the ring has now. [`copy_next`](Self::copy_next) copies them.
    pub(super) fn begin_copy(&self) -> RingCopy {
        let next = self.pushed.saturating_sub(self.capacity);
        RingCopy { batch: Batch { raw: Vec::new(), last: self.number() }, next, end: self.pushed }
    }

    /// Copies at most `most` more raw entries. Returns true if more are left. If an entry was overwritten before it was
    /// copied, it and all older entries are left out of the copy.
    pub(super) fn copy_next(&self, copy: &mut RingCopy, most: u64) -> bool {
        let oldest = self.pushed.saturating_sub(self.capacity).min(copy.end);
        if oldest > copy.next {
            copy.batch.raw.clear();
            copy.next = oldest;
        }
        let until = copy.end.min(copy.next + most);
        copy.batch.raw.extend((copy.next..until).map(|number| self.entry(number)));
        copy.next = until;
        until < copy.end
    }
}

/// Returns the nanoseconds that have passed since `then`.
pub(super) fn nanoseconds_since(then: Instant) -> u64 {
    u64::try_from(then.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Expands raw entries and appends the result to `entries`. The last entry has the number `last`.
fn expand(raw: &[RawEntry], last: u64, origin: Origin, entries: &mut Vec<Entry>) {
    let mut number = last - raw.iter().map(|entry| entry.event.count()).sum::<u64>();
    for raw in raw {
        let Some(request) = raw.info else { continue };
        let (address, bytes) = (raw.address, bytes_of(raw.units));
        let span = BlockSpan { address, bytes, requested: raw.requested, request };
        let (first, second) = match raw.event {
            BlockEvent::Alloc => (Action::Alloc(span), None),
            BlockEvent::FreeRequested => (Action::FreeRequested(span), None),
            BlockEvent::FreeCompleted => (Action::FreeCompleted(span), None),
            BlockEvent::Free => (Action::FreeRequested(span), Some(Action::FreeCompleted(span))),
        };
        for action in [Some(first), second].into_iter().flatten() {
            number += 1;
            let Origin { device, pool, stream } = origin;
            entries.push(Entry { number, time_ns: raw.time_ns, device, pool, stream, action });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ORIGIN: Origin = Origin { device: 0, pool: PoolId(0), stream: StreamId(1) };

    /// Adds `count` entries. The address of each one is 512 times the number of raw entries before it.
    fn push(ring: &mut Ring, count: u64) {
        for _ in 0..count {
            let event = if ring.pushed.is_multiple_of(3) { BlockEvent::Free } else { BlockEvent::Alloc };
            ring.push(event, ring.pushed * 512, 1, 1, RequestInfo::here());
        }
    }

    fn addresses(entries: &[Entry]) -> Vec<u64> {
        let address = |entry: &Entry| match entry.action {
            Action::Alloc(span) | Action::FreeRequested(span) | Action::FreeCompleted(span) => {
                span.address / 512
            }
            _ => unreachable!("a ring has entries of blocks only"),
        };
        let mut all: Vec<u64> = entries.iter().map(address).collect();
        all.dedup();
        all
    }

    proptest! {
        #[test]
        fn a_copy_has_the_entries_up_to_its_beginning_without_gaps(
            capacity in 1..600usize,
            before in 0..2000u64,
            during in prop::collection::vec((1..50u64, 0..80u64), 0..30),
        ) {
            let mut ring = Ring::new(capacity, Instant::now());
            push(&mut ring, before);
            let (mut copy, last) = (ring.begin_copy(), ring.number());
            copy.reserve();
            for (most, pushed) in during {
                ring.copy_next(&mut copy, most);
                push(&mut ring, pushed);
            }
            while ring.copy_next(&mut copy, 7) {}
            let mut entries = Vec::new();
            copy.expand(ORIGIN, &mut entries);
            let numbers: Vec<u64> = entries.iter().map(|entry| entry.number).collect();
            let first = last + 1 - numbers.len() as u64;
            prop_assert_eq!(numbers, (first..=last).collect::<Vec<_>>());
            let addresses = addresses(&entries);
            prop_assert_eq!(&addresses, &(before - addresses.len() as u64..before).collect::<Vec<_>>());
            let untouched = ring.pushed == before;
            prop_assert!(!untouched || addresses.len() as u64 == before.min(ring.capacity));
        }
    }

    #[test]
    fn pages_are_allocated_as_entries_are_added() {
        let mut ring = Ring::new(1 << 14, Instant::now());
        push(&mut ring, PAGE - 1);
        assert_eq!(ring.full.len(), 0);
        push(&mut ring, 1);
        assert_eq!(ring.full.len(), 1);
        push(&mut ring, 1 << 16);
        assert_eq!(ring.full.len() as u64, (1 << 14) / PAGE);
    }
}

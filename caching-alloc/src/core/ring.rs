//! The last block entries of a shard, and those that trackers have still to get.
//!
//! An entry is 32 bytes and costs no clock: it carries the shard's stamp, renewed every [`STAMP`] entries and on
//! every miss.

use std::collections::VecDeque;
use std::time::Instant;

use super::entry::{Action, BlockSpan, Entry};
use super::segment::PoolId;
use super::size::{Units, bytes_of};
use super::stream::StreamId;

/// Entries between two looks at the clock.
pub(super) const STAMP: u64 = 64;

/// The longest ring, in entries: 640 MiB.
const LONGEST: usize = 1 << 24;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RawEntry {
    pub(super) address: u64,
    pub(super) requested: u64,
    pub(super) time_ns: u64,
    pub(super) units: Units,
    pub(super) event: BlockEvent,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum BlockEvent {
    #[default]
    Alloc,
    FreeRequested,
    FreeCompleted,
    /// Requested and completed at once: two entries.
    Free,
}

impl BlockEvent {
    fn count(self) -> u64 {
        if self == Self::Free { 2 } else { 1 }
    }
}

/// Where a shard's entries come from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) device: u32,
    pub(super) pool: PoolId,
    pub(super) stream: StreamId,
}

#[derive(Debug)]
pub(super) struct Ring {
    /// As long as the ring's capacity, a power of two, from the beginning: a hit never allocates.
    entries: Box<[RawEntry]>,
    /// Raw entries so far.
    pushed: u64,
    /// Raw entries so far that stand for two.
    doubled: u64,
    /// When the allocator was made, and the time of the entries now made.
    born: Instant,
    clock: u64,
    /// Entries that block trackers have still to get, if there are any such trackers.
    outbox: VecDeque<RawEntry>,
    pub(super) subscribed: bool,
}

impl Ring {
    pub(super) fn new(capacity: usize, born: Instant) -> Self {
        let capacity = capacity.clamp(1, LONGEST).next_power_of_two();
        Self {
            entries: vec![RawEntry::default(); capacity].into_boxed_slice(),
            pushed: 0,
            doubled: 0,
            born,
            clock: nanoseconds_since(born),
            outbox: VecDeque::new(),
            subscribed: false,
        }
    }

    /// Adds an entry.
    #[inline]
    pub(super) fn push(&mut self, event: BlockEvent, address: u64, units: Units, requested: u64) {
        let entry = RawEntry { address, requested, time_ns: self.clock, units, event };
        let at = self.pushed as usize & (self.entries.len() - 1);
        self.entries[at] = entry;
        self.pushed += 1;
        if event == BlockEvent::Free {
            self.doubled += 1;
        }
        if self.subscribed {
            self.outbox.push_back(entry);
        }
        if self.pushed.is_multiple_of(STAMP) {
            self.stamp();
        }
    }

    /// Entries from here on are not older than `now`.
    pub(super) fn renew(&mut self, now: u64) {
        self.clock = self.clock.max(now);
    }

    #[cold]
    fn stamp(&mut self) {
        self.clock = nanoseconds_since(self.born);
    }

    /// Entries so far, a free counting twice.
    pub(super) fn number(&self) -> u64 {
        self.pushed + self.doubled
    }

    /// Entries so far: how often a block was handed out, let go, or taken back later.
    pub(super) fn operations(&self) -> u64 {
        self.pushed
    }

    pub(super) fn waiting(&self) -> usize {
        self.outbox.len()
    }

    /// The entries that trackers have still to get, oldest first.
    pub(super) fn take_outbox(&mut self, origin: Origin) -> Vec<Entry> {
        let mut entries = Vec::new();
        self.empty_outbox(origin, &mut entries);
        entries
    }

    /// The same, added to `entries`.
    pub(super) fn empty_outbox(&mut self, origin: Origin, entries: &mut Vec<Entry>) {
        let count: u64 = self.outbox.iter().map(|entry| entry.event.count()).sum();
        let before = self.number() - count;
        expand(self.outbox.drain(..), before, origin, entries);
    }

    /// Everything that the ring still has, oldest first.
    pub(super) fn entries(&self, origin: Origin) -> Vec<Entry> {
        let next = self.pushed as usize & (self.entries.len() - 1);
        let (newer, older) = self.entries.split_at(next);
        let older = if self.pushed < self.entries.len() as u64 { &[] } else { older };
        let count: u64 = older.iter().chain(newer).map(|entry| entry.event.count()).sum();
        let mut entries = Vec::new();
        expand(older.iter().chain(newer).copied(), self.number() - count, origin, &mut entries);
        entries
    }
}

/// Nanoseconds since then.
pub(super) fn nanoseconds_since(then: Instant) -> u64 {
    u64::try_from(then.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn expand(raw: impl Iterator<Item = RawEntry>, mut number: u64, origin: Origin, entries: &mut Vec<Entry>) {
    for raw in raw {
        let span = BlockSpan { address: raw.address, bytes: bytes_of(raw.units), requested: raw.requested };
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

//! The last calls of a rank.
//!
//! A slot is written by the thread that calls and may be read by any other at the same time: its stamp says which
//! record it holds, and is 0 while that changes, so a reader that finds the same stamp before and after has read one
//! record. All of it is plain atomic words.

use std::{
    panic::Location,
    ptr,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence},
};

use super::call::{Call, Operation};
use crate::memory::CommonPlace;

/// Where the records of one work lie: among `count` from `first` on, those of its group. The others are of groups that
/// other threads use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: u64,
    pub(crate) count: u64,
}

impl Span {
    /// With one more record.
    pub(crate) fn with(self, record: u64) -> Self {
        match self.count {
            0 => Self { first: record, count: 1 },
            _ => Self { first: self.first, count: record + 1 - self.first },
        }
    }
}

/// Where a call stands in its group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position {
    /// The group's number in the recorder.
    pub(super) group: u32,
    /// Collectives of the group up to here.
    pub(super) collective: u64,
    /// Messages of this rank in the group up to here.
    pub(super) messages: u64,
    /// For a message: how many of its direction there were with its peer, with this one.
    pub(super) pair: u64,
    /// Whether it is a message, or the end of a batch of nothing else.
    pub(super) message: bool,
    /// Whether it is in a batch.
    pub(super) batched: bool,
}

/// A record as it was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub(super) number: u64,
    pub(super) call: Call,
    pub(super) position: Position,
    pub(super) captured: bool,
    /// The stream's handle; 0 until the call has been enqueued.
    pub(super) stream: u64,
    /// [Ticks](super::clock::ticks).
    pub(super) created: u64,
    /// Ticks; 0 until somebody saw that it had begun, which only timing shows.
    pub(super) started: u64,
    /// Ticks; 0 until somebody saw that it was done.
    pub(super) completed: u64,
    /// ns that the device took; 0 where it was not asked.
    pub(super) elapsed: u64,
    pub(super) site: &'static Location<'static>,
}

const BATCHED: u64 = 1;
const MESSAGE: u64 = 2;
const CAPTURED: u64 = 4;
const ON_PATH: u64 = 8;
const NO_PEER: u64 = u64::MAX;

/// Aligned so that a call touches two cache lines, not three.
#[derive(Default)]
#[repr(align(128))]
struct Slot {
    /// One more than the record's number; 0 while nothing whole is here.
    stamp: AtomicU64,
    /// Operation, type, reduction, flags: 8 bits each from the top; the group.
    what: AtomicU64,
    peer: AtomicU64,
    send: AtomicU64,
    receive: AtomicU64,
    collective: AtomicU64,
    messages: AtomicU64,
    pair: AtomicU64,
    created: AtomicU64,
    started: AtomicU64,
    completed: AtomicU64,
    elapsed: AtomicU64,
    stream: AtomicU64,
    site: AtomicPtr<Location<'static>>,
    /// The codes of where the send and the receive buffer lie.
    places: [AtomicU64; 2],
}

/// The last calls, overwritten in turn.
pub(super) struct Ring {
    slots: Box<[Slot]>,
    /// The number of the next record.
    next: AtomicU64,
}

impl Ring {
    pub(super) fn new(slots: usize) -> Self {
        let slots = (0..slots.max(1).next_power_of_two()).map(|_| Slot::default()).collect();
        Self { slots, next: AtomicU64::new(0) }
    }

    fn slot(&self, record: u64) -> &Slot {
        &self.slots[record as usize & (self.slots.len() - 1)]
    }

    /// Writes a record; returns its number.
    #[inline(always)]
    pub(super) fn write(
        &self,
        call: &Call,
        position: Position,
        site: &'static Location<'static>,
        created: u64,
    ) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let slot = self.slot(number);
        slot.stamp.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        let flag = |set: bool, flag: u64| if set { flag } else { 0 };
        let flags =
            flag(position.batched, BATCHED) | flag(position.message, MESSAGE) | flag(call.on_path, ON_PATH);
        let what = (u64::from(call.operation as u8) << 56)
            | (u64::from(call.dtype) << 48)
            | (u64::from(call.reduction) << 40)
            | (flags << 32)
            | u64::from(position.group);
        slot.what.store(what, Ordering::Relaxed);
        slot.peer.store(call.peer.map_or(NO_PEER, u64::from), Ordering::Relaxed);
        slot.send.store(call.send, Ordering::Relaxed);
        slot.receive.store(call.receive, Ordering::Relaxed);
        slot.collective.store(position.collective, Ordering::Relaxed);
        slot.messages.store(position.messages, Ordering::Relaxed);
        slot.pair.store(position.pair, Ordering::Relaxed);
        slot.created.store(created, Ordering::Relaxed);
        for later in [&slot.started, &slot.completed, &slot.elapsed] {
            later.store(0, Ordering::Relaxed);
        }
        slot.stream.store(0, Ordering::Relaxed);
        slot.site.store(ptr::from_ref(site).cast_mut(), Ordering::Relaxed);
        for (word, place) in slot.places.iter().zip(call.places) {
            word.store(place.code(), Ordering::Relaxed);
        }
        slot.stamp.store(number + 1, Ordering::Release);
        number
    }

    /// Takes a record back. If none has followed, its number is given again.
    pub(super) fn retract(&self, record: u64) {
        let slot = self.slot(record);
        let _ = slot.stamp.compare_exchange(record + 1, 0, Ordering::AcqRel, Ordering::Relaxed);
        let _ = self.next.compare_exchange(record + 1, record, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The slots of a group's records that still hold them.
    fn held(&self, span: Span, group: u32) -> impl Iterator<Item = &Slot> {
        let end = span.first + span.count;
        let oldest = end.saturating_sub(self.slots.len() as u64);
        (span.first.max(oldest)..end)
            .map(|record| (record, self.slot(record)))
            .filter(|(record, slot)| slot.stamp.load(Ordering::Acquire) == record + 1)
            .map(|(_, slot)| slot)
            .filter(move |slot| slot.what.load(Ordering::Relaxed) as u32 == group)
    }

    /// Says on which stream these were enqueued, and whether a graph captured them.
    pub(super) fn enqueued(&self, span: Span, group: u32, stream: u64, captured: bool) {
        for slot in self.held(span, group) {
            slot.stream.store(stream, Ordering::Relaxed);
            if captured {
                slot.what.fetch_or(CAPTURED << 32, Ordering::Relaxed);
            }
        }
    }

    /// Says that these were seen to have begun, at `now` unless it was said before.
    pub(super) fn started(&self, span: Span, group: u32, now: impl FnOnce() -> u64) {
        let mut open =
            self.held(span, group).filter(|slot| slot.started.load(Ordering::Relaxed) == 0).peekable();
        if open.peek().is_some() {
            let now = now();
            open.for_each(|slot| slot.started.store(now, Ordering::Relaxed));
        }
    }

    /// Says that these were seen to be done, at `now` unless it was said before, and how long they took together.
    pub(super) fn completed(
        &self,
        span: Span,
        group: u32,
        now: impl FnOnce() -> u64,
        elapsed: impl FnOnce() -> u64,
    ) {
        let mut open =
            self.held(span, group).filter(|slot| slot.completed.load(Ordering::Relaxed) == 0).peekable();
        if open.peek().is_some() {
            let (now, elapsed) = (now(), elapsed());
            open.for_each(|slot| {
                slot.elapsed.store(elapsed, Ordering::Relaxed);
                slot.completed.store(now, Ordering::Relaxed);
            });
        }
    }

    /// What is there, oldest first. What is being written at this moment is left out.
    pub(super) fn read(&self) -> Vec<Record> {
        let end = self.next.load(Ordering::Acquire);
        let first = end.saturating_sub(self.slots.len() as u64);
        (first..end).filter_map(|record| self.record(record)).collect()
    }

    fn record(&self, number: u64) -> Option<Record> {
        let slot = self.slot(number);
        let stamp = slot.stamp.load(Ordering::Acquire);
        let what = slot.what.load(Ordering::Relaxed);
        let [operation, dtype, reduction, flags, ..] = what.to_be_bytes();
        let peer = slot.peer.load(Ordering::Relaxed);
        let (send, receive) = (slot.send.load(Ordering::Relaxed), slot.receive.load(Ordering::Relaxed));
        let position = Position {
            group: what as u32,
            collective: slot.collective.load(Ordering::Relaxed),
            messages: slot.messages.load(Ordering::Relaxed),
            pair: slot.pair.load(Ordering::Relaxed),
            message: u64::from(flags) & MESSAGE != 0,
            batched: u64::from(flags) & BATCHED != 0,
        };
        let created = slot.created.load(Ordering::Relaxed);
        let [started, completed, elapsed] =
            [&slot.started, &slot.completed, &slot.elapsed].map(|word| word.load(Ordering::Relaxed));
        let stream = slot.stream.load(Ordering::Relaxed);
        let site = slot.site.load(Ordering::Relaxed);
        let places = slot.places.each_ref().map(|word| CommonPlace::from_code(word.load(Ordering::Relaxed)));
        fence(Ordering::Acquire);
        if stamp != number + 1 || slot.stamp.load(Ordering::Relaxed) != stamp {
            return None;
        }
        // SAFETY: only `write` stores here, always from a reference that lives for ever; null before the first.
        let site = unsafe { site.as_ref() }?;
        let call = Call {
            operation: Operation::from_code(operation)?,
            dtype,
            reduction,
            peer: u32::try_from(peer).ok(),
            send,
            receive,
            on_path: u64::from(flags) & ON_PATH != 0,
            places,
        };
        let captured = u64::from(flags) & CAPTURED != 0;
        Some(Record { number, call, position, captured, stream, created, started, completed, elapsed, site })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn position(collective: u64) -> Position {
        Position { group: 0, collective, messages: 0, pair: 0, message: false, batched: false }
    }

    fn call(elements: u64) -> Call {
        let (send, receive) = (elements, elements);
        Call {
            operation: Operation::AllReduce,
            dtype: 0,
            reduction: 0,
            peer: None,
            send,
            receive,
            on_path: false,
            places: Default::default(),
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Write,
        /// Takes the last back.
        Retract,
        /// Says that the record so far back is done.
        Complete(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![4 => Just(Step::Write), 1 => Just(Step::Retract), 2 => (0..20u64).prop_map(Step::Complete)]
    }

    proptest! {
        #[test]
        fn it_holds_the_last_calls(steps in prop::collection::vec(step(), 0..100)) {
            let ring = Ring::new(8);
            let call = call(1);
            let mut model: Vec<(u64, bool)> = Vec::new();
            // What a retracted record had overwritten is lost.
            let mut lost = 0;
            for step in steps {
                match step {
                    Step::Write => {
                        let number = model.len() as u64;
                        prop_assert_eq!(ring.write(&call, position(number), Location::caller(), 1), number);
                        model.push((number, false));
                        lost = lost.max(model.len().saturating_sub(8));
                    }
                    Step::Retract => if let Some((number, _)) = model.pop() {
                        ring.retract(number);
                        // What is written there next is.
                        lost = lost.min(model.len());
                    },
                    Step::Complete(back) => {
                        let Some(at) = model.len().checked_sub(1 + back as usize) else { continue };
                        ring.completed(Span { first: at as u64, count: 1 }, 0, || 7, || 0);
                        model[at].1 = true;
                    }
                }
            }
            let found: Vec<_> = ring.read().iter().map(|r| (r.position.collective, r.completed == 7)).collect();
            prop_assert_eq!(&found, &model[lost.min(model.len())..]);
        }
    }

    #[test]
    fn a_reader_sees_whole_records() {
        let ring = Ring::new(4);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..20_000 {
                    ring.write(&call(number), position(number), Location::caller(), number + 1);
                }
            });
            while ring.next.load(Ordering::Relaxed) < 20_000 {
                for record in ring.read() {
                    let number = record.number;
                    assert_eq!(
                        (record.call.send, record.call.receive, record.position.collective, record.created),
                        (number, number, number, number + 1)
                    );
                }
            }
        });
    }
}

//! The last calls of a rank, behind one lock.
//!
//! The lock is never held during a call of the driver. A thread that asks the driver in between finds the
//! records of a work again by their numbers, because the number of a launched record is never reused.

use std::{panic::Location, sync::PoisonError};

use super::call::Call;
use crate::sync::{Mutex, MutexGuard};

/// The range of the records of one work: `count` numbers from `first`, which begins the work. Records in
/// between may belong to other works, which other threads launch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: u64,
    pub(crate) count: u64,
}

impl Span {
    /// Returns the span with one more record.
    pub(crate) fn with(self, record: u64) -> Self {
        match self.count {
            0 => Self { first: record, count: 1 },
            _ => Self { first: self.first, count: record + 1 - self.first },
        }
    }
}

/// A call's numbers in its group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position {
    /// The group's number in the recorder.
    pub(super) group: u32,
    /// The number of the group's collectives up to this call.
    pub(super) collective: u64,
    /// The number of this rank's messages in the group up to this call.
    pub(super) messages: u64,
    /// For a message: its number among those of its direction with its peer.
    pub(super) pair: u64,
    /// True if it is a message, or the end of a batch of messages alone.
    pub(super) message: bool,
    /// True if it is in a batch.
    pub(super) batched: bool,
}

/// The recorded data of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub(super) number: u64,
    /// The number of the record that begins its work.
    work: u64,
    pub(super) call: Call,
    pub(super) position: Position,
    pub(super) captured: bool,
    /// [Ticks](super::clock::ticks).
    pub(super) created: u64,
    /// Ticks; 0 until it was seen to have begun, which only timing shows.
    pub(super) started: u64,
    /// Ticks; 0 until it was seen to be done.
    pub(super) completed: u64,
    /// The time that the device took, in ns; 0 if it was not measured.
    pub(super) elapsed: u64,
    pub(super) site: &'static Location<'static>,
}

/// The last calls. The oldest is overwritten first.
pub(super) struct Ring {
    state: Mutex<State>,
}

struct State {
    slots: Box<[Option<Record>]>,
    /// The number of the next record.
    next: u64,
}

impl Ring {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            state: Mutex::new(State { slots: vec![None; slots.max(1).next_power_of_two()].into(), next: 0 }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a record of a work whose earlier records are `work`. Returns its number. `position` is called under the
    /// lock.
    #[inline(always)]
    pub(super) fn write(
        &self,
        call: &Call,
        position: impl FnOnce() -> Position,
        work: Span,
        site: &'static Location<'static>,
        created: u64,
    ) -> u64 {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        let work = work.with(number).first;
        let (captured, started, completed, elapsed) = (false, 0, 0, 0);
        let (call, position, slot) = (*call, position(), state.slot(number));
        *slot = Some(Record {
            number,
            work,
            call,
            position,
            captured,
            created,
            started,
            completed,
            elapsed,
            site,
        });
        number
    }

    /// Removes a record that was not launched. If no other has followed, its number is reused. `undo` is called under
    /// the lock.
    pub(super) fn retract(&self, record: u64, undo: impl FnOnce()) {
        let mut state = self.state();
        undo();
        state.slot(record).take_if(|found| found.number == record);
        if state.next == record + 1 {
            state.next = record;
        }
    }

    /// Marks these records as captured by a graph.
    pub(super) fn captured(&self, span: Span) {
        self.state().each(span, |record| record.captured = true);
    }

    /// Records that these were seen to have begun, at `now` unless that was recorded before.
    pub(super) fn started(&self, span: Span, now: impl Fn() -> u64) {
        self.state().each(span, |record| {
            if record.started == 0 {
                record.started = now();
            }
        });
    }

    /// Records that these were seen to be done, at `now` unless that was recorded before, and their common
    /// duration.
    pub(super) fn completed(&self, span: Span, now: impl FnOnce() -> u64, elapsed: impl FnOnce() -> u64) {
        let mut is_open = false;
        self.state().each(span, |record| is_open |= record.completed == 0);
        if !is_open {
            return;
        }
        // These may call the driver. Calls that overwrite some of the records meanwhile have other numbers.
        let (now, elapsed) = (now(), elapsed());
        self.state().each(span, |record| {
            if record.completed == 0 {
                (record.completed, record.elapsed) = (now, elapsed);
            }
        });
    }

    /// Returns the contents, oldest first.
    pub(super) fn read(&self) -> Vec<Record> {
        let mut records: Vec<_> = self.state().slots.iter().flatten().copied().collect();
        records.sort_unstable_by_key(|record| record.number);
        records
    }
}

impl State {
    fn slot(&mut self, record: u64) -> &mut Option<Record> {
        let last = self.slots.len() - 1;
        &mut self.slots[record as usize & last]
    }

    /// Changes those records of a work that are still in the ring.
    fn each(&mut self, span: Span, mut change: impl FnMut(&mut Record)) {
        let end = span.first + span.count;
        let oldest = end.saturating_sub(self.slots.len() as u64);
        for number in span.first.max(oldest)..end {
            let record = self.slot(number).as_mut();
            record.filter(|record| (record.number, record.work) == (number, span.first)).map(&mut change);
        }
    }
}

#[cfg(test)]
mod interleavings;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::Operation, *};

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
        /// Removes the last record.
        Retract,
        /// Marks the record this far back as done.
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
            // A record that a retracted one had overwritten is lost.
            let mut lost = 0;
            for step in steps {
                match step {
                    Step::Write => {
                        let number = model.len() as u64;
                        prop_assert_eq!(ring.write(&call, || position(number), Span::default(), Location::caller(), 1), number);
                        model.push((number, false));
                        lost = lost.max(model.len().saturating_sub(8));
                    }
                    Step::Retract => if let Some((number, _)) = model.pop() {
                        ring.retract(number, || ());
                        // The next record reuses its number.
                        lost = lost.min(model.len());
                    },
                    Step::Complete(back) => {
                        let Some(at) = model.len().checked_sub(1 + back as usize) else { continue };
                        ring.completed(Span { first: at as u64, count: 1 }, || 7, || 0);
                        model[at].1 = true;
                    }
                }
            }
            let found: Vec<_> = ring.read().iter().map(|r| (r.position.collective, r.completed == 7)).collect();
            prop_assert_eq!(&found, &model[lost.min(model.len())..]);
        }
    }

    /// Writes the first record of a work.
    fn write(ring: &Ring, number: u64) -> Span {
        let record = ring.write(&call(number), || position(number), Span::default(), Location::caller(), 1);
        Span::default().with(record)
    }

    /// Returns the calls in the ring, and the times at which they were done.
    fn completed(ring: &Ring) -> Vec<(u64, u64)> {
        ring.read().iter().map(|record| (record.call.send, record.completed)).collect()
    }

    #[test]
    fn what_is_overwritten_while_the_driver_is_asked_is_not_done() {
        let ring = Ring::new(2);
        let old = write(&ring, 1);
        let overwrite = || (2..4).for_each(|number| _ = write(&ring, number));
        ring.completed(
            old,
            || 7,
            || {
                overwrite();
                1
            },
        );
        assert_eq!(completed(&ring), [(2, 0), (3, 0)]);
    }

    #[test]
    fn a_work_is_done_without_what_another_thread_records_in_between() {
        let ring = Ring::new(8);
        let batch = write(&ring, 1);
        let other = write(&ring, 2);
        let batch = batch.with(ring.write(&call(3), || position(3), batch, Location::caller(), 1));
        ring.completed(batch, || 7, || 0);
        assert_eq!(completed(&ring), [(1, 7), (2, 0), (3, 7)]);
        ring.completed(other, || 9, || 0);
        assert_eq!(completed(&ring), [(1, 7), (2, 9), (3, 7)]);
    }
}

//! The last calls of a rank, behind one lock.
//!
//! The lock is never held during a driver call. A thread that has released the lock for a driver call finds its records
//! again by their numbers, because the number of a launched record is never reused. The same lock guards further data
//! of the rank's groups, as [`Guarded`] values, so that a call takes one lock for all.

use std::{
    cell::UnsafeCell,
    ops::{Deref, DerefMut},
    panic::Location,
    sync::{Arc, PoisonError},
};

use super::call::Call;
use crate::sync::{Mutex, MutexGuard};

/// The range of record numbers that contains the records of one work: `count` numbers, starting at `first`, which is
/// the work's first record. The range may also contain records of works that other threads launch at the same time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: u64,
    pub(crate) count: u64,
}

impl Span {
    /// Returns this span extended up to `record`.
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
    /// Number of collectives called in the group so far, including this call.
    pub(super) collective: u64,
    /// Number of messages that this rank has called in the group so far, including this call.
    pub(super) messages: u64,
    /// For a message: its number among the messages in the same direction with the same peer. 0 for other calls.
    pub(super) pair: u64,
    /// True for a message or a one-sided call, and for the end of a batch that contains no collectives.
    pub(super) message: bool,
    /// True if the call is part of a batch.
    pub(super) batched: bool,
}

/// The recorded data of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub(super) number: u64,
    /// Number of the first record of the same work.
    work: u64,
    pub(super) call: Call,
    pub(super) position: Position,
    pub(super) captured: bool,
    /// Time of the call, in [ticks](super::clock::ticks).
    pub(super) created: u64,
    /// Time at which the operation was first seen to have started, in ticks. 0 until then, and always 0 without timing.
    pub(super) started: u64,
    /// Time at which the operation was first seen to be complete, in ticks. 0 until then.
    pub(super) completed: u64,
    /// Time that the operation took on the device, in ns. 0 if that was not measured.
    pub(super) elapsed: u64,
    pub(super) site: &'static Location<'static>,
}

/// Ring buffer of the last calls. The oldest record is overwritten first.
pub(crate) struct Ring {
    state: Mutex<RingState>,
}

pub(crate) struct RingState {
    slots: Box<[Option<Record>]>,
    /// The number of the next record.
    next: u64,
}

impl Ring {
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            state: Mutex::new(RingState {
                slots: vec![None; slots.max(1).next_power_of_two()].into(),
                next: 0,
            }),
        }
    }

    #[inline(always)]
    pub(super) fn state(&self) -> MutexGuard<'_, RingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the record of a call that was not launched. If no later record exists, the number of the removed record
    /// is reused. `undo` is called under the lock.
    pub(super) fn retract(&self, record: u64, undo: impl FnOnce()) {
        let mut state = self.state();
        undo();
        state.slot(record).take_if(|found| found.number == record);
        if state.next == record + 1 {
            state.next = record;
        }
    }

    /// Marks the records of `span` as captured by a graph.
    pub(super) fn captured(&self, span: Span) {
        self.state().each(span, |record| record.captured = true);
    }

    /// Records that the operations of `span` were seen to have started. Records that have no start time yet get the
    /// time `now`.
    pub(super) fn started(&self, span: Span, now: impl Fn() -> u64) {
        self.state().each(span, |record| {
            if record.started == 0 {
                record.started = now();
            }
        });
    }

    /// Records that the operations of `span` were seen to be complete. Records that have no completion time yet get the
    /// time `now` and the duration `elapsed`, which is that of the whole span.
    pub(super) fn completed(&self, span: Span, now: impl FnOnce() -> u64, elapsed: impl FnOnce() -> u64) {
        let mut is_open = false;
        self.state().each(span, |record| is_open |= record.completed == 0);
        if !is_open {
            return;
        }
        // `now` and `elapsed` may call the driver, so they run without the lock. Calls that overwrite some of the
        // records meanwhile have other numbers, so `each` skips their records.
        let (now, elapsed) = (now(), elapsed());
        self.state().each(span, |record| {
            if record.completed == 0 {
                (record.completed, record.elapsed) = (now, elapsed);
            }
        });
    }

    /// Returns the records, oldest first.
    pub(super) fn read(&self) -> Vec<Record> {
        let mut records: Vec<_> = self.state().slots.iter().flatten().copied().collect();
        records.sort_unstable_by_key(|record| record.number);
        records
    }
}

impl RingState {
    /// Writes a record, and returns its number. `work` is the span of the earlier records of the same work.
    #[inline(always)]
    pub(super) fn write(
        &mut self,
        call: &Call,
        position: Position,
        work: Span,
        site: &'static Location<'static>,
        created: u64,
    ) -> u64 {
        let number = self.next;
        self.next += 1;
        let work = work.with(number).first;
        let (call, captured, started, completed, elapsed) = (*call, false, 0, 0, 0);
        *self.slot(number) = Some(Record {
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

    fn slot(&mut self, record: u64) -> &mut Option<Record> {
        let last = self.slots.len() - 1;
        &mut self.slots[record as usize & last]
    }

    /// Calls `change` with each record of the work `span` that is still in the ring.
    fn each(&mut self, span: Span, mut change: impl FnMut(&mut Record)) {
        let end = span.first + span.count;
        let oldest = end.saturating_sub(self.slots.len() as u64);
        for number in span.first.max(oldest)..end {
            let record = self.slot(number).as_mut();
            record.filter(|record| (record.number, record.work) == (number, span.first)).map(&mut change);
        }
    }
}

/// A value that the lock of a ring guards.
pub(crate) struct Guarded<T> {
    ring: Arc<Ring>,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread that holds the ring's lock accesses the value.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    pub(crate) fn new(ring: &Arc<Ring>, value: T) -> Self {
        Self { ring: ring.clone(), value: UnsafeCell::new(value) }
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> Locked<'_, T> {
        Locked { ring: self.ring.state(), value: &self.value }
    }
}

/// Access to a [`Guarded`] value and to its ring, while the ring's lock is held.
pub(crate) struct Locked<'a, T> {
    ring: MutexGuard<'a, RingState>,
    value: &'a UnsafeCell<T>,
}

impl<T> Locked<'_, T> {
    #[inline(always)]
    pub(crate) fn parts(&mut self) -> (&mut RingState, &mut T) {
        // SAFETY: `ring` is the guard of the lock that guards the value, and `self` is borrowed exclusively.
        (&mut self.ring, unsafe { &mut *self.value.get() })
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `ring` is the guard of the lock that guards the value, and `self` is borrowed.
        unsafe { &*self.value.get() }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.parts().1
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
        /// Marks one record as complete: the record that is this many records before the last one.
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
            // Number of the oldest records that are lost. A record that was overwritten by a retracted record is lost
            // too.
            let mut lost = 0;
            for step in steps {
                match step {
                    Step::Write => {
                        let number = model.len() as u64;
                        let written = ring.state().write(&call, position(number), Span::default(), Location::caller(), 1);
                        prop_assert_eq!(written, number);
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
        let record =
            ring.state().write(&call(number), position(number), Span::default(), Location::caller(), 1);
        Span::default().with(record)
    }

    /// Returns the calls in the ring, with their completion times.
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
        let last = ring.state().write(&call(3), position(3), batch, Location::caller(), 1);
        let batch = batch.with(last);
        ring.completed(batch, || 7, || 0);
        assert_eq!(completed(&ring), [(1, 7), (2, 0), (3, 7)]);
        ring.completed(other, || 9, || 0);
        assert_eq!(completed(&ring), [(1, 7), (2, 9), (3, 7)]);
    }
}

//! The log of one group's calls: numbers the calls, updates the hash that members compare, and writes records to the
//! ring, which holds the last calls of all groups of a rank.
//!
//! [`begin`](Log::begin) assigns a number to a call and writes the call's record, both under the ring's lock, before
//! the call is launched. [`commit`](Log::commit) adds the launched calls to the hash and counts them.
//! [`refuse`](Log::refuse) removes a call that was not launched.
//!
//! The ring's lock is never held during a driver call. A thread that has released the lock for a driver call finds its
//! records again by their numbers, because the number of a launched record is never reused. The same lock guards
//! further data of the rank's groups, as [`Guarded`](super::Guarded) values, so that a call takes one lock for all.

use std::{
    collections::BTreeMap,
    panic::Location,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    Operation,
    call::{Call, Position, Record, Span},
    clock::ticks,
};
use crate::{
    comm::Op,
    operation::Primitive,
    sync::{Mutex, MutexGuard},
    watch::{Fold, Rolling},
};

/// The log of one group's calls on this rank.
pub(crate) struct Log {
    ring: Arc<Ring>,
    group: u32,
    /// This process's rank in the group.
    rank: usize,
    counts: Arc<Counts>,
    /// Message counters: first one for the messages to each member, then one for the messages from each member. Changed
    /// only under the ring's lock.
    pairs: Box<[AtomicU64]>,
    /// The hash that members compare.
    rolling: Arc<Rolling>,
    /// Number of launched calls. Calls that not all members make are also counted in `others`, so a collective updates
    /// only this counter.
    launched: AtomicU64,
    others: Mutex<Others>,
}

/// Numbers of calls that this rank has recorded in a group. `collectives` and `messages` are changed only under the
/// ring's lock.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(super) collectives: AtomicU64,
    pub(super) messages: AtomicU64,
    /// Number of graph launches. Changed without the ring's lock.
    pub(super) graph_launches: AtomicU64,
}

impl Counts {
    /// Returns the number of graph launches that this rank has marked.
    pub(crate) fn graph_launches(&self) -> u64 {
        self.graph_launches.load(Ordering::Acquire)
    }
}

/// Numbers of launched calls that not all members make.
#[derive(Debug, Default, Clone)]
pub(crate) struct Others {
    pub(crate) calls: u64,
    /// Numbers of messages, by the peer's rank in the group.
    pub(crate) messages: BTreeMap<usize, Exchanged>,
}

/// Numbers of launched messages with one peer.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Exchanged {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// True if a graph captured at least one of these messages.
    pub(crate) captured: bool,
}

/// The log's state for one call, or for the calls of a batch, which are launched together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogEntry {
    site: &'static Location<'static>,
    /// The operation of the record that ends a batch; `None` outside a batch.
    end: Option<Operation>,
    /// The counters that the calls have already incremented. A batch increments each counter at most once.
    counted: Counted,
    span: Span,
    fold: Fold,
    last: Last,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    collective: bool,
    message: bool,
}

/// The call that was last recorded by [`Log::begin`].
#[derive(Debug, Clone, Copy, Default)]
struct Last {
    record: u64,
    /// The counters that this call has incremented.
    counted: Counted,
    /// Index of the call's counter in `Log::pairs`.
    pair: Option<usize>,
}

impl LogEntry {
    /// Makes the entry of a call or a batch at `site`. For a batch, `end` is the operation of the batch's last record.
    #[inline(always)]
    pub(crate) fn new(site: &'static Location<'static>, end: Option<Operation>) -> Self {
        let (counted, last) = (Counted::default(), Last::default());
        Self { site, end, counted, span: Span::default(), fold: Fold::default(), last }
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Log({}, {:?})", self.group, self.counts)
    }
}

/// Adds 1 if `one` is true, and returns the new value. Called under the ring's lock, so that no atomic addition is
/// needed.
#[inline(always)]
fn add(counter: &AtomicU64, one: bool) -> u64 {
    let count = counter.load(Ordering::Relaxed) + u64::from(one);
    counter.store(count, Ordering::Relaxed);
    count
}

fn subtract(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
}

impl Log {
    /// Makes the log of a group in which this rank is `rank` of `size`. `group` is the group's number in the recorder
    /// that `ring` and `counts` belong to.
    pub(super) fn new(
        ring: &Arc<Ring>,
        (group, counts): (u32, Arc<Counts>),
        (rank, size): (usize, usize),
        rolling: &Arc<Rolling>,
    ) -> Self {
        let pairs = (0..2 * size).map(|_| AtomicU64::new(0)).collect();
        let (ring, rolling) = (ring.clone(), rolling.clone());
        let (launched, others) = (AtomicU64::new(0), Mutex::new(Others::default()));
        Self { ring, group, rank, counts, pairs, rolling, launched, others }
    }

    /// Returns the index in `pairs` of the counter for a message's peer and direction. `None` for other calls.
    #[inline(always)]
    fn pair(&self, call: &Call) -> Option<usize> {
        let size = self.pairs.len() / 2;
        let direction = match call.operation {
            Operation::Send => 0,
            Operation::Recv => size,
            // A collective has no peer, and the peer of a one-sided call makes no matching call.
            _ => return None,
        };
        call.peer.map(|peer| peer as usize).filter(|peer| *peer < size).map(|peer| direction + peer)
    }

    /// Assigns a number to a call that is about to be launched, and records the call in `ring`, the locked ring of
    /// this log's recorder.
    #[inline(always)]
    pub(crate) fn begin_in(&self, ring: &mut RingState, entry: &mut LogEntry, call: &Call) {
        let message = call.operation.is_message();
        let counts = !call.operation.is_one_sided();
        let counted = Counted {
            collective: counts && !message && !entry.counted.collective,
            message: counts && message && !entry.counted.message,
        };
        let pair = self.pair(call);
        let position = Position {
            group: self.group,
            collective: add(&self.counts.collectives, counted.collective),
            messages: add(&self.counts.messages, counted.message),
            pair: pair.map_or(0, |pair| add(&self.pairs[pair], true)),
            message,
            batched: entry.end.is_some(),
        };
        let record = ring.write(call, position, entry.span, entry.site, ticks());
        entry.counted.collective |= counted.collective;
        entry.counted.message |= counted.message;
        entry.span = entry.span.with(record);
        entry.fold = call.fold(entry.fold);
        entry.last = Last { record, counted, pair };
    }

    /// Does [`begin_in`](Self::begin_in) under the ring's lock.
    pub(crate) fn begin(&self, entry: &mut LogEntry, call: &Call) {
        self.begin_in(&mut self.ring.state(), entry, call);
    }

    /// Removes the last recorded call, which was refused and not launched. The entry must not be committed afterwards.
    #[cold]
    pub(crate) fn refuse(&self, entry: LogEntry) {
        let Last { record, counted, pair } = entry.last;
        self.ring.retract(record, || {
            pair.into_iter().for_each(|pair| subtract(&self.pairs[pair]));
            if counted.collective {
                subtract(&self.counts.collectives);
            }
            if counted.message {
                subtract(&self.counts.messages);
            }
        });
    }

    /// Adds the launched calls of `entry` to the hash, and counts them as one call that consists of `ops`.
    /// `collective` is true if all members make this call. Returns the call's number in the group and the span of its
    /// records.
    #[inline(always)]
    pub(crate) fn commit(&self, entry: LogEntry, collective: bool, ops: &[Op]) -> (u64, Span) {
        self.rolling.step(entry.fold);
        let span = match entry.end {
            Some(end) => self.end(&entry, end),
            None => entry.span,
        };
        let sequence = match collective && !ops.iter().any(Op::is_message) {
            true => self.launched.fetch_add(1, Ordering::AcqRel) + 1,
            false => self.count_messages(collective, ops),
        };
        (sequence, span)
    }

    /// Records the end of a batch that contained collectives or messages. Returns the span of the batch's records.
    fn end(&self, entry: &LogEntry, end: Operation) -> Span {
        let Counted { collective, message } = entry.counted;
        if !collective && !message {
            return entry.span;
        }
        let mut ring = self.ring.state();
        let position = Position {
            group: self.group,
            collective: self.counts.collectives.load(Ordering::Relaxed),
            messages: self.counts.messages.load(Ordering::Relaxed),
            pair: 0,
            message: !collective,
            batched: true,
        };
        entry.span.with(ring.write(&Call::end(end), position, entry.span, entry.site, ticks()))
    }

    /// Counts a call that may contain messages, and returns its number. A call that consists of one-sided ops is not
    /// counted, and gets the number of the last counted call.
    #[inline(never)]
    fn count_messages(&self, collective: bool, ops: &[Op]) -> u64 {
        if !ops.is_empty() && ops.iter().all(|op| op.primitive.is_one_sided()) {
            return self.launched();
        }
        let mut others = self.others();
        others.calls += u64::from(!collective);
        for op in self.exchanged(ops) {
            let with = others.messages.entry(op.rank).or_default();
            match op.primitive {
                Primitive::Send => with.sent += 1,
                _ => with.received += 1,
            }
        }
        // `others` is still locked, so that readers see the call in both counts or in neither.
        self.launched.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Returns the ops that have a matching call on another rank.
    fn exchanged<'a>(&self, ops: &'a [Op]) -> impl Iterator<Item = &'a Op> + use<'a> {
        let rank = self.rank;
        ops.iter().filter(move |op| op.is_message() && op.rank != rank)
    }

    fn others(&self) -> MutexGuard<'_, Others> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a launch of a graph that captured calls.
    pub(crate) fn count_graph_launch(&self) {
        self.counts.graph_launches.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of launched calls.
    pub(crate) fn launched(&self) -> u64 {
        self.launched.load(Ordering::Acquire)
    }

    /// Returns the number of launched calls, and the numbers of those calls that not all members make.
    pub(crate) fn counts(&self) -> (u64, Others) {
        let others = self.others();
        (self.launched(), others.clone())
    }

    /// Marks the calls of `span`, which consist of `ops`, as captured by a graph.
    #[cold]
    pub(crate) fn captured(&self, span: Span, ops: &[Op]) {
        self.ring.captured(span);
        let mut others = self.others();
        self.exchanged(ops).for_each(|op| others.messages.entry(op.rank).or_default().captured = true);
    }

    /// Records that the calls of `span` were seen to have started.
    pub(crate) fn started(&self, span: Span) {
        self.ring.started(span, ticks);
    }

    /// Records that the calls of `span` were seen to be complete. `now` returns the time, which is recorded for calls
    /// without a completion time. `elapsed` returns the time that the calls took on the device, in µs, or `None` if
    /// that was not measured.
    pub(crate) fn completed(
        &self,
        span: Span,
        now: impl FnOnce() -> u64,
        elapsed: impl FnOnce() -> Option<f64>,
    ) {
        // At least 1, because 0 stands for "not measured".
        let elapsed = || elapsed().map_or(0, |us| ((us * 1e3) as u64).max(1));
        self.ring.completed(span, now, elapsed);
    }
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

#[cfg(test)]
mod interleavings;

#[cfg(test)]
mod tests;

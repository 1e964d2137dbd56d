//! The log of one group's calls: their numbers, the hash that members compare, and their records in the ring.
//!
//! [`begin`](Log::begin) numbers a call and writes its record, under the ring's lock, before the call is launched.
//! [`commit`](Log::commit) adds the launched calls to the hash and counts them. [`refuse`](Log::refuse) removes a call
//! that was not launched.

use std::{
    collections::BTreeMap,
    panic::Location,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    Operation,
    call::Call,
    clock::ticks,
    recorder::{Counts, GroupEntry, Recorder},
    ring::{Position, Span},
};
use crate::{
    comm::{Primitive, Task},
    watch::{Fold, Rolling},
};

/// The log of one group's calls on this rank.
pub(crate) struct Log {
    recorder: Arc<Recorder>,
    group: u32,
    /// This rank in the group.
    rank: usize,
    counts: Arc<Counts>,
    /// Messages to every member, then messages from every member. Changed under the ring's lock.
    pairs: Box<[AtomicU64]>,
    /// The hash that members compare.
    rolling: Arc<Rolling>,
    /// All launched calls. Calls that are not collectives are also counted in `others`, so that a collective costs one
    /// counter.
    launched: AtomicU64,
    others: Mutex<Others>,
}

/// Launched calls that not all members make.
#[derive(Debug, Default, Clone)]
pub(crate) struct Others {
    pub(crate) calls: u64,
    /// The messages by the peer's rank in the group.
    pub(crate) messages: BTreeMap<usize, Exchanged>,
}

/// Launched messages with one peer.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Exchanged {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// True if a graph captured any of them.
    pub(crate) captured: bool,
}

/// The records of calls that are launched together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogEntry {
    site: &'static Location<'static>,
    /// The operation of the record that ends a batch; `None` outside a batch.
    end: Option<Operation>,
    /// True for the counts that the calls have raised. A batch counts once as a collective and once as a message.
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

/// The last call that was begun.
#[derive(Debug, Clone, Copy, Default)]
struct Last {
    record: u64,
    /// The counts that it has raised.
    counted: Counted,
    /// The index of its pair.
    pair: Option<usize>,
}

impl LogEntry {
    /// Makes the entry of a call at `site`. A batch has a further record at its `end`.
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

/// Adds 1 under the ring's lock, which makes an atomic addition unnecessary. Returns the sum.
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
    /// Makes the log of a group in which this rank is `rank`.
    pub(crate) fn new(
        recorder: &Arc<Recorder>,
        group: GroupEntry,
        rank: usize,
        rolling: &Arc<Rolling>,
    ) -> Self {
        let counts = Arc::new(Counts::default());
        let pairs = (0..2 * group.ranks.len()).map(|_| AtomicU64::new(0)).collect();
        let group = recorder.add(group, counts.clone());
        let (recorder, rolling) = (recorder.clone(), rolling.clone());
        let (launched, others) = (AtomicU64::new(0), Mutex::default());
        Self { recorder, group, rank, counts, pairs, rolling, launched, others }
    }

    pub(crate) fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// Returns the index of the counter of a message's pair and direction.
    #[inline(always)]
    fn pair(&self, call: &Call) -> Option<usize> {
        let size = self.pairs.len() / 2;
        let direction = match call.operation {
            Operation::Send => 0,
            Operation::Recv => size,
            // A put has no matching call.
            _ => return None,
        };
        call.peer.map(|peer| peer as usize).filter(|peer| *peer < size).map(|peer| direction + peer)
    }

    /// Numbers and records a call that is about to be launched.
    #[inline(always)]
    pub(crate) fn begin(&self, entry: &mut LogEntry, call: &Call) {
        let message = call.operation.is_message();
        let counts = !call.operation.is_one_sided();
        let counted = Counted {
            collective: counts && !message && !entry.counted.collective,
            message: counts && message && !entry.counted.message,
        };
        let pair = self.pair(call);
        let position = || Position {
            group: self.group,
            collective: add(&self.counts.collectives, counted.collective),
            messages: add(&self.counts.messages, counted.message),
            pair: pair.map_or(0, |pair| add(&self.pairs[pair], true)),
            message,
            batched: entry.end.is_some(),
        };
        let record = self.recorder.ring.write(call, position, entry.span, entry.site, ticks());
        entry.counted.collective |= counted.collective;
        entry.counted.message |= counted.message;
        entry.span = entry.span.with(record);
        entry.fold = call.fold(entry.fold);
        entry.last = Last { record, counted, pair };
    }

    /// Removes the call that was begun last, which was refused. The entry is not committed then.
    #[cold]
    pub(crate) fn refuse(&self, entry: LogEntry) {
        let Last { record, counted, pair } = entry.last;
        self.recorder.ring.retract(record, || {
            pair.into_iter().for_each(|pair| subtract(&self.pairs[pair]));
            if counted.collective {
                subtract(&self.counts.collectives);
            }
            if counted.message {
                subtract(&self.counts.messages);
            }
        });
    }

    /// Adds launched calls, which consist of `tasks`, to the hash and counts them as one. `collective` is true if all
    /// members make the call. Returns its number and its records.
    #[inline(always)]
    pub(crate) fn commit(&self, entry: LogEntry, collective: bool, tasks: &[Task]) -> (u64, Span) {
        self.rolling.step(entry.fold);
        let span = match entry.end {
            Some(end) => self.end(&entry, end),
            None => entry.span,
        };
        let sequence = match collective && !tasks.iter().any(Task::is_message) {
            true => self.launched.fetch_add(1, Ordering::AcqRel) + 1,
            false => self.count_messages(collective, tasks),
        };
        (sequence, span)
    }

    /// Records the end of a batch, if it had any calls.
    fn end(&self, entry: &LogEntry, end: Operation) -> Span {
        let Counted { collective, message } = entry.counted;
        if !collective && !message {
            return entry.span;
        }
        let position = || Position {
            group: self.group,
            collective: self.counts.collectives.load(Ordering::Relaxed),
            messages: self.counts.messages.load(Ordering::Relaxed),
            pair: 0,
            message: !collective,
            batched: true,
        };
        entry.span.with(self.recorder.ring.write(&Call::end(end), position, entry.span, entry.site, ticks()))
    }

    /// Counts a call that may contain messages.
    #[inline(never)]
    fn count_messages(&self, collective: bool, tasks: &[Task]) -> u64 {
        if !tasks.is_empty() && tasks.iter().all(|task| task.primitive.is_one_sided()) {
            return self.launched();
        }
        let mut others = self.others();
        others.calls += u64::from(!collective);
        for task in self.exchanged(tasks) {
            let with = others.messages.entry(task.rank).or_default();
            match task.primitive {
                Primitive::Send => with.sent += 1,
                _ => with.received += 1,
            }
        }
        // Under the lock, so that readers see both counts or neither.
        self.launched.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Returns the tasks that have a matching call on another rank.
    fn exchanged<'a>(&self, tasks: &'a [Task]) -> impl Iterator<Item = &'a Task> + use<'a> {
        let rank = self.rank;
        tasks.iter().filter(move |task| task.is_message() && task.rank != rank)
    }

    fn others(&self) -> MutexGuard<'_, Others> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of launched calls.
    pub(crate) fn launched(&self) -> u64 {
        self.launched.load(Ordering::Acquire)
    }

    /// Returns the number of launched calls, and those of them that not all members make.
    pub(crate) fn counts(&self) -> (u64, Others) {
        let others = self.others();
        (self.launched(), others.clone())
    }

    /// Marks these calls as captured by a graph.
    #[cold]
    pub(crate) fn captured(&self, span: Span, tasks: &[Task]) {
        self.recorder.ring.captured(span);
        let mut others = self.others();
        self.exchanged(tasks).for_each(|task| others.messages.entry(task.rank).or_default().captured = true);
    }

    /// Records that these calls were seen to have begun.
    pub(crate) fn started(&self, span: Span) {
        self.recorder.ring.started(span, ticks);
    }

    /// Records that these calls were seen to be done. The time is `now`, unless it was recorded before.
    /// `elapsed` is the time that the device took, in µs, if it was measured.
    pub(crate) fn completed(
        &self,
        span: Span,
        now: impl FnOnce() -> u64,
        elapsed: impl FnOnce() -> Option<f64>,
    ) {
        // At least 1, because 0 stands for "not measured".
        let elapsed = || elapsed().map_or(0, |us| ((us * 1e3) as u64).max(1));
        self.recorder.ring.completed(span, now, elapsed);
    }
}

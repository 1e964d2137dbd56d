//! The works that are not known to be complete, by stream.
//!
//! The thread that launches a work also records the work's event. No lock is held during a driver call, so a
//! driver call that hangs blocks no other thread. If several threads share a stream, their works may
//! therefore be added in an order that differs from the order of their events. Each work has the [`Interval`]
//! in which its event was recorded. If the intervals of two works do not overlap, their events are in the
//! order of the intervals. Works with overlapping intervals are queried one by one. The number of intervals
//! that overlap at any time is at most the number of threads that launch at that time.
//!
//! A [`Mark`] holds the data of a work, and the CUDA events before and after its operation.
//! An event is recorded right after every operation, although most callers drop the [`Work`] at once.
//! Recording the event later, on demand or with a later call, would have these problems:
//! - The event would come after other work that was enqueued in between. A stream that waits for the
//!   operation would also wait for that other work, which may itself wait for the waiting stream. The
//!   watchdog could not distinguish a late operation from a long-running kernel of the program.
//! - The program may have destroyed the stream before the event is recorded.
//! - At launch, it is not known whether a later call on the stream will follow soon.
//!
//! A mark is reused once nothing else refers to it, because making events costs more than recording them. All
//! data of an operation is in one mark, so that a [`Work`] counts references to one object instead of five.
//!
//! A work stays in [`Outstanding`] until that work, or one with a later event on the same stream, was seen to be
//! complete.
//! The last work of a stream stays even if it is complete, until the whole stream is removed as idle.

use std::{collections::VecDeque, sync::Arc};

use cuda_driver::{
    Stream,
    graph::{CaptureStatus, RelaxedCapture},
};

use super::{
    super::{
        GroupErrorKind, KindResult, Result,
        counter::Counter,
        work_monitor::{OldestWork, OpenWork},
    },
    Work,
    events::{Lease, Marks, StreamKey},
};
use crate::{
    BoxedResult,
    record::{Guarded, Locked, Look, Ring, RingState, Span, ticks},
};

/// The interval in which a work's event was recorded: after `begun` and before `recorded`, both in logical
/// time of the work's [`Outstanding`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::group) struct Interval {
    pub(super) begun: u64,
    /// Unique among the works of a group. 0 while the work is not added yet.
    pub(super) recorded: u64,
}

impl Interval {
    /// Returns true if the event of this interval comes before the event of `later`, provided that both are
    /// on the same stream.
    fn precedes(self, later: Self) -> bool {
        self.recorded < later.begun
    }
}

/// The properties of a work that this module needs. Model checks implement this trait without a driver.
pub(in crate::group) trait Tracked: Clone {
    type Stream: Copy + PartialEq;
    /// The part of a finished work that a new work can reuse.
    type Blank;

    fn stream(&self) -> Self::Stream;
    fn interval(&self) -> Interval;
    /// Sets the end of the work's interval. Called when the work is added, while nothing else refers to the
    /// work.
    fn set_recorded(&mut self, recorded: u64);
    /// Queries the driver. Returns true if the work is complete, and false if it is not or the query fails.
    fn is_known_done(&self) -> bool;
    /// Records that the work was seen to be complete at `now`, unless that was recorded before.
    fn tell_done(&self, now: u64);
    /// Returns the work's reusable part, if nothing else refers to the work.
    fn recycle(self) -> Option<Self::Blank>;
}

/// For each stream of a group: the works that are not known to be complete, and the last work.
pub(in crate::group) struct Outstanding<W: Tracked = Work> {
    state: Guarded<State<W>>,
}

struct State<W: Tracked> {
    /// Logical time. Advances when a work begins and when a work is added.
    clock: u64,
    streams: Vec<StreamWorks<W>>,
    /// Reusable parts of works that were complete.
    blanks: Vec<W::Blank>,
}

/// The works of one stream, in the order in which they were added. Never empty. All streams belong to the
/// group's context, so `stream` identifies a stream uniquely.
struct StreamWorks<W: Tracked> {
    stream: W::Stream,
    works: VecDeque<W>,
}

impl<W: Tracked> Outstanding<W> {
    /// The oldest works of a stream are checked, with one query, each time the number of the stream's works
    /// reaches a multiple of this. At most this many works are removed at a time. A query costs as much as
    /// ten event records.
    const STRIDE: usize = 128;
    /// Number of streams above which streams without incomplete work are removed.
    const STREAMS: usize = 16;
    /// Maximum number of blanks that are kept.
    const BLANKS: usize = 1024;

    /// Makes an empty collection, which the lock of `ring` guards.
    pub(in crate::group) fn new(ring: &Arc<Ring>) -> Self {
        let state = State { clock: 0, streams: Vec::new(), blanks: Vec::new() };
        Self { state: Guarded::new(ring, state) }
    }

    #[inline(always)]
    fn state(&self) -> Locked<'_, State<W>> {
        self.state.lock()
    }

    /// Begins a work, and calls `log` with the ring, both under the ring's lock. Returns the logical time, and
    /// a blank for the work, from `make` if none is kept. The work's event must be recorded after this call.
    #[inline(always)]
    fn begin<E>(
        &self,
        make: impl FnOnce() -> Result<W::Blank, E>,
        log: impl FnOnce(&mut RingState),
    ) -> Result<(u64, W::Blank), E> {
        let mut lock = self.state();
        let blank = match lock.blanks.pop() {
            Some(blank) => blank,
            None => {
                // `make` may call the driver.
                drop(lock);
                let blank = make()?;
                lock = self.state();
                blank
            }
        };
        let (ring, state) = lock.parts();
        state.clock += 1;
        log(ring);
        Ok((state.clock, blank))
    }

    /// Adds a work whose event is already recorded, and returns the work.
    #[inline(always)]
    pub(in crate::group) fn put(&self, mut work: W) -> W {
        let stream = work.stream();
        let (is_new, is_due) = {
            let State { clock, streams, .. } = &mut *self.state();
            *clock += 1;
            work.set_recorded(*clock);
            match streams.iter_mut().find(|known| known.stream == stream) {
                Some(known) => {
                    known.works.push_back(work.clone());
                    (false, known.works.len().is_multiple_of(Self::STRIDE))
                }
                None => {
                    streams.push(StreamWorks { stream, works: VecDeque::from([work.clone()]) });
                    (true, streams.len() > Self::STREAMS)
                }
            }
        };
        if is_due {
            if is_new { self.forget_idle_streams() } else { self.trim(stream) }
        }
        work
    }

    /// Returns, for every stream, the works whose events may be the stream's last. When these works are
    /// complete, all works are.
    pub(in crate::group) fn latest(&self) -> Vec<W> {
        self.state().streams.iter().flat_map(StreamWorks::latest).collect()
    }

    /// Returns true if all works are known to be complete.
    fn is_done(&self) -> bool {
        self.latest().iter().all(W::is_known_done)
    }

    /// Removes complete works, and returns the oldest incomplete work of every stream that has one. Makes one
    /// query for a stream whose oldest work is still incomplete.
    pub(in crate::group) fn settle(&self) -> Vec<W> {
        let first = |known: &StreamWorks<W>| known.works.front().cloned();
        let oldest: Vec<W> = self.state().streams.iter().filter_map(first).collect();
        let open = |oldest: W| match oldest.is_known_done() {
            true => self.sweep(self.first(oldest.stream(), usize::MAX)).into_iter().next(),
            false => Some(oldest),
        };
        oldest.into_iter().filter_map(open).collect()
    }

    /// Returns the first works of `stream`, in the order in which they were added, at most `count`.
    fn first(&self, stream: W::Stream, count: usize) -> Vec<W> {
        let state = self.state();
        let known = state.streams.iter().find(|known| known.stream == stream);
        known.map_or(Vec::new(), |known| known.works.iter().take(count).cloned().collect())
    }

    /// Returns all works of each stream.
    fn all(&self) -> Vec<Vec<W>> {
        self.state().streams.iter().map(|known| known.works.iter().cloned().collect()).collect()
    }

    /// Queries these works of one stream, removes the complete ones, and returns the others in the same
    /// order.
    fn sweep(&self, works: Vec<W>) -> Vec<W> {
        let is_done = find_done(&works);
        let (mut done, mut open) = (Vec::new(), Vec::new());
        for (work, is_done) in works.into_iter().zip(is_done) {
            if is_done { done.push(work) } else { open.push(work) }
        }
        self.forget(done);
        open
    }

    /// Removes the oldest works of a stream, if one query shows that they are complete.
    #[cold]
    fn trim(&self, stream: W::Stream) {
        let mut works = self.first(stream, Self::STRIDE);
        if let Some(last) = works.last().filter(|last| last.is_known_done()).cloned() {
            let at = last.interval();
            works.retain(|work| work.interval() == at || work.interval().precedes(at));
            drop(last);
            self.forget(works);
        }
    }

    /// Removes streams without incomplete work, because programs may create and destroy many streams.
    #[cold]
    fn forget_idle_streams(&self) {
        let mut idle = Vec::new();
        for works in self.all() {
            let last = works.last().map(|last| (last.stream(), last.interval()));
            if self.sweep(works).is_empty() {
                idle.extend(last);
            }
        }
        let is_idle = |known: &mut StreamWorks<W>| {
            known.works.len() == 1 && idle.contains(&(known.stream, known.works[0].interval()))
        };
        // `gone` is dropped after the lock is released, because the drop may destroy events.
        let gone: Vec<_> = self.state().streams.extract_if(.., is_idle).collect();
        drop(gone);
    }

    /// Removes complete works of one stream, except the stream's last work. `done` is in the order in which
    /// the works were added.
    fn forget(&self, done: Vec<W>) {
        let Some(stream) = done.first().map(W::stream) else { return };
        // The works are recorded as complete before they are removed, so that a concurrent dump finds each
        // work either here or recorded as complete.
        let now = ticks();
        done.iter().for_each(|work| work.tell_done(now));
        if let Some(known) = self.state().streams.iter_mut().find(|known| known.stream == stream) {
            known.forget(&done);
        }
        let mut blanks: Vec<_> = done.into_iter().filter_map(W::recycle).collect();
        let mut state = self.state();
        let room = Self::BLANKS.saturating_sub(state.blanks.len());
        state.blanks.extend(blanks.drain(..room.min(blanks.len())));
        // Blanks that do not fit in the pool are dropped after the lock is released, because the drop may
        // destroy events.
        drop(state);
    }
}

impl<W: Tracked> StreamWorks<W> {
    /// Returns the last work, and the works whose events may come after the last work's event.
    fn latest(&self) -> impl Iterator<Item = W> {
        let mut newest = 0;
        let may_be_last = move |work: &&W| {
            let Interval { begun, recorded } = work.interval();
            let precedes = recorded < newest;
            newest = newest.max(begun);
            !precedes
        };
        self.works.iter().rev().take_while(may_be_last).cloned()
    }

    /// Removes the works `done`, except the last work of the stream. Another thread may have removed some of
    /// them before.
    fn forget(&mut self, done: &[W]) {
        let entered = |work: &W| work.interval().recorded;
        let mut left = done.iter().map(entered).peekable();
        while self.works.len() > 1
            && left.next_if(|at| self.works.front().map(entered) == Some(*at)).is_some()
        {
            self.works.pop_front();
        }
        // Works of `done` can remain here for three reasons. They are behind an incomplete work of another thread.
        // They follow a work in `done` that another thread has removed already. Or the stream's last work, which
        // stays, is in `done`.
        if left.peek().is_some() {
            let last = self.works.back().map(entered);
            let is_done = |at| done.binary_search_by_key(&at, entered).is_ok();
            self.works.retain(|work| Some(entered(work)) == last || !is_done(entered(work)));
        }
    }
}

/// Returns, for each of these works of one stream, whether the work is complete. Makes as many queries as a
/// binary search for the boundary between complete and incomplete works, plus one for each work whose
/// interval overlaps that boundary.
fn find_done<W: Tracked>(works: &[W]) -> Vec<bool> {
    let mut is_done = vec![false; works.len()];
    let mut open: Vec<usize> = (0..works.len()).collect();
    // The last work is queried first, because often all works are complete.
    let mut next = open.len().saturating_sub(1);
    while !open.is_empty() {
        let asked = open.remove(next);
        let interval = works[asked].interval();
        if works[asked].is_known_done() {
            let before = open.partition_point(|other| works[*other].interval().precedes(interval));
            open.drain(..before).chain([asked]).for_each(|done| is_done[done] = true);
        } else {
            open.retain(|other| !interval.precedes(works[*other].interval()));
        }
        next = open.len() / 2;
    }
    is_done
}

/// The data and the events of a launched operation.
pub(super) struct Mark {
    pub(super) operation: &'static str,
    pub(super) sequence: u64,
    pub(super) interval: Interval,
    pub(super) stream: StreamKey,
    /// True if the event `done` was recorded in a stream capture. The driver refuses to query such an event,
    /// and a query during the capture invalidates the capture (measured). The event is therefore never
    /// queried.
    pub(super) captured: bool,
    /// The operation's records in the flight recorder.
    pub(super) span: Span,
    /// The event before the operation. `None` if the group does not time operations.
    pub(super) start: Option<Lease>,
    /// The event after the operation.
    pub(super) done: Lease,
    pub(super) counter: Arc<Counter>,
}

impl Mark {
    /// Returns the time between the events before and after the operation, in µs. `None` without timing. The
    /// stream must have passed both events.
    pub(super) fn elapsed_us(&self) -> KindResult<Option<f64>> {
        let Some(start) = &self.start else { return Ok(None) };
        let done = self.done.event();
        let _relaxed = RelaxedCapture::enter(done.context().driver())?;
        Ok(Some(done.elapsed_us(start.event())?))
    }
}

/// The mark of an operation that is not launched yet. Nothing else refers to the mark.
pub(in crate::group) struct Blank {
    mark: Arc<Mark>,
    /// Logical time at which the call began; see [`Interval`].
    pub(super) begun: u64,
}

impl Blank {
    /// Makes a mark for an operation of the group that `counter` belongs to.
    #[cold]
    pub(super) fn new(marks: &Arc<Marks>, counter: &Arc<Counter>) -> BoxedResult<Self, GroupErrorKind> {
        let mark = Mark {
            operation: "",
            sequence: 0,
            interval: Interval::default(),
            stream: StreamKey::default(),
            captured: false,
            span: Span::default(),
            start: if marks.timing { Some(marks.lease()?) } else { None },
            done: marks.lease()?,
            counter: counter.clone(),
        };
        Ok(Self { mark: Arc::new(mark), begun: 0 })
    }

    /// Returns the mark of a finished work for reuse, if nothing else refers to the mark.
    pub(super) fn again(work: Work) -> Option<Self> {
        // The check does not race: if the count is 1, `work` holds the only reference, and there are no weak
        // references from which another thread could make a second one.
        (Arc::strong_count(&work.mark) == 1).then_some(Self { mark: work.mark, begun: 0 })
    }

    /// Records the event before the operation, if the group times operations. Captured operations are not
    /// timed.
    #[inline]
    pub(in crate::group) fn start(&mut self, stream: &Stream) -> BoxedResult<(), GroupErrorKind> {
        match &self.mark.start {
            None => Ok(()),
            Some(start) => start.record_timed(stream),
        }
    }

    /// Records the event after the launched operation, and returns its work. `sequence` is the operation's
    /// number in the group, and `span` its records in the flight recorder.
    #[inline(always)]
    pub(in crate::group) fn done(
        mut self,
        operation: &'static str,
        sequence: u64,
        stream: &Stream,
        span: Span,
    ) -> BoxedResult<Work, GroupErrorKind> {
        stream.record(self.mark.done.event())?;
        let captured = stream.capture_status()? != CaptureStatus::None;
        let Some(mark) = Arc::get_mut(&mut self.mark) else { unreachable!("a blank has one holder") };
        (mark.operation, mark.sequence, mark.span) = (operation, sequence, span);
        mark.interval = Interval { begun: self.begun, recorded: 0 };
        (mark.stream, mark.captured) = (StreamKey::of(stream), captured);
        Ok(Work { mark: self.mark })
    }
}

impl Tracked for Work {
    type Stream = StreamKey;
    type Blank = Blank;

    fn stream(&self) -> StreamKey {
        self.mark.stream
    }

    fn interval(&self) -> Interval {
        self.mark.interval
    }

    fn set_recorded(&mut self, recorded: u64) {
        let Some(mark) = Arc::get_mut(&mut self.mark) else {
            unreachable!("a work has one holder until it enters")
        };
        mark.interval.recorded = recorded;
    }

    fn is_known_done(&self) -> bool {
        self.is_done().unwrap_or(false)
    }

    fn tell_done(&self, now: u64) {
        Self::tell_done(self, || now);
    }

    fn recycle(self) -> Option<Blank> {
        Blank::again(self)
    }
}

impl Outstanding {
    /// Returns a blank for the next operation, and calls `log` with the ring, both under the ring's lock. The
    /// operation's event must be recorded after this call.
    #[inline(always)]
    pub(in crate::group) fn blank(
        &self,
        marks: &Arc<Marks>,
        counter: &Arc<Counter>,
        log: impl FnOnce(&mut RingState),
    ) -> BoxedResult<Blank, GroupErrorKind> {
        let (begun, mut blank) = self.begin(|| Blank::new(marks, counter), log)?;
        blank.begun = begun;
        Ok(blank)
    }
}

impl OpenWork for Outstanding {
    fn is_done(&self) -> bool {
        self.is_done()
    }

    fn oldest(&self) -> Vec<OldestWork> {
        let oldest = |work: Work| OldestWork {
            key: work.key(),
            operation: work.operation(),
            sequence: work.sequence(),
        };
        self.settle().into_iter().map(oldest).collect()
    }
}

impl Look for Outstanding {
    fn look(&self) {
        for works in self.all() {
            let _ = self.sweep(works).iter().all(Work::tell_started);
        }
    }
}

#[cfg(test)]
mod interleavings;

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

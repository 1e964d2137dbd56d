//! The works of every stream that are not known to be done.
//!
//! The thread that launches a work records its event. It holds no lock during that call or any other call of
//! the driver, so a call that hangs blocks no other thread. If several threads share a stream, works may
//! therefore be added in an order that differs from that of their events. Each work has the [`Interval`] in
//! which its event was recorded. Events of intervals that do not overlap are in the order of the intervals.
//! Works with overlapping intervals are queried one by one; there are never more of them than threads that
//! call at a time.
//!
//! A work stays until it, or one with a later event, was seen to be done.

use std::{
    collections::VecDeque,
    sync::{Arc, PoisonError},
};

use super::{
    super::{
        GroupError,
        counter::Counter,
        work_monitor::{OldestWork, OpenWork},
    },
    Blank, Marks, Work,
    mark::StreamKey,
};
use crate::{
    BoxedResult,
    record::{Look, ticks},
    sync::{Mutex, MutexGuard},
};

/// The interval in which a work's event was recorded: after `begun` and before `recorded`, by the clock of
/// its [`Outstanding`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::group) struct Interval {
    pub(super) begun: u64,
    /// 0: it is not added yet. No two works of a group have the same.
    pub(super) recorded: u64,
}

impl Interval {
    /// Returns true if its event comes before the other's, provided that both are on one stream.
    fn precedes(self, later: Self) -> bool {
        self.recorded < later.begun
    }
}

/// The properties of a work that this module needs.
pub(in crate::group) trait Tracked: Clone {
    type Stream: Copy + PartialEq;
    /// A reusable part of a dropped work.
    type Blank;

    fn stream(&self) -> Self::Stream;
    fn interval(&self) -> Interval;
    /// Called when the work is added. It has no other holder yet.
    fn set_recorded(&mut self, recorded: u64);
    /// Asks the driver. If the driver fails, the work is not known to be done.
    fn is_known_done(&self) -> bool;
    /// Reports that it was seen to be done at `now`, unless that was reported before.
    fn tell_done(&self, now: u64);
    /// Returns its reusable part, if it has no other holder.
    fn recycle(self) -> Option<Self::Blank>;
}

/// The works of every stream of a group that are not known to be done, and each stream's last work.
pub(in crate::group) struct Outstanding<W: Tracked = Work> {
    state: Mutex<State<W>>,
}

struct State<W: Tracked> {
    /// Advances when a work begins and when it is added.
    clock: u64,
    streams: Vec<StreamWorks<W>>,
    /// Reusable parts of dropped works.
    blanks: Vec<W::Blank>,
}

/// The works of one stream, in the order in which they were added; never empty. All are of the group's
/// context, so their keys identify streams.
struct StreamWorks<W: Tracked> {
    stream: W::Stream,
    works: VecDeque<W>,
}

impl<W: Tracked> Default for Outstanding<W> {
    fn default() -> Self {
        Self { state: Mutex::new(State { clock: 0, streams: Vec::new(), blanks: Vec::new() }) }
    }
}

impl<W: Tracked> Outstanding<W> {
    /// The number of works of a stream after which the oldest are queried, and the number queried at a time.
    /// A query costs as much as ten event records.
    const STRIDE: usize = 128;
    /// The number of streams above which streams without open work are removed.
    const STREAMS: usize = 16;
    /// The most blanks that are kept.
    const BLANKS: usize = 1024;

    fn state(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a work: returns its time, and a blank to make it from. Its event is recorded after this.
    #[inline(always)]
    fn begin(&self) -> (u64, Option<W::Blank>) {
        let mut state = self.state();
        state.clock += 1;
        (state.clock, state.blanks.pop())
    }

    /// Adds a work whose event is recorded.
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

    /// Returns the works of every stream of which one is done last. When they are done, all work is.
    pub(in crate::group) fn latest(&self) -> Vec<W> {
        self.state().streams.iter().flat_map(StreamWorks::latest).collect()
    }

    /// Returns true if all works are done.
    fn is_done(&self) -> bool {
        self.latest().iter().all(W::is_known_done)
    }

    /// Returns the oldest work of every stream that is not done. Costs one query for a stream without
    /// changes.
    pub(in crate::group) fn settle(&self) -> Vec<W> {
        let first = |known: &StreamWorks<W>| known.works.front().cloned();
        let oldest: Vec<W> = self.state().streams.iter().filter_map(first).collect();
        let open = |oldest: W| match oldest.is_known_done() {
            true => self.sweep(self.first(oldest.stream(), usize::MAX)).into_iter().next(),
            false => Some(oldest),
        };
        oldest.into_iter().filter_map(open).collect()
    }

    /// Returns the first works of a stream, at most `count`.
    fn first(&self, stream: W::Stream, count: usize) -> Vec<W> {
        let state = self.state();
        let known = state.streams.iter().find(|known| known.stream == stream);
        known.map_or(Vec::new(), |known| known.works.iter().take(count).cloned().collect())
    }

    /// Returns all works, by stream.
    fn all(&self) -> Vec<Vec<W>> {
        self.state().streams.iter().map(|known| known.works.iter().cloned().collect()).collect()
    }

    /// Queries these works of one stream, removes those that are done, and returns the others in their order.
    fn sweep(&self, works: Vec<W>) -> Vec<W> {
        let is_done = find_done(&works);
        let (mut done, mut open) = (Vec::new(), Vec::new());
        for (work, is_done) in works.into_iter().zip(is_done) {
            if is_done { done.push(work) } else { open.push(work) }
        }
        self.forget(done);
        open
    }

    /// Removes the oldest works of a stream if they are done, with one query.
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

    /// Removes streams without open work. Programs create and destroy streams.
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
        // Dropped after the lock is released, because events may be destroyed.
        let gone: Vec<_> = self.state().streams.extract_if(.., is_idle).collect();
        drop(gone);
    }

    /// Removes works of one stream that are done, in the order in which they were added. The stream's last
    /// one stays.
    fn forget(&self, done: Vec<W>) {
        let Some(stream) = done.first().map(W::stream) else { return };
        // Before they are removed, so that a concurrent dump finds them either here or recorded as done.
        let now = ticks();
        done.iter().for_each(|work| work.tell_done(now));
        if let Some(known) = self.state().streams.iter_mut().find(|known| known.stream == stream) {
            known.forget(&done);
        }
        let mut blanks: Vec<_> = done.into_iter().filter_map(W::recycle).collect();
        let mut state = self.state();
        let room = Self::BLANKS.saturating_sub(state.blanks.len());
        state.blanks.extend(blanks.drain(..room.min(blanks.len())));
        // Works that do not fit in the pool are dropped after the lock is released, because events may be
        // destroyed.
        drop(state);
    }
}

impl<W: Tracked> StreamWorks<W> {
    /// Returns the last work, and those whose events may come after its own.
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

    /// Removes these works, except the last of the stream. Another thread may have removed some of them
    /// before.
    fn forget(&mut self, done: &[W]) {
        let entered = |work: &W| work.interval().recorded;
        let mut left = done.iter().map(entered).peekable();
        while self.works.len() > 1
            && left.next_if(|at| self.works.front().map(entered) == Some(*at)).is_some()
        {
            self.works.pop_front();
        }
        // The rest lies between works of other threads.
        if left.peek().is_some() {
            let last = self.works.back().map(entered);
            let is_done = |at| done.binary_search_by_key(&at, entered).is_ok();
            self.works.retain(|work| Some(entered(work)) == last || !is_done(entered(work)));
        }
    }
}

/// Returns which works of one stream are done. Uses as many queries as a binary search, and one for each work
/// whose event may be on either side of the stream's current position.
fn find_done<W: Tracked>(works: &[W]) -> Vec<bool> {
    let mut is_done = vec![false; works.len()];
    let mut open: Vec<usize> = (0..works.len()).collect();
    // Often all are done.
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
    /// Returns a mark for the next operation, whose event is recorded after this.
    #[inline(always)]
    pub(in crate::group) fn blank(
        &self,
        marks: &Arc<Marks>,
        counter: &Arc<Counter>,
    ) -> BoxedResult<Blank, GroupError> {
        let (begun, kept) = self.begin();
        let mut blank = match kept {
            Some(blank) => blank,
            None => Blank::new(marks, counter)?,
        };
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
mod tests {
    use rusty_fork::rusty_fork_test;

    use super::Outstanding;
    use crate::embedded_machine::{far, hold, machine, soon};

    rusty_fork_test! {
        #[test]
        fn streams_that_come_and_go_leave_nothing_and_open_work_stays() {
            let machine = machine(1);
            machine.ranks(1, |rank| {
                let group = rank.world();
                let held = rank.stream();
                let open = hold(&held);
                let late = group.track_graph_launch(&held).unwrap();
                for _ in 0..5 * Outstanding::<super::Work>::STREAMS {
                    group.track_graph_launch(&rank.stream()).unwrap().wait_until(far()).unwrap();
                }
                let streams = group.outstanding.state().streams.len();
                assert!(streams <= Outstanding::<super::Work>::STREAMS, "{streams} streams");
                group.quiesce(soon()).unwrap_err();
                drop(open);
                late.wait_until(far()).unwrap();
                group.quiesce(far()).unwrap();
                group.destroy(far()).unwrap();
            });
            machine.world.finish().unwrap();
        }
    }
}

//! The latest works of every stream.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    super::{GroupError, counter::Counter},
    Blank, Marks, Work,
    mark::StreamKey,
};
use crate::{
    Slim,
    record::{Look, ticks},
};

/// The latest works of every stream. When one is done, so is everything before it there, so the last of each stands
/// for all; the others are for the flight recorder, which wants to know how far a stream has come.
#[derive(Default)]
pub(in crate::group) struct Outstanding {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    streams: Vec<Line>,
    /// What works have left that nobody else held.
    blanks: Vec<Blank>,
}

/// The works of one stream, oldest first. All are of the group's context, in which keys are unique.
struct Line {
    stream: StreamKey,
    works: VecDeque<Work>,
}

impl Outstanding {
    /// A stream takes about as many launches before the host waits: what is further back is done.
    const KEPT: usize = 1024;
    /// After how many works a stream is looked at, and how many go at a time.
    const STRIDE: usize = 128;
    /// So many of the last works of a stream are asked about: threads that use one may enter theirs in another order than
    /// the stream has them.
    const TAIL: usize = 4;
    /// From how many streams on it is looked at which are of use: those that are used in turns stay.
    const STREAMS: usize = 16;

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A mark for the next operation.
    #[inline(always)]
    pub(in crate::group) fn blank(
        &self,
        marks: &Arc<Marks>,
        counter: &Arc<Counter>,
    ) -> Slim<Blank, GroupError> {
        let kept = self.kept().blanks.pop();
        match kept {
            Some(blank) => Ok(blank),
            None => Blank::new(marks, counter),
        }
    }

    /// Adds the latest work of its stream.
    #[inline(always)]
    pub(in crate::group) fn put(&self, work: &Work) {
        let Kept { streams, blanks } = &mut *self.kept();
        let stream = work.mark.stream;
        let Some(line) = streams.iter_mut().find(|line| line.stream == stream) else {
            return Self::put_first(streams, blanks, work);
        };
        if line.works.len().is_multiple_of(Self::STRIDE) {
            line.drop_oldest(blanks);
        }
        line.works.push_back(work.clone());
    }

    /// Adds the first work of its stream. Streams come and go: of many, those on which nothing is open are forgotten.
    #[cold]
    fn put_first(streams: &mut Vec<Line>, blanks: &mut Vec<Blank>, work: &Work) {
        if streams.len() >= Self::STREAMS {
            streams.retain_mut(|line| {
                let is_done = line.drop_done(blanks);
                if is_done {
                    line.drop_first(line.works.len(), blanks);
                }
                !is_done
            });
        }
        let mut works = VecDeque::with_capacity(Self::STRIDE);
        works.push_back(work.clone());
        streams.push(Line { stream: work.mark.stream, works });
    }

    /// The oldest work of every stream.
    pub(in crate::group) fn oldest(&self) -> Vec<Work> {
        self.kept().streams.iter().filter_map(|line| line.works.front().cloned()).collect()
    }

    /// The oldest work of every stream that is not done. Who enqueues meanwhile does not wait for the driver's answers,
    /// unless some are done.
    pub(in crate::group) fn settle(&self) -> Vec<Work> {
        let (done, mut open): (Vec<_>, Vec<_>) =
            self.oldest().into_iter().partition(|work| work.is_done().unwrap_or(false));
        let is_done = |front: &Work| done.iter().any(|work| work.key() == front.key());
        let Kept { streams, blanks } = &mut *self.kept();
        // Of one work that is done there is no more to say.
        for line in
            streams.iter_mut().filter(|line| line.works.len() > 1 && line.works.front().is_some_and(is_done))
        {
            line.drop_done(blanks);
            open.extend(line.works.front().filter(|front| !front.is_done().unwrap_or(false)).cloned());
        }
        open
    }

    /// Whether all works are done.
    pub(in crate::group) fn is_done(&self) -> bool {
        self.all().iter().all(|work| work.is_done().unwrap_or(false))
    }

    /// The last works of every stream: when they are done, all are.
    pub(in crate::group) fn all(&self) -> Vec<Work> {
        self.kept().streams.iter().flat_map(|line| line.tail().cloned()).collect()
    }
}

impl Line {
    fn tail(&self) -> impl Iterator<Item = &Work> {
        self.works.iter().rev().take(Outstanding::TAIL)
    }

    /// Lets go of the oldest works, a stride at a time, with one query for each and one more: a query costs as much as
    /// ten event records.
    #[cold]
    fn drop_oldest(&mut self, blanks: &mut Vec<Blank>) {
        const STRIDE: usize = Outstanding::STRIDE;
        while let Some(last) = self.works.get(STRIDE - 1) {
            let done = last.is_done().unwrap_or(false);
            if !done && self.works.len() < Outstanding::KEPT {
                return;
            }
            if done {
                self.tell_done(STRIDE);
            }
            self.drop_first(STRIDE, blanks);
        }
    }

    /// Tells the recorder which works are done, and lets go of them, but for the last; whether that is done too.
    fn drop_done(&mut self, blanks: &mut Vec<Blank>) -> bool {
        // What the driver does not answer for is not known to be done.
        let done = |work: &Work| work.is_done().unwrap_or(false);
        let count = match self.works.back() {
            Some(last) if done(last) && self.tail().all(done) => self.works.len(),
            _ => self.works.partition_point(done),
        };
        let all = self.works.len();
        self.tell_done(count);
        self.drop_first(count.min(all.saturating_sub(1)), blanks);
        count == all
    }

    /// Tells the recorder that the first `count` are done, at one moment.
    fn tell_done(&self, count: usize) {
        let now = ticks();
        self.works.range(..count).for_each(|work| work.tell_done(|| now));
    }

    fn drop_first(&mut self, count: usize, blanks: &mut Vec<Blank>) {
        let room = Outstanding::KEPT.saturating_sub(blanks.len());
        blanks.extend(self.works.drain(..count).filter_map(Blank::again).take(room));
    }
}

impl Look for Outstanding {
    fn look(&self) {
        let Kept { streams, blanks } = &mut *self.kept();
        for line in streams {
            line.drop_done(blanks);
            let _ = line.works.iter().all(Work::tell_started);
        }
    }
}

#[cfg(test)]
mod tests {
    use rusty_fork::rusty_fork_test;

    use super::Outstanding;
    use crate::end_to_end::embedded::common::{far, hold, machine, soon};

    rusty_fork_test! {
        #[test]
        fn streams_that_come_and_go_leave_nothing_and_open_work_stays() {
            let machine = machine(1);
            machine.ranks(1, |rank| {
                let group = rank.world();
                let held = rank.stream();
                let open = hold(&held);
                let late = group.launched(&held).unwrap();
                for _ in 0..5 * Outstanding::STREAMS {
                    group.launched(&rank.stream()).unwrap().wait_timeout(far()).unwrap();
                }
                let streams = group.outstanding.kept().streams.len();
                assert!(streams <= Outstanding::STREAMS, "{streams} streams");
                group.quiesce(soon()).unwrap_err();
                drop(open);
                late.wait_timeout(far()).unwrap();
                group.quiesce(far()).unwrap();
                group.destroy(far()).unwrap();
            });
            machine.world.finish().unwrap();
        }
    }
}

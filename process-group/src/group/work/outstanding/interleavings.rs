//! Model checks: threads launch works on one stream, while other threads query their completion.

use std::{convert::Infallible, sync::Arc};

use super::{Interval, Outstanding, Tracked};
use crate::{
    record::Ring,
    sync::{
        atomic::{AtomicUsize, Ordering},
        model::{check, thread},
    },
};

/// A stream: the number of recorded events, and the number of events that it has passed.
struct Stream {
    recorded: AtomicUsize,
    passed: AtomicUsize,
}

#[derive(Clone)]
struct FakeWork {
    stream: Arc<Stream>,
    /// The index of the work's event in its stream.
    place: usize,
    interval: Interval,
}

impl Tracked for FakeWork {
    type Stream = ();
    type Blank = ();

    fn stream(&self) {}

    fn interval(&self) -> Interval {
        self.interval
    }

    fn set_recorded(&mut self, recorded: u64) {
        self.interval.recorded = recorded;
    }

    fn is_known_done(&self) -> bool {
        self.place < self.stream.passed.load(Ordering::Relaxed)
    }

    fn tell_done(&self, _now: u64) {
        let passed = self.stream.passed.load(Ordering::Relaxed);
        assert!(self.place < passed, "{} is told done, but the stream has passed {passed}", self.place);
    }

    fn recycle(self) -> Option<()> {
        None
    }
}

/// A group that uses one stream.
#[derive(Clone)]
struct Group {
    stream: Arc<Stream>,
    outstanding: Arc<Outstanding<FakeWork>>,
}

impl Group {
    fn new() -> Self {
        let stream = Stream { recorded: AtomicUsize::new(0), passed: AtomicUsize::new(0) };
        let outstanding = Outstanding::new(&Arc::new(Ring::new(1)));
        Self { stream: Arc::new(stream), outstanding: Arc::new(outstanding) }
    }

    fn launch(&self) {
        let Ok((begun, ())) = self.outstanding.begin(|| Ok::<_, Infallible>(()), |_| ());
        let place = self.stream.recorded.fetch_add(1, Ordering::Relaxed);
        let interval = Interval { begun, recorded: 0 };
        self.outstanding.put(FakeWork { stream: self.stream.clone(), place, interval });
    }

    fn pass(&self, passed: usize) {
        self.stream.passed.store(passed, Ordering::Relaxed);
    }

    /// Makes the stream pass all but the last `open` of the `launched` events, and checks that all queries
    /// agree with that. Called when all threads have ended.
    fn judge(&self, launched: usize, open: usize) {
        let passed = launched - open;
        self.pass(passed);
        assert_eq!(self.outstanding.is_done(), open == 0, "of {launched} works {open} are not done");
        let left = self.outstanding.sweep(self.outstanding.first((), usize::MAX));
        let mut places: Vec<_> = left.iter().map(|work| work.place).collect();
        places.sort_unstable();
        assert!(places.into_iter().eq(passed..launched), "works that are not done are kept");
        self.pass(launched);
        assert!(self.outstanding.is_done() && self.outstanding.settle().is_empty());
        assert_eq!(self.outstanding.first((), usize::MAX).len(), 1, "the last one stays");
    }
}

/// Starts one thread for each element of `calls`. The thread launches that many works.
fn launching(group: &Group, calls: &[usize]) -> Vec<thread::JoinHandle<()>> {
    let launch = |calls: usize| {
        let group = group.clone();
        thread::spawn(move || (0..calls).for_each(|_| group.launch()))
    };
    calls.iter().map(|calls| launch(*calls)).collect()
}

#[test]
fn work_is_not_done_before_its_event_is() {
    for (calls, open) in [(&[2, 1][..], 1), (&[2, 2], 1), (&[1, 1], 2), (&[1, 1, 1], 1)] {
        check(move || {
            let group = Group::new();
            for thread in launching(&group, calls) {
                thread.join().unwrap();
            }
            group.judge(calls.iter().sum(), open);
        });
    }
}

#[test]
fn concurrent_queries_remove_no_incomplete_work() {
    for open in [0, 1] {
        check(move || {
            let group = Group::new();
            group.launch();
            let threads = launching(&group, &[1, 1]);
            let looking = {
                let group = group.clone();
                thread::spawn(move || {
                    group.pass(1);
                    group.outstanding.settle();
                })
            };
            threads.into_iter().chain([looking]).for_each(|thread| thread.join().unwrap());
            group.judge(3, open);
        });
    }
}

/// Not run under loom, which cannot explore this many threads exhaustively.
#[cfg(not(loom))]
#[test]
fn many_threads_launch_and_look() {
    check(|| {
        let group = Group::new();
        let threads = launching(&group, &[2; 6]);
        let looking = {
            let group = group.clone();
            thread::spawn(move || {
                for passed in 1..5 {
                    // The stream passes only events that are recorded.
                    if passed <= group.stream.recorded.load(Ordering::Relaxed) {
                        group.pass(passed);
                    }
                    group.outstanding.settle();
                }
            })
        };
        threads.into_iter().chain([looking]).for_each(|thread| thread.join().unwrap());
        group.judge(12, 3);
    });
}

/// Two threads query at the same time, like the watchdog and a thread that writes a dump.
#[test]
fn two_threads_remove_the_same_works_once() {
    check(|| {
        let group = Group::new();
        (0..3).for_each(|_| group.launch());
        group.pass(2);
        let look = |group: Group| thread::spawn(move || drop(group.outstanding.settle()));
        let threads = launching(&group, &[1]);
        let looking = [look(group.clone()), look(group.clone())];
        threads.into_iter().chain(looking).for_each(|thread| thread.join().unwrap());
        group.judge(4, 2);
    });
}

//! Queues between actors.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use gpu_sim::sched::{self, Signal};

/// A queue between two actors of the seeded scheduler.
#[derive(Debug)]
pub(super) struct Queue<T> {
    state: Mutex<(VecDeque<T>, bool)>,
    signal: Signal,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { state: Mutex::new((VecDeque::new(), false)), signal: Signal::new() }
    }
}

impl<T> Queue<T> {
    fn state(&self) -> MutexGuard<'_, (VecDeque<T>, bool)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, item: T) {
        self.state().0.push_back(item);
        self.signal.notify();
    }

    /// Closes the queue: no more items will come.
    pub(super) fn close(&self) {
        self.state().1 = true;
        self.signal.notify();
    }

    /// Returns the next item. Returns `None` once the queue is closed and empty, or if no item came by `deadline`, a
    /// time of the scheduler's clock. `what` names the thing waited for in error messages. Panics if the scheduler ends
    /// the wait for another reason, such as a deadlock.
    pub(super) fn take(&self, what: &str, deadline: Option<Duration>) -> Option<T> {
        let waited = sched::wait(
            &self.signal,
            || what.to_owned(),
            deadline,
            || {
                let (items, closed) = &*self.state();
                *closed || !items.is_empty()
            },
        );
        match waited {
            Ok(()) | Err(sched::WaitError::TimedOut { .. }) => self.state().0.pop_front(),
            Err(error) => panic!("{error}"),
        }
    }
}

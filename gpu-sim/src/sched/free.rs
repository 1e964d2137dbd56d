//! The free mode: threads, futexes, the real clock.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Actor, Run, Signal, WaitError, Waiting, local, panic_text, pool, whoami};

#[derive(Debug)]
pub(crate) struct Free {
    start: Instant,
    stopping: AtomicBool,
    next: AtomicU64,
    /// Every wait that has parked. An entry is removed before its wait returns, so its signal is alive.
    parked: Mutex<BTreeMap<u64, Parked>>,
}

#[derive(Debug)]
struct Parked {
    waiting: Waiting,
    signal: *const Signal,
}

// SAFETY: `signal` is only used under the lock of `Free::parked`, while the wait that owns the reference is in
// progress; `Signal` itself is `Sync`.
unsafe impl Send for Parked {}

/// Removes a wait from [`Free::parked`] on drop, also if the condition panics.
struct Entry<'a> {
    free: &'a Free,
    id: u64,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.free.parked().remove(&self.id);
    }
}

impl Free {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            stopping: AtomicBool::new(false),
            next: AtomicU64::new(0),
            parked: Mutex::default(),
        }
    }

    fn parked(&self) -> MutexGuard<'_, BTreeMap<u64, Parked>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    pub(super) fn wait(
        &self,
        signal: &Signal,
        reason: String,
        deadline: Option<Duration>,
        condition: &mut dyn FnMut() -> bool,
    ) -> Result<(), WaitError> {
        let id = self.next.fetch_add(1, SeqCst);
        let waiting = Waiting { who: whoami(), what: reason.clone() };
        self.parked().insert(id, Parked { waiting, signal });
        let _entry = Entry { free: self, id };
        let mut met = false;
        let in_time = {
            let _left = pool::leave();
            let left = || deadline.map(|d| d.saturating_sub(self.now()));
            signal.park(left, || {
                met = condition();
                met || self.stopping.load(SeqCst)
            })
        };
        match (met, in_time, deadline) {
            (true, ..) => Ok(()),
            (false, false, Some(deadline)) => Err(WaitError::TimedOut { reason, deadline }),
            _ => Err(WaitError::Stopped { reason }),
        }
    }

    pub(super) fn waiting(&self) -> Vec<Waiting> {
        self.parked().values().map(|p| p.waiting.clone()).collect()
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, SeqCst);
        for parked in self.parked().values() {
            // SAFETY: the entry is there, so the wait that borrowed the signal has not returned, and it cannot
            // remove the entry while we hold the lock.
            unsafe { (*parked.signal).notify() };
        }
    }

    pub(super) fn run<T: Send + 'static>(&self, actors: Vec<Actor<T>>) -> Run<T> {
        let threads: Vec<_> = actors
            .into_iter()
            .map(|(name, body)| {
                std::thread::Builder::new().name(name.clone()).spawn(move || {
                    local::enter(0, Some(name.into()));
                    catch_unwind(AssertUnwindSafe(body)).map_err(|p| panic_text(&*p))
                })
            })
            .collect();
        let results = threads
            .into_iter()
            .map(|thread| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|p| Err(panic_text(&*p))),
                Err(error) => Err(format!("the actor's thread could not be started: {error}")),
            })
            .collect();
        Run { results, deadlock: None }
    }
}

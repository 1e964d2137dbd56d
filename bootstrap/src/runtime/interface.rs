//! The interface of a runtime, and the events that its threads wait for.

use std::{
    fmt, io,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// A count of notifications, which threads use to wait for a condition.
///
/// Read [`count`](Event::count), then check the condition, then call [`wait`](super::wait) with that count. The wait
/// then returns at once if a notification came after the count was read. Code that changes the data of the condition
/// calls [`notify_all`](Event::notify_all) afterwards.
#[derive(Debug)]
pub struct Event {
    name: &'static str,
    count: Mutex<u64>,
    changed: Condvar,
}

impl Event {
    /// Makes an event. `name` completes the sentence "rank 0 waits for …" in reports of a simulated runtime.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name, count: Mutex::new(0), changed: Condvar::new() }
    }

    /// Returns the name given to [`new`](Event::new).
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the number of notifications so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        *self.lock()
    }

    /// Adds 1 to the count, and wakes all waiting threads.
    pub fn notify_all(&self) {
        *self.lock() += 1;
        self.changed.notify_all();
    }

    /// Blocks the calling thread of the operating system until the count differs from `seen`, for at most `limit`. A
    /// simulated runtime must not call this, because it would block all ranks.
    pub(super) fn park(&self, seen: u64, limit: Duration) {
        let waited = self.changed.wait_timeout_while(self.lock(), limit, |count| *count == seen);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A clock, waits and threads. Every thread has a current runtime; see [`enter`](super::enter).
pub trait Runtime: fmt::Debug + Send + Sync {
    /// Returns the time since an arbitrary origin. It never decreases. Exception: `Seeded` changes its clock when its
    /// thread starts or ends a seeded world.
    fn now(&self) -> Duration;

    /// Blocks the current thread, or the current rank of a seeded world, for this time.
    fn sleep(&self, time: Duration);

    /// Blocks the current thread, or the current rank of a seeded world, until the count of `event` differs from
    /// `seen`, for at most `limit`. With [`Duration::MAX`] there is no limit.
    ///
    /// Returns true after a notification, and also after the limit. Returns false, without blocking, only if there is
    /// no limit and the caller is a rank of a seeded world that unwinds from a panic, and so cannot block. The caller
    /// must then stop waiting.
    fn wait(&self, event: &Event, seen: u64, limit: Duration) -> bool;

    /// Starts a thread with this name that runs `body`, and detaches it. The implementation makes this runtime the
    /// current one in `body`. Exception: on a thread that runs no ranks of a seeded world, `Seeded` starts a thread of
    /// [`Standard`](super::Standard).
    ///
    /// # Errors
    /// Those of [`Standard`](super::Standard): the operating system refuses another thread, or `name` contains a zero
    /// byte. In a seeded world there are none.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()>;

    /// Lets a simulated runtime run another thread first. Its scheduler records `label` in the history of the run. The
    /// default does nothing, because the operating system can switch between real threads at any point.
    fn yield_point(&self, label: &'static str) {
        let _ = label;
    }
}

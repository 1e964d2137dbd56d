//! The interface of a runtime, and the events that its threads wait for.

use std::{
    fmt, io,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Something that threads wait for: a count of notifications.
///
/// Read [`count`](Event::count), then check the condition, then [`wait`](super::wait) with that count. So a
/// notification between the check and the wait is not missed. Code that changes the data of the condition calls
/// [`notify_all`](Event::notify_all) afterwards.
#[derive(Debug)]
pub struct Event {
    name: &'static str,
    count: Mutex<u64>,
    changed: Condvar,
}

impl Event {
    /// Makes an event. `name` completes the sentence "… waits for", in reports of a simulated runtime.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name, count: Mutex::new(0), changed: Condvar::new() }
    }

    /// Returns the name.
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

    /// Blocks the calling thread of the operating system until the count differs from `seen`, for at most `limit`.
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
    /// Returns the time since an arbitrary origin. It never decreases.
    fn now(&self) -> Duration;

    /// Blocks the current thread for this time.
    fn sleep(&self, time: Duration);

    /// Blocks the current thread until the count of `event` differs from `seen`, for at most `limit`. With
    /// [`Duration::MAX`] there is no limit.
    ///
    /// Returns true after a notification, and after the limit. Returns false, at once, only if there is no limit and
    /// the thread cannot block: a rank of a seeded world that unwinds from a panic. The caller must then give up.
    fn wait(&self, event: &Event, seen: u64, limit: Duration) -> bool;

    /// Starts a thread that runs `body`. The implementation makes this runtime the current one in `body`. Exception:
    /// outside a seeded world, `Seeded` starts a thread of [`Standard`](super::Standard).
    ///
    /// # Errors
    /// The operating system refuses another thread, or `name` contains a zero byte.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()>;

    /// Lets a simulated runtime run another thread first. Its scheduler records `label` in the history of the run.
    /// Real threads run side by side anyway, so the default does nothing.
    fn yield_point(&self, label: &'static str) {
        let _ = label;
    }
}

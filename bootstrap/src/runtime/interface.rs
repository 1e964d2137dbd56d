//! The interface of a runtime, and the events that its threads wait for.

use std::{
    fmt, io,
    net::SocketAddr,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{
    sockets::{ClientSocket, ServerSockets},
    system_sockets,
};
use crate::random;

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
    /// simulated runtime must not call this on the thread of its ranks, because it would block all of them.
    pub(super) fn park(&self, seen: u64, limit: Duration) {
        let waited = self.changed.wait_timeout_while(self.lock(), limit, |count| *count == seen);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Drops `guard`, which must be a guard of `mutex`, and blocks until a notification, for at most `limit`. Then
    /// locks `mutex` again. [`Duration::MAX`] means no limit. The wait may also end early, so check the condition
    /// again. This function replaces [`Condvar::wait_timeout`] on the current runtime.
    ///
    /// No notification is missed if the data of the condition is changed under the lock, and
    /// [`notify_all`](Event::notify_all) is called afterwards. A rank of a seeded world that unwinds from a panic
    /// cannot block, so for such a rank this function returns at once.
    pub fn wait_unlocked<'a, T>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> MutexGuard<'a, T> {
        let seen = self.count();
        drop(guard);
        super::wait(self, seen, limit);
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A clock, waits, threads and TCP sockets. Every thread has a current runtime; see [`enter`](super::enter).
pub trait Runtime: fmt::Debug + Send + Sync {
    /// Returns the time since an arbitrary origin. It never decreases. Exception: while the calling thread runs a
    /// seeded world, `Seeded` returns the virtual time of that world, and before and afterwards the time of the
    /// operating system. Do not compare times before, during and after a world.
    fn now(&self) -> Duration;

    /// Blocks the current thread, or the current rank of a seeded world, for this time. For a rank that unwinds
    /// already, returns at once, and the clock advances by `time`.
    fn sleep(&self, time: Duration);

    /// Blocks the current thread, or the current rank of a seeded world, until the count of `event` differs from
    /// `seen`, for at most `limit`. With [`Duration::MAX`] there is no limit.
    ///
    /// Returns true if the count differs or the limit has passed. Returns false in one case only: a rank of a seeded
    /// world waits without a limit while it unwinds from a panic. Such a rank cannot block, so this returns at once,
    /// and the caller must stop waiting.
    fn wait(&self, event: &Event, seen: u64, limit: Duration) -> bool;

    /// Starts a thread with this name that runs `body`, and detaches it. This runtime is the current one in `body`.
    /// Exception: outside of a seeded world, `Seeded` starts a thread of the operating system, whose current runtime is
    /// [`Standard`](super::Standard). In a seeded world, `Seeded` starts a coroutine of the world.
    ///
    /// # Errors
    /// For a thread of the operating system: the operating system refuses another thread, or `name` contains a zero
    /// byte. For a coroutine: none.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()>;

    /// Opens a TCP connection to `address`, within `limit`. The default implementation opens a socket of the operating
    /// system.
    ///
    /// # Errors
    /// [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) if nothing listens there, and the other errors of the
    /// operating system.
    fn connect(&self, address: SocketAddr, limit: Duration) -> io::Result<Box<dyn ClientSocket>> {
        system_sockets::connect(address, limit)
    }

    /// Listens for TCP connections at `address`. Port 0 means a free port. The default implementation opens a socket of
    /// the operating system.
    ///
    /// # Errors
    /// [`AddrInUse`](io::ErrorKind::AddrInUse) if another socket listens there, and the other errors of the operating
    /// system.
    fn listen(&self, address: SocketAddr) -> io::Result<Box<dyn ServerSockets>> {
        system_sockets::listen(address)
    }

    /// Returns the number of the process of the calling thread. Each rank of a seeded world has its own, and so has
    /// each thread that a rank starts.
    fn process(&self) -> u32 {
        std::process::id()
    }

    /// Fills at most 256 bytes with random numbers. The default implementation takes them from the operating system.
    /// `Seeded` computes them, so that equal runs have equal numbers.
    ///
    /// # Errors
    /// Those of the operating system.
    fn fill_random(&self, bytes: &mut [u8]) -> io::Result<()> {
        random::fill(bytes)
    }

    /// Lets a simulated runtime run another thread before the calling thread continues. The scheduler of that runtime
    /// records `label` in the history of the run. The default implementation does nothing, because the operating system
    /// can switch between real threads at any point.
    fn yield_point(&self, label: &'static str) {
        let _ = label;
    }
}

//! The current runtime of a thread, and the functions that call it.

use std::{cell::RefCell, io, marker::PhantomData, net::SocketAddr, ops::Add, sync::Arc, time::Duration};

use super::{
    interface::{Event, Runtime},
    sockets::{ClientSocket, ServerSockets},
    standard::Standard,
};

thread_local! {
    /// The current runtime of this thread. `None` means [`Standard`].
    static CURRENT: RefCell<Option<Arc<dyn Runtime>>> = const { RefCell::new(None) };
}

/// Makes `runtime` the current one of this thread until the returned guard is dropped. Drop the guards of nested calls
/// in reverse order.
///
/// A thread that [`spawn`](super::spawn) starts has the runtime of the thread that calls `spawn`. Exception: if that
/// runtime is the seeded one, and the calling thread runs no ranks of a seeded world, the new thread has [`Standard`].
/// Threads that the standard library starts have [`Standard`].
///
/// The ranks of a seeded world share one thread, and therefore one current runtime. Call this function before the world
/// is started, and not in each rank.
pub fn enter(runtime: Arc<dyn Runtime>) -> Entered {
    Entered { before: CURRENT.replace(Some(runtime)), _not_send: PhantomData }
}

/// Restores the previous runtime of the thread when it is dropped.
#[derive(Debug)]
#[must_use = "the runtime is left when this value is dropped"]
pub struct Entered {
    /// The previous runtime. `None` means [`Standard`].
    before: Option<Arc<dyn Runtime>>,
    /// Keeps the guard on the thread that has called [`enter`].
    _not_send: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.before.take());
    }
}

/// Calls `f` with the current runtime. The thread-local variable is not borrowed during the call, so `f` may wait while
/// other ranks on this thread use the variable.
pub(super) fn with<R>(f: impl FnOnce(&dyn Runtime) -> R) -> R {
    // `try_with` fails if the destructor of another thread-local variable calls this after `CURRENT` was destroyed.
    match CURRENT.try_with(|current| current.borrow().clone()) {
        Ok(Some(runtime)) => f(&*runtime),
        _ => f(&Standard),
    }
}

/// Blocks the current thread, or the current rank of a seeded world, for this time on the clock of its runtime.
pub fn sleep(time: Duration) {
    with(|runtime| runtime.sleep(time));
}

/// Blocks until the count of `event` differs from `seen`, for at most `limit`. [`Duration::MAX`] means no limit.
///
/// Returns true if the count differs or the limit has passed. Returns false in one case only: a rank of a seeded world
/// waits without a limit while it unwinds from a panic. Such a rank cannot block, so this returns at once, and the
/// caller must stop waiting.
pub fn wait(event: &Event, seen: u64, limit: Duration) -> bool {
    with(|runtime| runtime.wait(event, seen, limit))
}

/// Opens a TCP connection on the current runtime, within `limit`.
///
/// # Errors
/// Those of [`Runtime::connect`].
pub fn connect(address: SocketAddr, limit: Duration) -> io::Result<Box<dyn ClientSocket>> {
    with(|runtime| runtime.connect(address, limit))
}

/// Listens for TCP connections at `address` on the current runtime.
///
/// # Errors
/// Those of [`Runtime::listen`].
pub fn listen(address: SocketAddr) -> io::Result<Box<dyn ServerSockets>> {
    with(|runtime| runtime.listen(address))
}

/// Returns the process id of the calling thread. In a seeded world, each rank has an id of its own, as if it were a
/// process, and so does each thread that a rank starts. So a thread that a rank has started does not get the rank's id.
#[must_use]
pub fn process() -> u32 {
    with(|runtime| runtime.process())
}

/// Returns `N` random bytes of the current runtime, at most 256. In a seeded world they are predictable, so do not use
/// them for secrets there.
///
/// # Errors
/// Those of [`Runtime::fill_random`].
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    with(|runtime| runtime.fill_random(&mut bytes))?;
    Ok(bytes)
}

/// In a seeded world, lets the scheduler run another rank first, and records `label` in the history of the run. Does
/// nothing on [`Standard`], or if the caller unwinds from a panic.
pub fn yield_point(label: &'static str) {
    with(|runtime| runtime.yield_point(label));
}

/// A time on the clock of a runtime. A comparison of times of different runtimes has no meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant {
    since_origin: Duration,
}

impl Instant {
    /// Returns the current time of the current runtime.
    #[must_use]
    pub fn now() -> Self {
        Self { since_origin: with(|runtime| runtime.now()) }
    }

    /// Returns the time since this instant, or zero if it is in the future.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Self::now().saturating_duration_since(*self)
    }

    /// Returns the time from `earlier` to this instant, or zero if `earlier` is later.
    #[must_use]
    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.since_origin.saturating_sub(earlier.since_origin)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self { since_origin: self.since_origin.saturating_add(time) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    };

    use super::*;

    /// A runtime whose clock advances only in `sleep` and `wait`.
    #[derive(Debug, Default)]
    struct Manual(AtomicU64);

    impl Runtime for Manual {
        fn now(&self) -> Duration {
            Duration::from_nanos(self.0.load(SeqCst))
        }

        fn sleep(&self, time: Duration) {
            self.0.fetch_add(u64::try_from(time.as_nanos()).unwrap(), SeqCst);
        }

        fn wait(&self, _: &Event, _: u64, limit: Duration) -> bool {
            self.sleep(limit);
            true
        }

        fn spawn(&self, _: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
            body();
            Ok(())
        }
    }

    #[test]
    fn waits_use_the_current_runtime_until_the_guard_is_dropped() {
        let real = Instant::now();
        {
            let _manual = enter(Arc::new(Manual::default()));
            let begun = Instant::now();
            assert_eq!(begun, Instant { since_origin: Duration::ZERO });
            sleep(Duration::from_secs(3600));
            assert!(wait(&Event::new("nothing"), 0, Duration::from_secs(60)));
            assert_eq!(begun.elapsed(), Duration::from_secs(3660));
            {
                let _inner = enter(Arc::new(Standard));
                assert!(Instant::now() >= real);
            }
            assert_eq!(begun.elapsed(), Duration::from_secs(3660));
        }
        assert!(real.elapsed() < Duration::from_secs(3600));
    }

    #[test]
    fn a_wait_without_the_lock_ends_with_the_notification_or_at_the_limit() {
        let ready = Arc::new((Mutex::new(false), Event::new("a change")));
        let other = ready.clone();
        let thread = std::thread::spawn(move || {
            *other.0.lock().unwrap() = true;
            other.1.notify_all();
        });
        let mut guard = ready.0.lock().unwrap();
        while !*guard {
            guard = ready.1.wait_unlocked(&ready.0, guard, Duration::MAX);
        }
        assert!(*ready.1.wait_unlocked(&ready.0, guard, Duration::from_millis(1)));
        thread.join().unwrap();
        assert_eq!(process(), std::process::id());
    }

    #[test]
    fn a_notification_before_the_wait_ends_it() {
        let event = Event::new("a notification");
        let seen = event.count();
        event.notify_all();
        assert!(wait(&event, seen, Duration::MAX));
        assert!(wait(&event, event.count(), Duration::ZERO));
    }
}

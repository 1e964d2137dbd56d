//! The runtime of a seeded world.

use std::{
    io,
    panic::resume_unwind,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use gpu_sim::sched::{self, Signal, WaitError};

use super::{
    interface::{Event, Runtime},
    standard::Standard,
};

/// Runs on the seeded scheduler of `gpu_sim::sched`: ranks and threads are coroutines on one thread, the seed chooses
/// the one that runs, and the clock is virtual. On a thread without a seeded world it behaves as [`Standard`].
///
/// Enter it on the thread that starts the world, before the world is started. It is then left after the world's end.
///
/// ```
/// use bootstrap::{runtime::{self, Seeded}, store::{Deadline, HashStore, Store, StoreError}};
/// use gpu_sim::World;
/// use std::{sync::Arc, time::Duration};
///
/// let _runtime = runtime::enter(Arc::new(Seeded::new()));
/// let world = World::builder().seeded(7).start()?;
/// let store = HashStore::new();
/// let rank = |rank: usize| -> (String, Box<dyn FnOnce() -> Result<(), StoreError> + Send>) {
///     let store = store.clone();
///     let body = move || {
///         store.set(&format!("rank {rank}"), b"")?;
///         // An hour on the virtual clock.
///         store.wait(&["rank 0", "rank 1", "rank 2"], Deadline::after(Duration::from_secs(3600)))
///     };
///     (format!("rank {rank}"), Box::new(body))
/// };
/// for result in world.run_actors(vec![rank(0), rank(1)])? {
///     assert!(matches!(result, Err(StoreError::Timeout { keys, .. }) if keys == ["rank 2"]));
/// }
/// world.finish()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A wait unwinds, like a panic but without a message, if the world ends or if no rank can go on (a deadlock, which
/// [`run_actors`](gpu_sim::World::run_actors) reports).
///
/// The scheduler cannot suspend a rank that unwinds from a panic. If a destructor waits then, the clock advances by
/// the limit of the wait, and no other rank runs.
#[derive(Debug, Default)]
pub struct Seeded {
    /// The sum of the waits of ranks that were unwinding, in nanoseconds. The clock is the world's clock plus this.
    skipped: AtomicU64,
}

impl Seeded {
    /// Makes the runtime. Its clock starts with the next world.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends a wait that the scheduler has refused. Returns false if there is no limit.
    fn end(&self, error: &WaitError, limit: Duration) -> bool {
        if matches!(error, WaitError::TimedOut { .. }) {
            return true;
        }
        if !thread::panicking() {
            resume_unwind(Box::new(error.to_string()));
        }
        if limit != Duration::MAX {
            self.skipped.fetch_add(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX / 2), Relaxed);
        }
        limit != Duration::MAX
    }
}

impl Runtime for Seeded {
    fn now(&self) -> Duration {
        if !sched::is_seeded() {
            return Standard.now();
        }
        sched::now() + Duration::from_nanos(self.skipped.load(Relaxed))
    }

    fn sleep(&self, time: Duration) {
        if !sched::is_seeded() {
            return Standard.sleep(time);
        }
        if let Err(error) = sched::sleep(time) {
            self.end(&error, time);
        }
    }

    fn wait(&self, event: &Event, seen: u64, limit: Duration) -> bool {
        if !sched::is_seeded() {
            return Standard.wait(event, seen, limit);
        }
        // The scheduler checks the conditions of all waits before each step, so that nobody notifies this signal.
        let signal = Signal::new();
        let until = (limit != Duration::MAX).then(|| sched::now().saturating_add(limit));
        let waited = sched::wait(&signal, || event.name().to_owned(), until, || event.count() != seen);
        match waited {
            Ok(()) => true,
            Err(error) => self.end(&error, limit),
        }
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        match sched::spawn(name, body) {
            Ok(()) => Ok(()),
            Err(body) => Standard.spawn(name, body),
        }
    }

    fn yield_point(&self, label: &'static str) {
        sched::point(label);
    }
}

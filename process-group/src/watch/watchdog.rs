//! The watchdog: one thread per process that checks the work and the communicators of all groups.
//!
//! It queries the oldest work of each stream, and the asynchronous error of every communicator. It never waits, makes
//! no call that another rank has to join, holds no lock during a query, and sleeps if there is no group.

use std::{
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use crate::group::{GroupHealth, WorkMonitor};

/// The groups of this process.
#[derive(Default)]
pub(crate) struct Watchdog {
    groups: Mutex<Vec<Weak<GroupHealth>>>,
    changed: Condvar,
    /// True once its thread is started.
    started: Mutex<bool>,
}

static WATCHDOG: OnceLock<Arc<Watchdog>> = OnceLock::new();

impl Watchdog {
    /// The shortest pause between two checks, whatever the settings are.
    const SHORTEST: Duration = Duration::from_millis(1);
    /// The longest pause of groups that set none.
    pub(crate) const PAUSE: Duration = Duration::from_millis(100);

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<GroupHealth>>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a group until the [guard](Guard) is dropped.
    ///
    /// # Errors
    /// The operating system did not start a thread.
    pub(crate) fn add(health: &Arc<GroupHealth>) -> io::Result<Guard> {
        let watchdog = WATCHDOG.get_or_init(Arc::default);
        watchdog.start()?;
        watchdog.lock().push(Arc::downgrade(health));
        watchdog.changed.notify_all();
        Ok(Guard(Arc::downgrade(health)))
    }

    /// Starts the thread, unless it runs. After a failure, the next group tries again.
    fn start(self: &Arc<Self>) -> io::Result<()> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if !*started {
            let watchdog = self.clone();
            thread::Builder::new().name("watchdog".into()).spawn(move || watchdog.work())?;
            *started = true;
        }
        Ok(())
    }

    fn work(&self) {
        loop {
            let mut groups = self.lock();
            while groups.is_empty() {
                groups = self.changed.wait(groups).unwrap_or_else(PoisonError::into_inner);
            }
            let watched = groups.clone();
            drop(groups);
            let now = Instant::now();
            let look = |health: Arc<GroupHealth>| {
                health.look(now);
                health.monitor().map_or(Self::PAUSE, WorkMonitor::pause)
            };
            let pauses = watched.iter().filter_map(Weak::upgrade).map(look);
            let pause = pauses.min().unwrap_or(Self::PAUSE).max(Self::SHORTEST);
            // A new group may have a shorter pause.
            drop(self.changed.wait_timeout(self.lock(), pause));
        }
    }
}

/// A watched group, until this is dropped. A check in progress may still complete.
pub(crate) struct Guard(Weak<GroupHealth>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(watchdog) = WATCHDOG.get() {
            watchdog.lock().retain(|health| !Weak::ptr_eq(health, &self.0));
        }
    }
}

//! The watchdog: one thread per process that checks the work and the communicators of all groups.
//!
//! The thread queries the oldest work of each stream, and the asynchronous error of every communicator. It never waits
//! for an operation, makes no collective calls, holds no lock during a query, and sleeps while there is no group.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use bootstrap::runtime::{self, Event, Instant};

use crate::group::{CHECK_INTERVAL, GroupHealth, WorkMonitor};

/// The watchdog's state: the groups of this process.
pub(crate) struct Watchdog {
    groups: Mutex<Vec<Weak<GroupHealth>>>,
    changed: Event,
    /// True while the watchdog thread runs.
    started: Mutex<bool>,
}

static WATCHDOG: Watchdog =
    Watchdog { groups: Mutex::new(Vec::new()), changed: Event::new("a group"), started: Mutex::new(false) };

impl Watchdog {
    /// Minimum pause between two checks, even if a group's settings ask for a shorter one.
    const SHORTEST: Duration = Duration::from_millis(1);

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<GroupHealth>>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a group until the [guard](Guard) is dropped.
    ///
    /// # Errors
    /// The I/O error, if the operating system did not start a thread.
    pub(crate) fn add(health: &Arc<GroupHealth>) -> io::Result<Guard> {
        WATCHDOG.start()?;
        WATCHDOG.lock().push(Arc::downgrade(health));
        WATCHDOG.changed.notify_all();
        Ok(Guard(Arc::downgrade(health)))
    }

    /// Starts the watchdog thread, unless it runs already. If that fails, the next added group tries again.
    fn start(&'static self) -> io::Result<()> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if !*started {
            runtime::spawn("watchdog", || self.work())?;
            *started = true;
        }
        Ok(())
    }

    fn work(&self) {
        let _ending = Ending(self);
        loop {
            let mut groups = self.lock();
            while groups.is_empty() {
                groups = self.changed.wait_unlocked(&self.groups, groups, Duration::MAX);
            }
            let watched = groups.clone();
            drop(groups);
            let now = Instant::now();
            let look = |health: Arc<GroupHealth>| {
                health.look(now);
                health.monitor().map_or(CHECK_INTERVAL, WorkMonitor::pause)
            };
            let pauses = watched.iter().filter_map(Weak::upgrade).map(look);
            let pause = pauses.min().unwrap_or(CHECK_INTERVAL).max(Self::SHORTEST);
            // A new group ends this pause, because its own pause may be shorter.
            drop(self.changed.wait_unlocked(&self.groups, self.lock(), pause));
        }
    }
}

/// Keeps a group watched until this guard is dropped. A check that is in progress then may still complete.
pub(crate) struct Guard(Weak<GroupHealth>);

impl Drop for Guard {
    fn drop(&mut self) {
        WATCHDOG.lock().retain(|health| !Weak::ptr_eq(health, &self.0));
    }
}

/// Marks the watchdog thread as ended when dropped. The thread ends only together with the seeded world (a simulation
/// of the runtime) in which it runs, and the next world starts it again.
struct Ending<'a>(&'a Watchdog);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        *self.0.started.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

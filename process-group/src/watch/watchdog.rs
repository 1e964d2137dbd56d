//! The watchdog: one thread per process that checks the work and the communicators of all groups.
//!
//! It queries the oldest work of each stream, and the asynchronous error of every communicator. It never waits, makes
//! no call that another rank has to join, holds no lock during a query, and sleeps if there is no group.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use bootstrap::runtime::{self, Event, Instant};

use crate::group::{GroupHealth, WorkMonitor};

/// The groups of this process.
pub(crate) struct Watchdog {
    groups: Mutex<Vec<Weak<GroupHealth>>>,
    changed: Event,
    /// True once its thread is started.
    started: Mutex<bool>,
}

static WATCHDOG: Watchdog =
    Watchdog { groups: Mutex::new(Vec::new()), changed: Event::new("a group"), started: Mutex::new(false) };

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
        WATCHDOG.start()?;
        WATCHDOG.lock().push(Arc::downgrade(health));
        WATCHDOG.changed.notify_all();
        Ok(Guard(Arc::downgrade(health)))
    }

    /// Starts the thread, unless it runs. After a failure, the next group tries again.
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
                health.monitor().map_or(Self::PAUSE, WorkMonitor::pause)
            };
            let pauses = watched.iter().filter_map(Weak::upgrade).map(look);
            let pause = pauses.min().unwrap_or(Self::PAUSE).max(Self::SHORTEST);
            // A new group may have a shorter pause.
            drop(self.changed.wait_unlocked(&self.groups, self.lock(), pause));
        }
    }
}

/// A watched group, until this is dropped. A check in progress may still complete.
pub(crate) struct Guard(Weak<GroupHealth>);

impl Drop for Guard {
    fn drop(&mut self) {
        WATCHDOG.lock().retain(|health| !Weak::ptr_eq(health, &self.0));
    }
}

/// The end of the watchdog. The thread ends only with the seeded world that it runs in; the next world starts it anew.
struct Ending<'a>(&'a Watchdog);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        *self.0.started.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

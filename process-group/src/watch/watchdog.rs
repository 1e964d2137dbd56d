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

use crate::group::{Duty, Vigil};

/// The groups of this process.
#[derive(Default)]
pub(crate) struct Watchdog {
    vigils: Mutex<Vec<Weak<Vigil>>>,
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

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Vigil>>> {
        self.vigils.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a group until the [guard](Guard) is dropped.
    ///
    /// # Errors
    /// The operating system did not start a thread.
    pub(crate) fn add(vigil: &Arc<Vigil>) -> io::Result<Guard> {
        let watchdog = WATCHDOG.get_or_init(Arc::default);
        watchdog.start()?;
        watchdog.lock().push(Arc::downgrade(vigil));
        watchdog.changed.notify_all();
        Ok(Guard(Arc::downgrade(vigil)))
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
            let mut vigils = self.lock();
            while vigils.is_empty() {
                vigils = self.changed.wait(vigils).unwrap_or_else(PoisonError::into_inner);
            }
            let watched = vigils.clone();
            drop(vigils);
            let now = Instant::now();
            let look = |vigil: Arc<Vigil>| {
                vigil.look(now);
                vigil.duty().map_or(Self::PAUSE, Duty::pause)
            };
            let pauses = watched.iter().filter_map(Weak::upgrade).map(look);
            let pause = pauses.min().unwrap_or(Self::PAUSE).max(Self::SHORTEST);
            // A new group may have a shorter pause.
            drop(self.changed.wait_timeout(self.lock(), pause));
        }
    }
}

/// A watched group, until this is dropped. A check in progress may still complete.
pub(crate) struct Guard(Weak<Vigil>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(watchdog) = WATCHDOG.get() {
            watchdog.lock().retain(|vigil| !Weak::ptr_eq(vigil, &self.0));
        }
    }
}

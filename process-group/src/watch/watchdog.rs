//! One thread a process that looks after the works and the communicators of all groups.
//!
//! It asks the oldest work of each stream, and every communicator for errors in the background; it waits for nobody, makes
//! no call that another rank has to join, holds no lock while it asks, and sleeps without a group.

use std::{
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use crate::group::Vigil;

/// The groups of this process.
#[derive(Default)]
pub(crate) struct Watchdog {
    vigils: Mutex<Vec<Weak<Vigil>>>,
    changed: Condvar,
    /// Whether its thread was started.
    started: Mutex<bool>,
}

static WATCHDOG: OnceLock<Arc<Watchdog>> = OnceLock::new();

impl Watchdog {
    /// Between two looks: not more often, whatever the deadlines are, and not less.
    const SHORTEST: Duration = Duration::from_millis(1);
    const LONGEST: Duration = Duration::from_millis(100);
    /// How much later than its deadline work is found, as a part of the time that it had.
    const SHARE: u32 = 16;

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Vigil>>> {
        self.vigils.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches over a group until it [lets go](Guard) of it.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub(crate) fn add(vigil: &Arc<Vigil>) -> io::Result<Guard> {
        let watchdog = WATCHDOG.get_or_init(Arc::default);
        watchdog.start()?;
        watchdog.lock().push(Arc::downgrade(vigil));
        watchdog.changed.notify_all();
        Ok(Guard(Arc::downgrade(vigil)))
    }

    /// Starts the thread, unless it runs: one that could not be had is tried again for the next group.
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
            let mut pause = Self::LONGEST;
            for vigil in watched.iter().filter_map(Weak::upgrade) {
                vigil.look(now);
                pause = vigil.duty().map_or(pause, |duty| pause.min(duty.work_timeout() / Self::SHARE));
            }
            // Not on the condition: a new group is looked at soon enough.
            thread::sleep(pause.max(Self::SHORTEST));
        }
    }
}

/// A group that is watched over, until this is dropped: a look that is under way ends by itself.
pub(crate) struct Guard(Weak<Vigil>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(watchdog) = WATCHDOG.get() {
            watchdog.lock().retain(|vigil| !Weak::ptr_eq(vigil, &self.0));
        }
    }
}

//! The wake-up signal of the heartbeat thread.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{Trouble, machine::Notices};

/// Wake-up signal of the heartbeat thread, with the notices for it.
#[derive(Default)]
pub(crate) struct WatchSignal {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    notices: Option<Notices>,
    /// Ranks to wake after the next exchange.
    wakes: Vec<usize>,
    /// True once the heartbeat thread has ended.
    gone: bool,
}

impl WatchSignal {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ring(&self, note: impl FnOnce(&mut Notices)) {
        note(self.lock().notices.get_or_insert_default());
        self.changed.notify_all();
    }

    /// Reports a trouble to all members.
    pub(crate) fn tell(&self, trouble: Trouble) {
        self.ring(|notices| notices.troubles.push(trouble));
    }

    /// Requests dumps from all ranks.
    pub(crate) fn alarm(&self) {
        self.ring(|notices| notices.alarm = true);
    }

    /// Makes the heartbeat thread exchange now.
    pub(crate) fn hurry(&self) {
        self.ring(|notices| notices.hurry = true);
    }

    /// Makes these ranks compare their calls with those of this rank now.
    pub(crate) fn compare(&self, ranks: &[usize]) {
        self.lock().wakes.extend(ranks);
        self.hurry();
    }

    /// Returns the ranks to wake after the next exchange.
    pub(super) fn take_wakes(&self) -> Vec<usize> {
        std::mem::take(&mut self.lock().wakes)
    }

    pub(super) fn wait(&self, until: Instant) -> Notices {
        let patience = until.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.lock(), patience, |state| state.notices.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.notices.take().unwrap_or_default()
    }

    pub(super) fn leave(&self, patience: Duration) {
        self.ring(|notices| notices.leave = true);
        let left = self.changed.wait_timeout_while(self.lock(), patience, |state| !state.gone);
        drop(left.unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn is_gone(&self) {
        self.lock().gone = true;
        self.changed.notify_all();
    }
}

//! The wake-up signal of the heartbeat thread.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bootstrap::runtime::{Event, Instant};

use super::{Trouble, machine::Notices};

/// Wake-up signal of the heartbeat thread, with the notices for it.
pub(crate) struct WatchSignal {
    state: Mutex<State>,
    changed: Event,
}

#[derive(Default)]
struct State {
    notices: Option<Notices>,
    /// Ranks to wake once this rank's next heartbeat is written.
    wakes: Vec<usize>,
    /// The ids of the groups that this rank destroyed most recently, each with the number of steps that the rank had
    /// made in the group.
    destroyed: Vec<(String, u64)>,
    /// True once the heartbeat thread has ended.
    gone: bool,
}

impl Default for WatchSignal {
    fn default() -> Self {
        Self { state: Mutex::default(), changed: Event::new("a wake-up of the heartbeat thread") }
    }
}

impl WatchSignal {
    /// Maximum number of destroyed groups in a heartbeat.
    const DESTROYED: usize = 64;

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ring(&self, note: impl FnOnce(&mut Notices)) {
        note(self.lock().notices.get_or_insert_default());
        self.changed.notify_all();
    }

    /// Makes the heartbeat thread report a trouble to all members.
    pub(crate) fn tell(&self, trouble: Trouble) {
        self.ring(|notices| notices.troubles.push(trouble));
    }

    /// Makes the heartbeat thread request dumps from all ranks.
    pub(crate) fn alarm(&self) {
        self.ring(|notices| notices.alarm = true);
    }

    /// Makes the heartbeat thread perform an exchange now.
    pub(crate) fn hurry(&self) {
        self.ring(|notices| notices.hurry = true);
    }

    /// Wakes these ranks after this rank's next heartbeat, so that they compare their calls with this rank's
    /// at once.
    pub(crate) fn compare(&self, ranks: &[usize]) {
        self.lock().wakes.extend(ranks);
        self.hurry();
    }

    /// Publishes that this rank destroys a group after so many steps: collectives and marked graph launches. A member
    /// that has made more waits for this rank in vain, and then ends the group.
    pub(crate) fn destroy(&self, group: &str, steps: u64) {
        {
            let destroyed = &mut self.lock().destroyed;
            let excess = (destroyed.len() + 1).saturating_sub(Self::DESTROYED);
            destroyed.drain(..excess);
            destroyed.push((group.to_owned(), steps));
        }
        self.hurry();
    }

    /// Returns the groups that this rank destroyed most recently.
    pub(super) fn destroyed(&self) -> Vec<(String, u64)> {
        self.lock().destroyed.clone()
    }

    /// Removes and returns the ranks to wake after a heartbeat.
    pub(super) fn take_wakes(&self) -> Vec<usize> {
        std::mem::take(&mut self.lock().wakes)
    }

    pub(super) fn wait(&self, until: Instant) -> Notices {
        self.wait_for(until, |state| state.notices.is_some()).notices.take().unwrap_or_default()
    }

    pub(super) fn leave(&self, patience: Duration) {
        self.ring(|notices| notices.leave = true);
        drop(self.wait_for(Instant::now() + patience, |state| state.gone));
    }

    /// Waits until `condition` holds, at most until `until`.
    fn wait_for(&self, until: Instant, condition: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        while !condition(&state) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_unlocked(&self.state, state, left);
        }
        state
    }

    pub(super) fn is_gone(&self) {
        self.lock().gone = true;
        self.changed.notify_all();
    }
}

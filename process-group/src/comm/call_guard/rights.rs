//! RAII values that a [`CallGuard`] hands out. Dropping a value ends the access that it stands for.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use super::{CallGuard, INSIDE, LOCKED, Phase, State};
use crate::sync::{MutexGuard, atomic::Ordering};

/// Held while a thread is inside NCCL with the communicator. Dropping this value lets the next thread enter.
pub(crate) struct Entry<'a> {
    pub(super) guard: &'a CallGuard,
}

impl fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({})", self.guard.communicator)
    }
}

impl Drop for Entry<'_> {
    #[inline]
    fn drop(&mut self) {
        let word = &self.guard.word;
        if word.compare_exchange(INSIDE, 0, Ordering::Release, Ordering::Relaxed).is_err() {
            self.guard.leave_locked();
        }
    }
}

/// The state of a [`CallGuard`], with the state's lock held.
pub(super) struct Locked<'a> {
    pub(super) guard: &'a CallGuard,
    /// `None` while the holder waits for a change of the state, with the lock released.
    pub(super) state: Option<MutexGuard<'a, State>>,
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_ref().unwrap_or_else(|| unreachable!("the lock is held"))
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().unwrap_or_else(|| unreachable!("the lock is held"))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // `None` if the thread's wait unwinds, at the end of a seeded world (of `bootstrap::runtime`).
        let Some(state) = &self.state else { return };
        let State { phase, revoked, suspended, inside, group, waiting, .. } = &**state;
        let is_open = matches!(phase, Phase::Open) && !revoked && !suspended;
        if is_open && inside.is_none() && group.is_none() && *waiting == 0 {
            self.guard.word.fetch_and(!LOCKED, Ordering::Release);
        }
    }
}

/// Held while a thread queries the communicator. Other threads may be inside NCCL at the same time.
#[derive(Debug)]
pub(crate) struct Observer<'a> {
    pub(super) guard: &'a CallGuard,
}

impl Drop for Observer<'_> {
    fn drop(&mut self) {
        let mut state = self.guard.lock();
        state.observers -= 1;
        self.guard.changed(state);
    }
}

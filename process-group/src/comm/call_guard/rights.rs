//! Guards that the guard hands out. Each gives its right back when it is dropped.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use super::{CallGuard, INSIDE, LOCKED, Phase, State};
use crate::sync::{MutexGuard, atomic::Ordering};

/// The right to be inside NCCL with one communicator.
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

/// The guard's state, with its lock held.
pub(super) struct Locked<'a> {
    pub(super) guard: &'a CallGuard,
    /// `None` while the thread waits for a change.
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
        // `None` if a seeded world unwinds the thread's wait.
        let Some(state) = &self.state else { return };
        let State { phase, revoked, suspended, inside, group, waiting, .. } = &**state;
        let is_open = matches!(phase, Phase::Open) && !revoked && !suspended;
        if is_open && inside.is_none() && group.is_none() && *waiting == 0 {
            self.guard.word.fetch_and(!LOCKED, Ordering::Release);
        }
    }
}

/// The right to query a communicator while other threads may be inside.
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

//! A rank's seat in a group, with what is remembered of its commits.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use process_group::group::SymmetricPlaces;

use crate::agreement::{NoWindows, Refusal, Seat};

/// A rank's seat in a group, with what is remembered of its commits.
pub(crate) struct Seated {
    pub(crate) seat: Seat,
    /// Why the segments committed from this ordinal on have no windows.
    pub(crate) without: Vec<(u32, NoWindows)>,
    /// The segments that are not registered plainly either, and why not.
    pub(crate) unregistered: Vec<(u32, String)>,
    /// What the last commit left out, and why.
    pub(crate) pending: Option<Refusal>,
    /// Where the group's buffers lie in the pool, for groups that compare it.
    pub(super) places: Arc<dyn SymmetricPlaces>,
}

impl Seated {
    /// Forgets what a communicator that is gone was given; the pool has retired `retired`.
    pub(crate) fn forget(&mut self, retired: &[u32]) {
        self.seat.forget();
        retired.iter().for_each(|ordinal| self.seat.retire(*ordinal));
        (self.without, self.unregistered, self.pending) = (Vec::new(), Vec::new(), None);
    }

    /// Why segment `ordinal`, which the group has committed, is no window; `None` if it is one.
    pub(crate) fn why_without(&self, ordinal: u32) -> Option<&NoWindows> {
        self.without.iter().rev().find(|(at, _)| *at == ordinal).map(|(_, reason)| reason)
    }

    /// Why segment `ordinal`, which is no window, is not registered plainly either.
    pub(crate) fn why_unregistered(&self, ordinal: u32) -> Option<&str> {
        self.unregistered.iter().rev().find(|(at, _)| *at == ordinal).map(|(_, cause)| cause.as_str())
    }
}

pub(crate) fn lock(seated: &Mutex<Seated>) -> MutexGuard<'_, Seated> {
    seated.lock().unwrap_or_else(PoisonError::into_inner)
}

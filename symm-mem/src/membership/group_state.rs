//! The state of a group on this rank between commits.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use process_group::group::SymmetricPlaces;

use crate::{
    agreement::{GroupLog, NoWindows, Refusal},
    error::CallContext,
};

/// The state of a group on this rank for one pool, with the reasons for missing windows and registrations.
pub(crate) struct GroupState {
    pub(crate) log: GroupLog,
    /// The group's name, for errors, from its last commit.
    pub(crate) group_name: Option<Arc<str>>,
    /// Segments without windows, by ordinal, each with the reason.
    pub(crate) without: Vec<(u32, NoWindows)>,
    /// Segments that are not registered with `ncclCommRegister` either, by ordinal, each with the reason.
    pub(crate) unregistered: Vec<(u32, String)>,
    /// The result of the last commit that succeeded or was refused: its
    /// [`CommitReport::pending`](crate::CommitReport), or the refusal.
    pub(crate) pending: Option<Refusal>,
    /// Locates addresses in the pool, for groups that compare the positions of buffers between ranks.
    pub(super) places: Arc<dyn SymmetricPlaces>,
}

impl GroupState {
    /// The state of a group with nothing committed. `places` locates addresses in the pool.
    pub(super) fn new(log: GroupLog, places: Arc<dyn SymmetricPlaces>) -> Self {
        Self { log, group_name: None, without: Vec::new(), unregistered: Vec::new(), pending: None, places }
    }

    /// Returns the context of errors of the group's commits.
    pub(crate) fn call(&self) -> CallContext {
        CallContext::of_group("commit", self.log.group(), self.group_name.clone())
    }

    /// Forgets the commits of a communicator that has ended. `retired` are the segments that the pool has retired.
    pub(crate) fn forget(&mut self, retired: &[u32]) {
        self.log.forget();
        retired.iter().for_each(|ordinal| self.log.retire(*ordinal));
        (self.without, self.unregistered, self.pending) = (Vec::new(), Vec::new(), None);
    }

    /// Returns why segment `ordinal`, which the group has committed, has no window. Returns `None` if it has one.
    pub(crate) fn why_without(&self, ordinal: u32) -> Option<&NoWindows> {
        self.without.iter().rev().find(|(at, _)| *at == ordinal).map(|(_, reason)| reason)
    }

    /// Returns why segment `ordinal`, which has no window, is not registered with `ncclCommRegister` either. Returns
    /// `None` if it is registered, or if the commit did not try to register it.
    pub(crate) fn why_unregistered(&self, ordinal: u32) -> Option<&str> {
        self.unregistered.iter().rev().find(|(at, _)| *at == ordinal).map(|(_, cause)| cause.as_str())
    }
}

pub(crate) fn lock(state: &Mutex<GroupState>) -> MutexGuard<'_, GroupState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

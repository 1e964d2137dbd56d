//! A handle to the state of a group's health.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use super::{Result, error::CallContext, health::GroupHealth};
use crate::{comm::CommError, store::Deadline};

/// Reports whether a group is still usable; see
/// [`ProcessGroup::health_handle`](super::ProcessGroup::health_handle). The handle keeps no part of the group alive,
/// except during a wait.
#[derive(Clone)]
pub struct HealthHandle(Weak<GroupHealth>);

impl HealthHandle {
    pub(super) fn new(health: &Arc<GroupHealth>) -> Self {
        Self(Arc::downgrade(health))
    }

    /// Like [`ProcessGroup::standing`](super::ProcessGroup::standing). After the group was dropped, returns the error
    /// that ended the group while [`Work`](super::Work) of the group still exists, and `Ok` afterwards.
    ///
    /// # Errors
    /// Those of [`ProcessGroup::standing`](super::ProcessGroup::standing).
    pub fn check(&self) -> Result<()> {
        self.0.upgrade().map_or(Ok(()), |health| {
            health.check().map_err(|error| CallContext::of_group(&health.name).error(error))
        })
    }

    /// Waits until the group has ended, for at most two [heartbeat](super::Builder::heartbeat) intervals, and at most
    /// until `deadline`. For a rank that knows of another member's loss before its own watchdog does: it learns of the
    /// loss within that time, and [`check`](Self::check) then returns it. Returns at once if the group was dropped before.
    pub fn await_end(&self, deadline: Deadline) {
        if let Some(health) = self.0.upgrade() {
            health.hear_why((health.heartbeat * 2).min(deadline.remaining()));
        }
    }

    /// If `error` may come from the loss of another member, waits until the group has ended, for at most two
    /// [heartbeat](super::Builder::heartbeat) intervals. For a step that all members take together: the first member to
    /// notice a loss aborts its communicator, and the others may get a remote error before they notice the loss.
    pub fn await_cause(&self, error: &CommError) {
        if let Some(health) = self.0.upgrade() {
            health.await_cause(error);
        }
    }
}

impl fmt::Debug for HealthHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HealthHandle")
    }
}

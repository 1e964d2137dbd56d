//! A handle to the state of a group's health.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use super::{
    EndListener, GroupError, Result, end_listener::EndCall, error::CallContext, health::GroupHealth,
};
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
        self.0.upgrade().map_or(Ok(()), |health| check(&health))
    }

    /// Calls `listener` when the group ends, until the returned value is dropped. The argument is the error that
    /// [`check`](Self::check) returns from then on. Returns `None` if the group was dropped before.
    ///
    /// Unlike the callback of [`Builder::on_end`](super::Builder::on_end), `listener` is also called if this rank aborts
    /// or drops the group. It is not called after [`ProcessGroup::destroy`](super::ProcessGroup::destroy). The listeners
    /// of a group are called one after the other, on another thread if one can be started. A listener that blocks delays
    /// the others, and the end of this rank's waits in agreements.
    ///
    /// If the group has ended already, `listener` may not be called. So a wait that has to end with the group begins to
    /// listen, then calls [`check`](Self::check), and then waits.
    ///
    /// ```no_run
    /// # use process_group::ProcessGroup;
    /// # fn wait(group: &ProcessGroup) -> Result<(), Box<dyn std::error::Error>> {
    /// let (sender, events) = std::sync::mpsc::channel();
    /// let health = group.health_handle();
    /// let _listener = health.listen_for_end(move |error| drop(sender.send(error.to_string())));
    /// health.check()?;
    /// println!("the group has ended: {}", events.recv()?);
    /// # Ok(()) }
    /// ```
    pub fn listen_for_end(
        &self,
        listener: impl Fn(&GroupError) + Send + Sync + 'static,
    ) -> Option<EndListener> {
        let listener = Arc::new(listener);
        let reader = move |health: &GroupHealth| {
            let (listener, error) = (listener.clone(), check(health).err()?);
            Some(Arc::new(move || listener(&error)) as EndCall)
        };
        Some(self.0.upgrade()?.end_listeners.add(reader))
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

fn check(health: &GroupHealth) -> Result<()> {
    health.check().map_err(|error| CallContext::of_group(&health.name).error(error))
}

impl fmt::Debug for HealthHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HealthHandle")
    }
}

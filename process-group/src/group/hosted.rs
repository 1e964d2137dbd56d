//! The store that a rank hosts for its group.

use std::{sync::Arc, time::Duration};

use super::health::GroupHealth;
use crate::{
    store::{Deadline, TcpStore},
    watch::Watch,
};

/// The store that this rank hosts for a group. The members read from the store why a group is over. If
/// trouble ended the group, or this rank has left it, the store therefore stays open for a moment after this
/// rank has dropped its last group.
pub(super) struct Hosted {
    pub(super) store: TcpStore,
    pub(super) watch: Arc<Watch>,
    pub(super) health: Arc<GroupHealth>,
    /// Shared with the groups that were grown from this group and use the same store. Its reference count
    /// shows whether there are any.
    pub(super) grown: Arc<()>,
}

impl Hosted {
    /// The time for which the store stays open, so that other ranks can read why a group is over.
    const DRAIN_TIME: Duration = Duration::from_secs(3);

    /// Ends this rank's watch. Then waits until the other ranks have left the store, unless a grown group
    /// still uses the store.
    pub(super) fn close(&self, deadline: Deadline) {
        self.watch.close();
        if Arc::strong_count(&self.grown) == 1 {
            self.store.drain(deadline);
        }
    }

    /// Returns true if this rank has other groups with the same watch. The dropped group and this value hold
    /// `OWN` references.
    fn has_others(&self) -> bool {
        const OWN: usize = 2;
        Arc::strong_count(&self.watch) > OWN
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        if (self.health.is_in_trouble() || self.health.has_left()) && !self.has_others() {
            self.close(Deadline::after(Self::DRAIN_TIME));
        }
    }
}

//! The store that a rank hosts for its group.

use std::{sync::Arc, time::Duration};

use super::health::GroupHealth;
use crate::{
    store::{Deadline, TcpStore},
    watch::Watch,
};

/// The store that this rank hosts for a group. Members read there why a group is over. The store therefore
/// stays for a moment after the last of this rank's groups, if its group was in trouble or this rank has
/// left it.
pub(super) struct Hosted {
    pub(super) store: TcpStore,
    pub(super) watch: Arc<Watch>,
    pub(super) health: Arc<GroupHealth>,
    /// Shared with the groups that were grown from this one, and need the store too.
    pub(super) grown: Arc<()>,
}

impl Hosted {
    /// The time that others have to read why a group is over.
    const MOMENT: Duration = Duration::from_secs(3);

    /// Waits until the others have left the store.
    pub(super) fn farewell(&self, deadline: Deadline) {
        self.watch.close();
        if Arc::strong_count(&self.grown) == 1 {
            self.store.drain(deadline);
        }
    }

    /// Returns true if this rank has groups of the watch besides the one that is dropped with this.
    fn has_others(&self) -> bool {
        const OWN: usize = 2;
        Arc::strong_count(&self.watch) > OWN
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        if (self.health.is_in_trouble() || self.health.has_left()) && !self.has_others() {
            self.farewell(Deadline::after(Self::MOMENT));
        }
    }
}

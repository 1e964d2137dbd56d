//! The store that a rank hosts for its group.

use std::{sync::Arc, time::Duration};

use super::vigil::Vigil;
use crate::{
    store::{Deadline, TcpStore},
    watch::Watch,
};

/// A group's store, on the rank that hosts it for the group. Members hear at it why a group is over, so when that was in
/// trouble, or this rank has left it, the store stays for a moment after the last of this rank's groups.
pub(super) struct Hosted {
    pub(super) store: TcpStore,
    pub(super) watch: Arc<Watch>,
    pub(super) vigil: Arc<Vigil>,
}

impl Hosted {
    /// How long others are given to hear why a group is over.
    const MOMENT: Duration = Duration::from_secs(3);

    /// Waits until the others have left the store.
    pub(super) fn farewell(&self, deadline: Deadline) {
        self.watch.close();
        self.store.drain(deadline);
    }

    /// Whether this rank has groups of the watch other than that which goes with this.
    fn has_others(&self) -> bool {
        const OWN: usize = 2;
        Arc::strong_count(&self.watch) > OWN
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        if (self.vigil.is_in_trouble() || self.vigil.has_left()) && !self.has_others() {
            self.farewell(Deadline::after(Self::MOMENT));
        }
    }
}

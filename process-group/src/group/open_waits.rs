//! A list of the waits in a group's agreements, through which the end of the group ends them.

use std::sync::{Arc, Mutex, PoisonError};

use crate::store::PrefixStore;

/// A wait of this rank, in an agreement, until a key has a value.
pub(super) struct OpenWait {
    /// The store of the agreement.
    pub(super) store: PrefixStore,
    pub(super) key: String,
    /// See [`Meeting::is_larger`](super::meeting::Meeting::is_larger).
    pub(super) is_larger: bool,
}

/// The waits of this rank that are in progress.
#[derive(Clone, Default)]
pub(super) struct OpenWaits(Arc<Mutex<Vec<Arc<OpenWait>>>>);

/// Removes a wait from the list on drop.
pub(super) struct Listed {
    list: OpenWaits,
    wait: Arc<OpenWait>,
}

impl OpenWaits {
    /// Adds a wait to the list, until the returned value is dropped.
    pub(super) fn add(&self, wait: OpenWait) -> Listed {
        let wait = Arc::new(wait);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(wait.clone());
        Listed { list: self.clone(), wait }
    }

    pub(super) fn all(&self) -> Vec<Arc<OpenWait>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut waits = self.list.0.lock().unwrap_or_else(PoisonError::into_inner);
        waits.retain(|other| !Arc::ptr_eq(other, &self.wait));
    }
}

//! Functions that are called when a group ends, for waits that have to end with the group.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use super::health::GroupHealth;

type Listener = dyn Fn(&GroupHealth) + Send + Sync;

/// A function that is called when a group ends; see [`HealthHandle::on_end`](super::HealthHandle::on_end). Dropping this
/// value removes the function. If the group ends at this time, the function may be called during and after the drop.
#[must_use = "dropping this value removes the function"]
pub struct EndListener(Arc<Listener>);

/// The functions of one group.
#[derive(Default)]
pub(super) struct EndListeners(Mutex<Vec<Weak<Listener>>>);

impl EndListeners {
    /// Adds a function, until the returned value is dropped.
    pub(super) fn add(&self, listener: impl Fn(&GroupHealth) + Send + Sync + 'static) -> EndListener {
        let added = EndListener(Arc::new(listener));
        let mut listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(Arc::downgrade(&added.0));
        added
    }

    pub(super) fn all(&self) -> Vec<Arc<Listener>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
    }
}

impl fmt::Debug for EndListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EndListener")
    }
}

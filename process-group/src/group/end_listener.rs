//! Functions that are called when a group ends, for waits that have to end with the group.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use super::health::GroupHealth;

/// Reads how the group has ended. The returned function is then called on another thread. It does not own the health,
/// which would keep the group's communicators alive while the function waits for a store.
type EndReader = dyn Fn(&GroupHealth) -> Option<EndCall> + Send + Sync;

/// The function to call on the other thread.
pub(super) type EndCall = Arc<dyn Fn() + Send + Sync>;

/// A function that is called when a group ends; see
/// [`HealthHandle::listen_for_end`](super::HealthHandle::listen_for_end). Dropping this value removes the function. If
/// the group ends at this time, the function may be called during and after the drop.
#[must_use = "dropping this value removes the function"]
pub struct EndListener(Arc<EndReader>);

/// The functions of one group.
#[derive(Default)]
pub(super) struct EndListeners(Mutex<Vec<Weak<EndReader>>>);

impl EndListeners {
    /// Adds a function, until the returned value is dropped.
    pub(super) fn add(
        &self,
        reader: impl Fn(&GroupHealth) -> Option<EndCall> + Send + Sync + 'static,
    ) -> EndListener {
        let added = EndListener(Arc::new(reader));
        let mut readers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        readers.retain(|reader| reader.strong_count() > 0);
        readers.push(Arc::downgrade(&added.0));
        added
    }

    /// Returns the functions to call, now that the group of `health` has ended.
    pub(super) fn calls(&self, health: &GroupHealth) -> Vec<EndCall> {
        let readers = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        readers.iter().filter_map(Weak::upgrade).filter_map(|reader| reader(health)).collect()
    }
}

impl fmt::Debug for EndListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EndListener")
    }
}

//! Changes a rank's list of places in the store; see the [terms](super#terms).
//!
//! All threads of a rank change the same key, each time by a compare-and-set. If another thread has changed the value
//! since it was read, the change is applied to the new value and tried again. So no change is lost, no lock is held
//! during a request, and the value in the store is the only copy of the list. A rank that waits in one agreement at a
//! time needs one request to add the place and one to remove it.
//!
//! A member that loses the store cannot remove its place. While the agreement is undecided, the place must stay in the
//! list: the member may have posted its record, and without the place its rank would look as if it had not arrived.
//! Once the agreement is decided, the place must go: the search for circular waits assumes that a rank in a decided
//! agreement can go on, so the place would hide circular waits of this rank. [`enter`] therefore removes a place from
//! the list if its agreement is decided and is not in [`RUNNING`].

use std::sync::{Mutex, PoisonError};

use super::place::{self, Place};
use crate::store::{Result, Store};

/// The agreements in which threads of this process take part now. Each entry is the key of a rank's list of places, and
/// the name of an agreement. An entry does not say which store the agreement uses. If a rank has a place in a decided
/// agreement in one store, and takes part in an agreement of the same name in another store, [`enter`] keeps the place.
/// Once the rank no longer takes part in the second agreement, the next [`enter`] in the first store removes the place.
static RUNNING: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// An entry of [`RUNNING`], which is removed on drop.
pub(super) struct Running {
    key: String,
    name: String,
}

impl Running {
    /// Registers that a thread of this process takes part in the agreement `name` as `rank`.
    pub(super) fn of(rank: u32, name: &str) -> Self {
        let it = Self { key: place::places_key(rank), name: name.to_owned() };
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).push((it.key.clone(), it.name.clone()));
        it
    }

    fn is(&self, other: &(String, String)) -> bool {
        (&self.key, &self.name) == (&other.0, &other.1)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = running.iter().position(|other| self.is(other)) {
            running.swap_remove(index);
        }
    }
}

/// Returns true if a thread of this process takes part in the agreement `name`, as the rank whose list of places is
/// under `key`.
fn runs(key: &str, name: &str) -> bool {
    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    running.iter().any(|other| (&*other.0, &*other.1) == (key, name))
}

/// Adds `place` to the list of places under `key`. Removes the other places whose agreements are decided, except those
/// in which threads of this process still take part.
///
/// # Errors
/// Those of the store.
pub(super) fn enter(store: &dyn Store, key: &str, place: &Place) -> Result<()> {
    change(store, key, Vec::new(), |places| {
        let mut kept = Vec::new();
        for other in places {
            if runs(key, &other.name) || !store.check(&[&other.decision_key()])? {
                kept.push(other);
            }
        }
        place::add(&mut kept, place);
        Ok(kept)
    })
}

/// Removes `place` from the list of places under `key`.
///
/// # Errors
/// Those of the store.
pub(super) fn leave(store: &dyn Store, key: &str, place: &Place) -> Result<()> {
    change(store, key, place::to_value(std::slice::from_ref(place)), |mut places| {
        place::remove(&mut places, place);
        Ok(places)
    })
}

/// Replaces the list of places under `key` by the list that `to` makes from it. First calls `to` with the list in
/// `found`, the value that the caller expects under `key`, so that usually no read is necessary. If the key has another
/// value, calls `to` again with the list in that value. If `to` returns the list that it was given, writes nothing.
///
/// # Errors
/// Those of the store and of `to`.
fn change(
    store: &dyn Store,
    key: &str,
    mut found: Vec<u8>,
    to: impl Fn(Vec<Place>) -> Result<Vec<Place>>,
) -> Result<()> {
    loop {
        let new = place::to_value(&to(place::from_value(Some(&found)))?);
        if new == found {
            return Ok(());
        }
        let stands = store.compare_set(key, &found, &new)?;
        if stands == new {
            return Ok(());
        }
        // If the key has no value, `compare_set` returns the expected value.
        found = if stands == found { Vec::new() } else { stands };
    }
}

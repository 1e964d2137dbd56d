//! Changes the list of the agreements in which a rank waits. The list is in the store.
//!
//! The threads of a rank change one key. Each change is a compare-and-set. If another thread was faster, the change is
//! repeated with the value that was found. So no change is lost, no lock is held during a request, and the value
//! in the store is the only copy of the list. A rank that waits in one agreement at a time needs one request to
//! enter and one to leave.
//!
//! A member that loses the store cannot remove its agreement from the list. While that agreement is undecided, it must
//! stay in the list: the member may have posted its record, and without the entry the rank would look like a missing
//! one. After the decision, the entry must go: the search for circular waits assumes that a rank in a decided
//! agreement can go on, so the entry would hide circular waits of this rank. The next thread of the rank that enters
//! an agreement removes such entries: those that are decided, and that are not in [`RUNNING`].

use std::sync::{Mutex, PoisonError};

use super::place::{self, Place};
use crate::store::{Result, Store};

/// The agreements that run in this process: the key of the rank's list, and the name of the agreement. The table does
/// not record the store. So while an agreement of this rank and name runs over another store, [`enter`] keeps a decided
/// agreement of that name in the list. A later [`enter`] removes it.
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

/// Returns true if a thread of this process takes part in the agreement `name`, as the rank whose list is under `key`.
fn runs(key: &str, name: &str) -> bool {
    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    running.iter().any(|other| (&*other.0, &*other.1) == (key, name))
}

/// Adds `place` to the list under `key`. Removes the decided agreements in which no thread of this process takes part.
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

/// Removes `place` from the list under `key`.
///
/// # Errors
/// Those of the store.
pub(super) fn leave(store: &dyn Store, key: &str, place: &Place) -> Result<()> {
    change(store, key, place::to_value(std::slice::from_ref(place)), |mut places| {
        place::remove(&mut places, place);
        Ok(places)
    })
}

/// Replaces the list under `key` by the result of `to`. `found` is the value that the first compare-and-set expects,
/// which saves a read. If another value is found, `to` is called again with that list. If `to` changes nothing, writes
/// nothing.
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

//! Changes the list of the agreements in which a rank waits, in the store.
//!
//! The threads of a rank change one key. Each change is a compare-and-set, which is repeated with the value that
//! was found if another thread was faster. So no change is lost, no lock is held during a request, and the value
//! in the store is the only copy of the list. A rank that waits in one agreement at a time needs one request to
//! enter and one to leave.
//!
//! A member that loses the store cannot remove its agreement from the list. While that agreement is undecided, it
//! has to stay there: the member may have posted its record, so the others do not wait for it. After the decision
//! it would hide circular waits of this rank. The next thread of the rank that enters an agreement then removes it:
//! [`RUNNING`] shows that no thread of this process takes part in it.

use std::sync::{Mutex, PoisonError};

use super::place::{self, Place};
use crate::store::{Result, Store};

/// The agreements that run in this process: the key of the rank's list, and the name of the agreement. Ranks of
/// different stores share this list. A name that runs in another store keeps an agreement in the list for longer.
static RUNNING: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// Counts an agreement as running in this process until it is dropped.
pub(super) struct Running {
    key: String,
    name: String,
}

impl Running {
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

/// Returns true if a thread of this process takes part in the agreement.
fn runs(key: &str, name: &str) -> bool {
    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    running.iter().any(|other| (&*other.0, &*other.1) == (key, name))
}

/// Adds `place` to the list under `key`.
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

/// Changes the list under `key`. `found` is the value that it probably has.
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
        // The store returns the expected value if the key has none.
        found = if stands == found { Vec::new() } else { stands };
    }
}

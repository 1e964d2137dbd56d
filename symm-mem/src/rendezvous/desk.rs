//! Where ranks of one process leave things for each other.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Things for the ranks of this process, by token.
pub(crate) struct Desk<T: 'static>(Mutex<Option<HashMap<u64, T>>>);

impl<T: Clone> Desk<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    fn lock(&self) -> MutexGuard<'_, Option<HashMap<u64, T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves `thing` here until the deposit is dropped.
    pub(crate) fn leave(&'static self, thing: T) -> Deposit<T> {
        static TOKENS: AtomicU64 = AtomicU64::new(0);
        let token = TOKENS.fetch_add(1, Ordering::Relaxed);
        self.lock().get_or_insert_default().insert(token, thing);
        Deposit { desk: self, token }
    }

    /// What lies here under a token.
    pub(crate) fn find(&self, token: u64) -> Option<T> {
        self.lock().as_ref()?.get(&token).cloned()
    }
}

/// Something that lies on a desk; gone from there with this value.
pub(crate) struct Deposit<T: 'static> {
    desk: &'static Desk<T>,
    pub(crate) token: u64,
}

impl<T: 'static> Drop for Deposit<T> {
    fn drop(&mut self) {
        let mut things = self.desk.0.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = things.as_mut().and_then(|things| things.remove(&self.token));
        // Its end may come back here.
        drop(things);
        drop(gone);
    }
}

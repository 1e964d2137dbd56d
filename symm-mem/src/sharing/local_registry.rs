//! A registry in which ranks of one process share values.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Values that ranks of this process register. Another rank of the process finds a value by its token.
pub(crate) struct LocalRegistry<T: 'static>(Mutex<Option<HashMap<u64, T>>>);

impl<T: Clone> LocalRegistry<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    fn lock(&self) -> MutexGuard<'_, Option<HashMap<u64, T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers `value` until the returned [`LocalToken`] is dropped.
    pub(crate) fn register(&'static self, value: T) -> LocalToken<T> {
        static TOKENS: AtomicU64 = AtomicU64::new(0);
        let token = TOKENS.fetch_add(1, Ordering::Relaxed);
        self.lock().get_or_insert_default().insert(token, value);
        LocalToken { registry: self, token }
    }

    /// Returns the value with this token, or `None` if no such value is registered.
    pub(crate) fn find(&self, token: u64) -> Option<T> {
        self.lock().as_ref()?.get(&token).cloned()
    }
}

/// The registration of a value. Dropping it removes the value from the registry.
pub(crate) struct LocalToken<T: 'static> {
    registry: &'static LocalRegistry<T>,
    pub(crate) token: u64,
}

impl<T: 'static> Drop for LocalToken<T> {
    fn drop(&mut self) {
        let mut values = self.registry.0.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = values.as_mut().and_then(|values| values.remove(&self.token));
        // Unlock first, because the drop of the value may use this registry.
        drop(values);
        drop(gone);
    }
}

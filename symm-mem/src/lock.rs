//! Locks that a panic does not poison.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, even if a thread has panicked while it held the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

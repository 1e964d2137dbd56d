//! Values that the lock of a rank's ring guards, so that a call takes one lock for its record and for its work.

use std::{
    cell::UnsafeCell,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use super::log::{Ring, RingState};
use crate::sync::MutexGuard;

/// A value that the lock of a ring guards.
pub(crate) struct Guarded<T> {
    ring: Arc<Ring>,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread that holds the ring's lock accesses the value.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    pub(crate) fn new(ring: &Arc<Ring>, value: T) -> Self {
        Self { ring: ring.clone(), value: UnsafeCell::new(value) }
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> Locked<'_, T> {
        Locked { ring: self.ring.state(), value: &self.value }
    }
}

/// Access to a [`Guarded`] value and to its ring, while the ring's lock is held.
pub(crate) struct Locked<'a, T> {
    ring: MutexGuard<'a, RingState>,
    value: &'a UnsafeCell<T>,
}

impl<T> Locked<'_, T> {
    #[inline(always)]
    pub(crate) fn parts(&mut self) -> (&mut RingState, &mut T) {
        // SAFETY: `ring` is the guard of the lock that guards the value, and `self` is borrowed exclusively.
        (&mut self.ring, unsafe { &mut *self.value.get() })
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `ring` is the guard of the lock that guards the value, and `self` is borrowed.
        unsafe { &*self.value.get() }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.parts().1
    }
}

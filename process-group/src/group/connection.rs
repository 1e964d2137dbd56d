//! Whether a group's communicator is made.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::comm::Turn;

/// Records whether a group's communicator is made.
#[derive(Debug, Default)]
pub(super) struct Connection {
    made: AtomicBool,
    /// Held by the thread that makes the communicator.
    pub(super) turn: Turn,
}

impl Connection {
    pub(super) fn set_made(&self) {
        self.made.store(true, Ordering::Release);
    }

    #[inline]
    pub(super) fn is_made(&self) -> bool {
        self.made.load(Ordering::Acquire)
    }
}

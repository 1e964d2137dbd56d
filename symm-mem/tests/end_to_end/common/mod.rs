//! Helpers of the end-to-end tests and the unit tests.

pub(crate) mod foreign_capture;
pub(crate) mod intercept;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lock held by the owner of an embedded machine: a process has only one at a time.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the factor by which searches are longer than in the checks of a change: the variable `TEST_EFFORT`, or 1.
pub(crate) fn test_effort() -> u64 {
    std::env::var("TEST_EFFORT").map_or(1, |times| times.parse().expect("TEST_EFFORT is a whole number"))
}

//! End-to-end tests of the crate. They are a part of its unit-test binary, so that a crate has one.

mod commits;
mod direct;
mod embedded;
mod exchange;
mod hazards;
mod kernels;
mod orders;
pub(crate) mod processes;
mod rendezvous;
pub(crate) mod schedule;
mod seeded_device;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Kept by who has an embedded machine: one lives in a process at a time.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

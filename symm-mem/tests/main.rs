//! End-to-end tests of the crate. They are part of its unit-test binary, so that the crate has only one.

mod commits;
mod direct;
mod embedded;
mod exchange;
mod hazards;
mod intercept;
mod kernels;
mod orders;
pub(crate) mod processes;
mod rendezvous;
pub(crate) mod schedule;
mod seeded_device;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lock held by the owner of an embedded machine: a process has only one at a time.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

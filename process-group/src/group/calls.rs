//! Calls that have not returned. A device's queue holds so many of them; who enqueues one more waits in the driver, where no
//! deadline reaches. So the watchdog looks, and what ends the group ends the wait.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::store::Deadline;

/// The calls that are under way, in the order in which they began.
#[derive(Debug, Default)]
pub(super) struct Calls(Mutex<List>);

#[derive(Debug, Default)]
struct List {
    next: u64,
    open: Vec<(u64, &'static str, Deadline)>,
}

/// A call that is under way, until it is dropped.
#[derive(Debug)]
pub(super) struct Open<'a> {
    calls: &'a Calls,
    number: u64,
}

impl Calls {
    fn list(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call of `operation`, which is to return before the deadline.
    pub(super) fn begin(&self, operation: &'static str, deadline: Deadline) -> Open<'_> {
        let mut list = self.list();
        let number = list.next;
        list.next += 1;
        list.open.push((number, operation, deadline));
        Open { calls: self, number }
    }

    /// The oldest call that should have returned, and how long it has lasted.
    pub(super) fn overdue(&self) -> Option<(&'static str, Duration)> {
        let list = self.list();
        let (_, operation, deadline) = list.open.iter().find(|(.., deadline)| deadline.expired())?;
        Some((operation, deadline.waited()))
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.calls.list().open.retain(|(number, ..)| *number != self.number);
    }
}

//! The calls in progress of a group. A device's queue has a limited length. A thread that enqueues more
//! blocks in the driver, without a deadline. The watchdog therefore applies the work timeout to calls as well
//! as to work: a late call ends the group, which unblocks the thread.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The calls in progress, in the order in which they began.
#[derive(Debug, Default)]
pub(super) struct Calls(Mutex<List>);

#[derive(Debug, Default)]
struct List {
    next: u64,
    calls: Vec<Call>,
}

#[derive(Debug)]
struct Call {
    key: u64,
    operation: &'static str,
    sequence: u64,
    /// The time for which the watchdog has seen the call in progress. `None` before the watchdog's first
    /// check.
    seen: Option<Duration>,
}

/// A call that has not returned, or work that is not done. `waited` is the time for which the call has been
/// in progress, or for which the work has been the oldest of its stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    pub(super) operation: &'static str,
    pub(super) sequence: u64,
    pub(super) waited: Duration,
}

/// The guard of a call in progress. Dropping the guard removes the call from the list.
#[derive(Debug)]
pub(super) struct Calling<'a> {
    calls: &'a Calls,
    key: u64,
}

impl Calls {
    fn list(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a call of `operation` to the list. `sequence` is the call's number in the group.
    pub(super) fn begin(&self, operation: &'static str, sequence: u64) -> Calling<'_> {
        let mut list = self.list();
        let key = list.next;
        list.next += 1;
        list.calls.push(Call { key, operation, sequence, seen: None });
        Calling { calls: self, key }
    }

    /// Adds `step`, the time since the watchdog's previous check, to the times of all calls. Returns the
    /// oldest call.
    pub(super) fn look(&self, step: Duration) -> Option<Pending> {
        let mut list = self.list();
        for call in &mut list.calls {
            call.seen = Some(call.seen.map_or(Duration::ZERO, |seen| seen + step));
        }
        let Call { operation, sequence, seen, .. } = *list.calls.first()?;
        Some(Pending { operation, sequence, waited: seen.unwrap_or_default() })
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.calls.list().calls.retain(|call| call.key != self.key);
    }
}

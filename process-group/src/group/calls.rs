//! Calls that have not returned. A device's queue has a limited length, and a thread that enqueues past it
//! blocks in the driver, where no deadline applies. The watchdog therefore watches calls as it watches work,
//! and the end of the group ends the wait.

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
    /// The time that looks have counted so far; `None` before the first look.
    seen: Option<Duration>,
}

/// A call that has not returned, or work that is not done. `waited` is the time for which it was the oldest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    pub(super) operation: &'static str,
    pub(super) sequence: u64,
    pub(super) waited: Duration,
}

/// A call in progress. The call ends when this is dropped.
#[derive(Debug)]
pub(super) struct Calling<'a> {
    calls: &'a Calls,
    key: u64,
}

impl Calls {
    fn list(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call of `operation` with this sequence number in the group.
    pub(super) fn begin(&self, operation: &'static str, sequence: u64) -> Calling<'_> {
        let mut list = self.list();
        let key = list.next;
        list.next += 1;
        list.calls.push(Call { key, operation, sequence, seen: None });
        Calling { calls: self, key }
    }

    /// Returns the oldest call. `step` is the time since the previous look.
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

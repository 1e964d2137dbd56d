//! Calls that have not returned. A queue of a device holds so many of them; who enqueues one more waits in the driver, where
//! no deadline reaches. So the watchdog looks at them as at work, and what ends the group ends the wait.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The calls that are under way, in the order in which they began.
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
    /// How long it was seen to be under way; nothing: it was not seen yet.
    seen: Option<Duration>,
}

/// A call that has not returned, or work that is not done, and how long it was seen to be the oldest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    pub(super) operation: &'static str,
    pub(super) sequence: u64,
    pub(super) waited: Duration,
}

/// A call that is under way, until this is dropped.
#[derive(Debug)]
pub(super) struct Calling<'a> {
    calls: &'a Calls,
    key: u64,
}

impl Calls {
    fn list(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call of `operation`, which is to have this number in the group.
    pub(super) fn begin(&self, operation: &'static str, sequence: u64) -> Calling<'_> {
        let mut list = self.list();
        let key = list.next;
        list.next += 1;
        list.calls.push(Call { key, operation, sequence, seen: None });
        Calling { calls: self, key }
    }

    /// A look, so long after the former: the oldest call.
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

//! Out-of-memory observers: callbacks that are called when a request finds no memory, before it fails.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::error::{Fault, OutOfMemory};
use super::registry::{Registry, locked};
use super::tracker;
use crate::sync::{Mutex, per_thread};

/// The answer of an observer to a request that found no memory; see
/// [`Allocator::on_out_of_memory`](super::Allocator::on_out_of_memory).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OomAction {
    /// The observer has freed nothing. The request fails, unless another observer returns [`Retry`](Self::Retry).
    GiveUp,
    /// The observer has freed memory. The request is tried once more.
    Retry,
}

type Observe = dyn Fn(&OutOfMemory) -> OomAction + Send + Sync;

/// The observers of an allocator.
#[derive(Clone, Default)]
pub(super) struct Observers(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    next: u64,
    list: Vec<(u64, Arc<Observe>)>,
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observers").field("count", &locked(&self.0).list.len()).finish()
    }
}

/// Keeps an observer attached. [`Allocator::on_out_of_memory`](super::Allocator::on_out_of_memory) returns it. Dropping
/// it detaches the observer, without waiting for calls of the observer that other threads have begun.
#[derive(Debug)]
#[must_use = "dropping an observation detaches its observer"]
pub struct Observation {
    observers: Observers,
    key: u64,
}

impl Drop for Observation {
    fn drop(&mut self) {
        let mut state = locked(&self.observers.0);
        let at = state.list.iter().position(|(key, _)| *key == self.key);
        let gone = at.map(|at| state.list.remove(at));
        // The observer is dropped after the lock is released, because it may have captured anything, even blocks of
        // this allocator.
        drop(state);
        drop(gone);
    }
}

per_thread! {
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

impl Observers {
    /// Adds an observer, which stays attached until the returned value is dropped.
    pub(super) fn add(
        &self,
        observe: impl Fn(&OutOfMemory) -> OomAction + Send + Sync + 'static,
    ) -> Observation {
        let mut state = locked(&self.0);
        let key = state.next;
        state.next += 1;
        state.list.push((key, Arc::new(observe)));
        drop(state);
        Observation { observers: self.clone(), key }
    }

    /// Calls every observer, with no lock held. Returns true if one of them returned [`OomAction::Retry`]. The panic of
    /// an observer is recorded as [`Fault::ObserverPanicked`] and counts as [`OomAction::GiveUp`]. Does nothing and
    /// returns false if this thread is already inside an observer.
    pub(super) fn ask(&self, figures: &OutOfMemory, registry: &Registry) -> bool {
        let list: Vec<_> = locked(&self.0).list.iter().map(|(_, observe)| observe.clone()).collect();
        if list.is_empty() || ASKING.with(|asking| asking.replace(true)) {
            return false;
        }
        let mut again = false;
        for observe in list {
            match catch_unwind(AssertUnwindSafe(|| observe(figures))) {
                Ok(action) => again |= action == OomAction::Retry,
                Err(panic) => registry.fault(Fault::ObserverPanicked { message: tracker::message(&*panic) }),
            }
        }
        ASKING.with(|asking| asking.set(false));
        again
    }
}

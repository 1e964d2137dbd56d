//! Out-of-memory observers: called when no memory is left, before the request fails.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::allocator::Allocator;
use super::device::{Device, locked};
use super::error::{Fault, OutOfMemory};
use super::sync::{Mutex, per_thread};
use super::tracker;

/// An observer's answer to a request that found no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The observer has nothing more to free.
    GiveUp,
    /// The observer has freed memory: try again, once.
    Retry,
}

type Observe = dyn Fn(&OutOfMemory) -> Verdict + Send + Sync;

/// The observers of an allocator.
#[derive(Default)]
pub(super) struct Observers(Mutex<State>);

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

/// An observer's attachment. Dropping it detaches the observer; a running call completes.
#[derive(Debug)]
#[must_use = "dropping an observation detaches its observer"]
pub struct Observation {
    device: Arc<Device>,
    key: u64,
}

impl Drop for Observation {
    fn drop(&mut self) {
        let mut state = locked(&self.device.observers.0);
        let at = state.list.iter().position(|(key, _)| *key == self.key);
        let gone = at.map(|at| state.list.remove(at));
        // Dropped after the lock is released: the observer may have captured anything, even blocks of this
        // allocator.
        drop(state);
        drop(gone);
    }
}

per_thread! {
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

impl Device {
    /// Calls every observer. Returns whether one of them has freed memory.
    pub(super) fn ask_observers(&self, figures: &OutOfMemory) -> bool {
        let list: Vec<_> =
            locked(&self.observers.0).list.iter().map(|(_, observe)| observe.clone()).collect();
        if list.is_empty() || ASKING.with(|asking| asking.replace(true)) {
            return false;
        }
        let mut again = false;
        for observe in list {
            match catch_unwind(AssertUnwindSafe(|| observe(figures))) {
                Ok(verdict) => again |= verdict == Verdict::Retry,
                Err(panic) => self.fault(Fault::ObserverPanicked { message: tracker::message(&*panic) }),
            }
        }
        ASKING.with(|asking| asking.set(false));
        again
    }
}

impl Allocator {
    /// Attaches an observer. When all attempts of a request have failed, it gets the figures, on the
    /// request's thread and without any lock held. It may free blocks, allocate and trim, and ask for one
    /// more try. Its own failing requests are not reported to any observer. If it panics, that is a
    /// [`Fault`], and the request goes on.
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// use caching_alloc::core::{Allocator, Settings, StreamId, Verdict};
    /// use caching_alloc::host::{HostSource, HostStreams};
    ///
    /// # fn main() -> Result<(), caching_alloc::core::AllocError> {
    /// let (source, streams) = (Arc::new(HostSource::new(8 << 20)), Arc::new(HostStreams::new()));
    /// let allocator = Allocator::new(source, streams, Settings::default());
    /// let cache = Arc::new(Mutex::new(vec![allocator.allocate(8 << 20, StreamId(1))?]));
    /// let entries = cache.clone();
    /// let _observation = allocator.on_out_of_memory(move |figures| {
    ///     eprintln!("{figures}");
    ///     entries.lock().unwrap().pop().map_or(Verdict::GiveUp, |_| Verdict::Retry)
    /// });
    /// assert!(allocator.allocate(8 << 20, StreamId(1)).is_ok());
    /// assert!(cache.lock().unwrap().is_empty());
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "FreeMemoryCallback")]
    pub fn on_out_of_memory(
        &self,
        observe: impl Fn(&OutOfMemory) -> Verdict + Send + Sync + 'static,
    ) -> Observation {
        let device = self.shared().clone();
        let key = {
            let mut state = locked(&device.observers.0);
            let key = state.next;
            state.next += 1;
            state.list.push((key, Arc::new(observe)));
            key
        };
        Observation { device, key }
    }
}

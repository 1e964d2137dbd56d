//! Trackers: observers that receive each trace entry that passes their filter, exactly once.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};

use super::entry::{ActionKind, Entry};
use super::error::{Fault, TrackError, TrackerError, chain};
use super::snapshot::Snapshot;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, per_thread};

/// An observer of the blocks and segments of an allocator.
///
/// It gets a [`Snapshot`] when it is attached, and then every later entry that passes its [`Filter`], exactly once. A
/// structural entry is delivered on the thread that caused it: a segment's `SegmentAlloc` before any block of the
/// segment is handed out, and its `SegmentFree` before the memory is released. Block entries come in order for each
/// pool and stream, and in batches: when 64 of a pool and stream are undelivered, before a snapshot is returned
/// ([`Allocator::snapshot`](super::Allocator::snapshot)), and before the tracker is detached. The two entries of a free
/// that is completed at once count as one of the 64.
///
/// While a tracker runs, other threads may allocate cached memory, free blocks and create pools. Calls that deliver an
/// entry themselves, such as a request for a new segment, and calls that wait for a change of segments, such as
/// [`Pool::freeze`](super::Pool::freeze), may have to wait until the tracker returns. So a tracker must not wait for
/// other threads that use the allocator. It may free blocks, and allocate cached blocks. Other requests inside a
/// tracker fail with [`ReentrantTracker`](super::AllocError::ReentrantTracker). If [`observe`](Self::observe) fails or
/// panics, a [`Fault`] is recorded, and the operation of the allocator goes on.
pub trait Tracker: Send + Sync {
    /// Returns the tracker's name, for reports.
    fn name(&self) -> &str;

    /// Receives the allocator's state at the time when the tracker is attached. Entries that are delivered later record
    /// the changes since then. No entry is delivered before this returns.
    ///
    /// # Errors
    /// If it returns an error, the tracker is not attached.
    fn attached(&self, _snapshot: &Snapshot) -> Result<(), TrackerError> {
        Ok(())
    }

    /// Receives entries, in order: one structural entry, or a batch of block entries.
    ///
    /// # Errors
    /// An error is recorded as a fault; the tracker stays attached.
    fn observe(&self, entries: &[Entry]) -> Result<(), TrackerError>;
}

/// Selects the entries that a tracker receives.
///
/// ```
/// use caching_alloc::core::{ActionKind, Filter};
/// let filter = Filter::only(&[ActionKind::SegmentAlloc, ActionKind::SegmentFree]).on_device(1);
/// assert!(filter.passes(ActionKind::SegmentFree) && !filter.passes(ActionKind::Alloc));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    kinds: u16,
    device: Option<u32>,
}

impl Filter {
    /// Returns a filter for all entries.
    #[must_use]
    pub const fn all() -> Self {
        Self { kinds: u16::MAX, device: None }
    }

    /// Returns a filter for all entries except block entries. A request that cached memory serves then does no work
    /// for the tracker.
    #[must_use]
    pub fn structural() -> Self {
        use ActionKind::{Alloc, FreeCompleted, FreeRequested};
        Self { kinds: !(Alloc.bit() | FreeRequested.bit() | FreeCompleted.bit()), device: None }
    }

    /// Returns a filter for entries of these kinds.
    #[must_use]
    pub fn only(kinds: &[ActionKind]) -> Self {
        Self { kinds: kinds.iter().fold(0, |mask, kind| mask | kind.bit()), device: None }
    }

    /// Restricts the filter to one device. A tracker may be attached to the allocators of several devices. With this
    /// filter, it gets the snapshot and the entries of this device's allocator only.
    #[must_use]
    pub fn on_device(self, device: u32) -> Self {
        Self { device: Some(device), ..self }
    }

    /// Returns the filter, or `None` if no entry of an allocator of this device passes it.
    pub(super) fn of_device(self, device: u32) -> Option<Self> {
        self.device.is_none_or(|wanted| wanted == device).then_some(self)
    }

    /// Returns true if entries of this kind pass.
    #[must_use]
    pub fn passes(self, kind: ActionKind) -> bool {
        self.kinds & kind.bit() != 0
    }

    /// Returns true if any block entries pass.
    #[must_use]
    pub fn passes_blocks(self) -> bool {
        [ActionKind::Alloc, ActionKind::FreeRequested, ActionKind::FreeCompleted]
            .iter()
            .any(|k| self.passes(*k))
    }
}

/// A tracker that was attached. `attached` is false once it is detached.
pub(super) struct Slot {
    pub(super) tracker: Arc<dyn Tracker>,
    /// `None` if the tracker's filter passes no entry of the allocator's device.
    pub(super) filter: Option<Filter>,
    pub(super) attached: AtomicBool,
    calls: Mutex<Calls>,
    /// Notified when [`Calls::running`] becomes 0.
    idle: Condvar,
}

/// The calls to a tracker.
struct Calls {
    /// The number of deliveries that are running.
    running: usize,
    /// Entries that are delivered after [`Tracker::attached`] has returned. `None` from then on. A cache that is
    /// created after the snapshot may have such entries.
    early: Option<Vec<Entry>>,
}

/// A list of attached trackers: all of them, or those that receive block entries.
pub(super) type Slots = Arc<[Arc<Slot>]>;

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("tracker", &self.tracker.name()).field("filter", &self.filter).finish()
    }
}

impl Slot {
    pub(super) fn new(tracker: Arc<dyn Tracker>, filter: Option<Filter>) -> Self {
        let calls = Calls { running: 0, early: Some(Vec::new()) };
        Self { tracker, filter, attached: true.into(), calls: Mutex::new(calls), idle: Condvar::new() }
    }

    /// Returns true if any block entries pass.
    pub(super) fn wants_blocks(&self) -> bool {
        self.filter.is_some_and(Filter::passes_blocks)
    }

    /// Delivers the entries that pass the filter, unless the tracker is detached. Before
    /// [`deliver_early`](Self::deliver_early), stores the entries for that call. Returns the fault, if any.
    pub(super) fn deliver(&self, entries: &[Entry]) -> Option<Fault> {
        {
            let mut calls = self.calls();
            if !self.attached.load(Ordering::Acquire) {
                return None;
            }
            if let Some(early) = &mut calls.early {
                early.extend_from_slice(entries);
                return None;
            }
            calls.running += 1;
        }
        let fault = self.call(entries);
        let mut calls = self.calls();
        calls.running -= 1;
        if calls.running == 0 {
            self.idle.notify_all();
        }
        fault
    }

    /// Delivers the entries that came before [`greet`](Self::greet) had returned. Later entries are delivered at once.
    /// Returns the faults.
    pub(super) fn deliver_early(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        loop {
            let entries = {
                let mut calls = self.calls();
                match calls.early.take_if(|early| early.is_empty()) {
                    Some(_) => return faults,
                    None => calls.early.as_mut().map(std::mem::take).unwrap_or_default(),
                }
            };
            faults.extend(self.call(&entries));
        }
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prevents later deliveries to the tracker.
    pub(super) fn detach(&self) {
        self.attached.store(false, Ordering::Release);
    }

    /// Waits for the deliveries that are running. The tracker must be detached, and this must not be called inside a
    /// tracker.
    pub(super) fn wait_until_idle(&self) {
        let mut calls = self.calls();
        while calls.running > 0 {
            calls = self.idle.wait(calls).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn call(&self, entries: &[Entry]) -> Option<Fault> {
        let filter = self.filter?;
        let passes = |entry: &Entry| filter.passes(entry.action.kind());
        let passed: Vec<Entry>;
        let entries = if entries.iter().all(passes) {
            entries
        } else {
            passed = entries.iter().filter(|entry| passes(entry)).cloned().collect();
            &passed
        };
        let entry = entries.first()?.number;
        match enter(|| self.tracker.observe(entries)) {
            Ok(Ok(())) => None,
            Ok(Err(error)) => {
                let message = text(|| chain(&*error));
                Some(Fault::TrackerFailed { tracker: self.name(), entry, message })
            }
            Err(message) => Some(Fault::TrackerPanicked { tracker: self.name(), entry, message }),
        }
    }

    /// Calls [`Tracker::attached`] with `snapshot`. Does nothing if the filter passes no entry of the device.
    pub(super) fn greet(&self, snapshot: &Snapshot) -> Result<(), TrackError> {
        if self.filter.is_none() {
            return Ok(());
        }
        match enter(|| self.tracker.attached(snapshot)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(source)) => Err(TrackError::Refused { tracker: self.name(), source }),
            Err(message) => Err(TrackError::Panicked { tracker: self.name(), message }),
        }
    }

    fn name(&self) -> String {
        text(|| self.tracker.name().to_owned())
    }
}

per_thread! {
    static INSIDE: Cell<u32> = const { Cell::new(0) };
}

/// Returns true if this thread is inside a call to a tracker, of any allocator.
pub(super) fn inside() -> bool {
    INSIDE.with(Cell::get) > 0
}

/// Calls a tracker. [`inside`] returns true meanwhile. A panic is caught and returned as its message.
fn enter<R>(call: impl FnOnce() -> R) -> Result<R, String> {
    INSIDE.with(|inside| inside.set(inside.get() + 1));
    let result = catch_unwind(AssertUnwindSafe(call));
    INSIDE.with(|inside| inside.set(inside.get() - 1));
    result.map_err(|panic| message(&*panic))
}

/// Returns a text that code of a tracker makes. A panic in that code is caught and named in the text.
fn text(call: impl FnOnce() -> String) -> String {
    enter(call).unwrap_or_else(|message| format!("(panicked: {message})"))
}

/// Returns the message of a panic.
pub(super) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

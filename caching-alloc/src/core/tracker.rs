//! Trackers: observers that receive every entry, exactly once and in order.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::entry::{ActionKind, Entry};
use super::error::{Fault, TrackError, TrackerError, chain};
use super::snapshot::Snapshot;
use super::sync::atomic::{AtomicBool, Ordering};
use super::sync::per_thread;

/// An observer of one allocator.
///
/// It gets a [`Snapshot`] when it is attached, and then every later entry that passes its [`Filter`], exactly
/// once. A structural entry is delivered on the thread that caused it, before any other thread can see the
/// change: a segment's `SegmentAlloc` before any block of it is handed out, its `SegmentFree` before its
/// memory is released. Block entries come in batches, in order for each pool and stream.
///
/// A tracker must not wait. It may allocate and free if that is a hit; a miss inside a tracker is
/// [`ReentrantTracker`](super::AllocError::ReentrantTracker). If it fails or panics, that is recorded as a
/// [`Fault`] and the allocation goes on.
pub trait Tracker: Send + Sync {
    /// A name for reports.
    fn name(&self) -> &str;

    /// Receives the state on which later entries build. No entry comes before this returns.
    ///
    /// # Errors
    /// With an error, the tracker is not attached.
    fn attached(&self, _snapshot: &Snapshot) -> Result<(), TrackerError> {
        Ok(())
    }

    /// Receives entries, in order: one structural entry, or a batch of block entries.
    ///
    /// # Errors
    /// An error is recorded as a fault; the tracker stays attached.
    fn observe(&self, entries: &[Entry]) -> Result<(), TrackerError>;
}

/// The entries that a tracker receives.
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
    /// All entries.
    #[must_use]
    pub const fn all() -> Self {
        Self { kinds: u16::MAX, device: None }
    }

    /// All entries except those of single blocks: costs nothing on a hit.
    #[must_use]
    pub fn structural() -> Self {
        use ActionKind::{Alloc, FreeCompleted, FreeRequested};
        Self { kinds: !(Alloc.bit() | FreeRequested.bit() | FreeCompleted.bit()), device: None }
    }

    /// Entries of these kinds only.
    #[must_use]
    pub fn only(kinds: &[ActionKind]) -> Self {
        Self { kinds: kinds.iter().fold(0, |mask, kind| mask | kind.bit()), device: None }
    }

    /// Restricts the filter to one device: a tracker attached to the allocators of several devices gets
    /// entries, and a snapshot, of that one alone.
    #[must_use]
    pub fn on_device(self, device: u32) -> Self {
        Self { device: Some(device), ..self }
    }

    /// The filter for an allocator of this device; `None` if it passes nothing of it.
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

/// An attached tracker.
pub(super) struct Slot {
    pub(super) tracker: Arc<dyn Tracker>,
    /// `None`: no entry of this device passes.
    pub(super) filter: Option<Filter>,
    pub(super) attached: AtomicBool,
}

/// The attached trackers, or those that want block entries.
pub(super) type Slots = Arc<[Arc<Slot>]>;

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("tracker", &self.tracker.name()).field("filter", &self.filter).finish()
    }
}

impl Slot {
    /// Returns true if any block entries pass.
    pub(super) fn wants_blocks(&self) -> bool {
        self.filter.is_some_and(Filter::passes_blocks)
    }

    /// Delivers the entries that pass the filter; returns the fault, if any.
    pub(super) fn deliver(&self, entries: &[Entry]) -> Option<Fault> {
        if !self.attached.load(Ordering::Acquire) {
            return None;
        }
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
        let tracker = || self.tracker.name().to_owned();
        match enter(|| self.tracker.observe(entries)) {
            Ok(Ok(())) => None,
            Ok(Err(error)) => {
                Some(Fault::TrackerFailed { tracker: tracker(), entry, message: chain(&*error) })
            }
            Err(message) => Some(Fault::TrackerPanicked { tracker: tracker(), entry, message }),
        }
    }

    /// Delivers the snapshot on which later entries build.
    pub(super) fn greet(&self, snapshot: &Snapshot) -> Result<(), TrackError> {
        if self.filter.is_none() {
            return Ok(());
        }
        let tracker = || self.tracker.name().to_owned();
        match enter(|| self.tracker.attached(snapshot)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(source)) => Err(TrackError::Refused { tracker: tracker(), source }),
            Err(message) => Err(TrackError::Panicked { tracker: tracker(), message }),
        }
    }
}

per_thread! {
    static INSIDE: Cell<u32> = const { Cell::new(0) };
}

/// Returns true if this thread is inside a tracker, of any allocator.
pub(super) fn inside() -> bool {
    INSIDE.with(Cell::get) > 0
}

/// Runs a tracker's code; a panic is caught and returned as its message.
fn enter<R>(call: impl FnOnce() -> R) -> Result<R, String> {
    INSIDE.with(|inside| inside.set(inside.get() + 1));
    let result = catch_unwind(AssertUnwindSafe(call));
    INSIDE.with(|inside| inside.set(inside.get() - 1));
    result.map_err(|panic| message(&*panic))
}

/// The message of a panic.
pub(super) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

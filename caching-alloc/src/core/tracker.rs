//! Trackers: observers that are told of everything, exactly once and in order.

use std::error::Error;

use super::entry::ActionKind;
use super::snapshot::Snapshot;

/// What a tracker may fail with.
pub type TrackerError = Box<dyn Error + Send + Sync>;

/// An observer of one allocator.
///
/// It gets a [`Snapshot`] when it is attached and every later entry that its [`Filter`] lets through: nothing
/// missed, nothing twice. A structural entry is delivered on the thread that caused it, before the change can be
/// seen by anybody else: a segment's `SegmentAlloc` before any block of it is handed out, its `SegmentFree`
/// before its memory goes. Block entries come in batches, in order for each pool and stream.
///
/// A tracker waits for nobody. It may allocate and free where that is a hit; a miss inside one is
/// [`ReentrantTracker`](super::AllocError::ReentrantTracker). If it fails or panics, that is recorded as a
/// [`Fault`](super::Fault) and the allocation goes on.
pub trait Tracker: Send + Sync {
    /// A name for reports.
    fn name(&self) -> &str;

    /// The state from which the entries go on. No entry comes before this returns.
    ///
    /// # Errors
    /// An error means: not attached.
    fn attached(&self, _snapshot: &Snapshot) -> Result<(), TrackerError> {
        Ok(())
    }

    /// Entries, in order: one structural entry, or a batch of block entries.
    ///
    /// # Errors
    /// An error is recorded as a fault; the tracker stays attached.
    fn observe(&self, entries: &[super::Entry]) -> Result<(), TrackerError>;
}

/// Which entries a tracker wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter(u16);

impl Filter {
    /// Everything.
    #[must_use]
    pub const fn all() -> Self {
        Self(u16::MAX)
    }

    /// Everything but single blocks: costs nothing on a hit.
    #[must_use]
    pub fn structural() -> Self {
        use ActionKind::{Alloc, FreeCompleted, FreeRequested};
        Self(!(Alloc.bit() | FreeRequested.bit() | FreeCompleted.bit()))
    }

    /// Only these kinds.
    #[must_use]
    pub fn only(kinds: &[ActionKind]) -> Self {
        Self(kinds.iter().fold(0, |mask, kind| mask | kind.bit()))
    }

    /// Whether entries of this kind pass.
    #[must_use]
    pub fn passes(self, kind: ActionKind) -> bool {
        self.0 & kind.bit() != 0
    }

    /// Whether any block entry passes.
    #[must_use]
    pub fn passes_blocks(self) -> bool {
        [ActionKind::Alloc, ActionKind::FreeRequested, ActionKind::FreeCompleted]
            .iter()
            .any(|k| self.passes(*k))
    }
}

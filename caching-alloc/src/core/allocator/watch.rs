//! Attaching trackers, which receive trace entries; taking snapshots; adding annotations; and reading structural
//! entries without a tracker.

use std::sync::Arc;

use super::Allocator;
use crate::core::engine::{Engine, Since};
use crate::core::entry::Action;
use crate::core::error::TrackError;
use crate::core::pool::Pool;
use crate::core::segment::PoolId;
use crate::core::snapshot::Snapshot;
use crate::core::stream::StreamId;
use crate::core::tracker::{Filter, Slot, Tracker};
use crate::sync::atomic::Ordering;

/// Keeps a tracker attached to an allocator. Dropping it detaches the tracker as [`detach`](Self::detach)
/// does, and ignores the error.
#[derive(Debug)]
#[must_use = "dropping an attachment detaches its tracker"]
pub struct Attachment {
    pub(super) engine: Arc<Engine>,
    pub(super) slot: Arc<Slot>,
}

impl Attachment {
    /// Returns true if the tracker is attached to this allocator.
    #[must_use]
    pub fn is_of(&self, allocator: &Allocator) -> bool {
        Arc::ptr_eq(&self.engine, allocator.engine())
    }

    /// Returns true if the tracker is attached to the allocator of this pool.
    #[must_use]
    pub fn is_of_pool(&self, pool: &Pool) -> bool {
        Arc::ptr_eq(&self.engine, pool.engine())
    }

    /// Delivers all earlier entries to the tracker, and detaches it. The tracker is not called after this returns.
    ///
    /// # Errors
    /// [`TrackError::Reentrant`] inside a tracker, that is, if a method of any [`Tracker`] makes this call. The
    /// tracker is detached even then, but deliveries that run on other threads may still call it.
    pub fn detach(self) -> Result<(), TrackError> {
        self.engine.detach(&self.slot)
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if self.slot.attached.load(Ordering::Acquire) {
            // Detaching fails only inside a tracker, and the error cannot be returned. Deliveries that run on other
            // threads may still call the tracker then.
            let _ = self.engine.detach(&self.slot);
        }
    }
}

impl Pool {
    /// Attaches a tracker to the pool's allocator, as [`Allocator::attach`] does. The tracker gets the segments and
    /// entries of all pools. [`Segment::pool`](super::super::Segment::pool) and
    /// [`Entry::pool`](super::super::Entry::pool) identify the pool of each.
    ///
    /// # Errors
    /// As [`Allocator::attach`].
    pub fn attach(&self, tracker: Arc<dyn Tracker>, filter: Filter) -> Result<Attachment, TrackError> {
        let slot = self.engine().attach(tracker, filter)?;
        Ok(Attachment { engine: self.engine().clone(), slot })
    }
}

impl Allocator {
    /// Attaches a tracker. It gets a snapshot, and then every later entry that passes `filter`.
    ///
    /// # Errors
    /// [`TrackError`]. The tracker is not attached then.
    pub fn attach(&self, tracker: Arc<dyn Tracker>, filter: Filter) -> Result<Attachment, TrackError> {
        let slot = self.engine.attach(tracker, filter)?;
        Ok(Attachment { engine: self.engine.clone(), slot })
    }

    /// Returns the state of all segments and blocks, with the newest trace entries. Before it returns, it delivers
    /// all entries from before the snapshot to trackers. The snapshot keeps the sources of its segments alive
    /// until it is dropped. A source of device memory keeps its context alive.
    ///
    /// # Errors
    /// [`TrackError::Reentrant`] inside a tracker.
    pub fn snapshot(&self) -> Result<Snapshot, TrackError> {
        let registry = &self.engine.registry;
        let mut structure =
            registry.lock_structure().ok_or(TrackError::Reentrant { operation: "a snapshot" })?;
        let (pool, stream) = (PoolId::default(), StreamId::default());
        let notice = registry.note(&mut structure, pool, stream, [Action::Snapshot]);
        let snapshot = self.engine.capture(&structure);
        drop(structure);
        registry.deliver(notice);
        self.engine.flush();
        Ok(snapshot)
    }

    /// Adds a structural trace entry with this text, for example to mark the beginning of a phase of the program.
    ///
    /// # Errors
    /// [`TrackError::Reentrant`] inside a tracker.
    pub fn annotate(&self, text: &str) -> Result<(), TrackError> {
        let registry = &self.engine.registry;
        let mut structure =
            registry.lock_structure().ok_or(TrackError::Reentrant { operation: "an annotation" })?;
        let action = Action::Annotation(text.into());
        let notice = registry.note(&mut structure, PoolId::default(), StreamId::default(), [action]);
        drop(structure);
        registry.deliver(notice);
        Ok(())
    }

    /// Returns the structural trace entries with numbers greater than `generation`, oldest first. A reader that calls
    /// this repeatedly gets each entry exactly once. In its first call it passes the generation of a snapshot, or 0.
    /// In each later call it passes the number of the last entry that it has got.
    ///
    /// The allocator keeps the newest [`Settings::structural_entries`](super::Settings::structural_entries) entries.
    /// If some of the requested entries are no longer kept, or if `generation` is greater than the current
    /// generation, this returns a snapshot instead.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use caching_alloc::core::{Allocator, Settings, Since, StreamId};
    /// # use caching_alloc::host::{HostSource, HostStreams};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (source, streams) = (Arc::new(HostSource::new(1 << 30)), Arc::new(HostStreams::new()));
    /// # let allocator = Allocator::new(source, streams, Settings::default());
    /// let mut seen = allocator.snapshot()?.generation;
    /// let _block = allocator.allocate(1 << 20, StreamId(1))?;
    /// match allocator.since(seen)? {
    ///     Since::Entries(entries) => {
    ///         assert_eq!(entries.len(), 1); // a segment was allocated for the block
    ///         seen = entries.last().map_or(seen, |entry| entry.number);
    ///     }
    ///     Since::TooOld(snapshot) => seen = snapshot.generation, // begin again with the state in the snapshot
    /// }
    /// assert_eq!(seen, allocator.generation());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`TrackError::Reentrant`] inside a tracker.
    pub fn since(&self, generation: u64) -> Result<Since, TrackError> {
        let registry = &self.engine.registry;
        let structure =
            registry.lock_structure().ok_or(TrackError::Reentrant { operation: "reading entries" })?;
        let last = registry.generation();
        let kept = last - structure.ring.len() as u64..=last;
        if !kept.contains(&generation) {
            return Ok(Since::TooOld(Box::new(self.engine.capture_without_trace(&structure))));
        }
        let seen = usize::try_from(generation - kept.start()).unwrap_or(usize::MAX);
        Ok(Since::Entries(structure.ring.iter().skip(seen).cloned().collect()))
    }
}

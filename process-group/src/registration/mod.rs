//! Registration of an allocator's segments with communicators, as they come and go.
//!
//! NCCL can use registered buffers without copies. It picks its path per rank, so whether a buffer is registered
//! must be the same on every rank of a call; with a [`SegmentRegistrar`] it is, because every segment of the
//! allocator is registered before its first block is handed out, and deregistered after the last has come back.
//!
//! For: allocators whose segments are fixed (each one physical allocation), such as those over
//! [`VirtualMemorySource`](caching_alloc::driver::VirtualMemorySource). Not for: windows, which are collective and
//! never come from a tracker (symm-mem commits them).
//!
//! Invariants: a segment is registered with every communicator of the registrar before any block of it is handed
//! out, or the registrar is poisoned and says so; a segment that is registered is held, so its memory cannot go; no
//! call here waits for another rank.

mod error;
mod ledger;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use caching_alloc::core::{
    Action, ActionKind, Allocator, Attachment, Entry, Filter, Snapshot, Tracker, TrackerError,
};

pub use self::error::{RegistrarError, Result};
use self::ledger::Ledger;
use crate::comm::Communicator;

/// Registers every segment of one allocator with the communicators that are added to it.
///
/// A failure harms nobody: the allocation goes on, what is registered stays so, and the communicators work. But the
/// rank may now differ from the others, so the registrar is *poisoned*: it registers nothing more, and
/// [`check`](Self::check) tells, which belongs into what the ranks agree on before they rely on registration.
///
/// Dropping it detaches from the allocator and deregisters everything.
#[derive(Debug)]
pub struct SegmentRegistrar {
    tracker: Arc<Registrar>,
    /// Gone after `detach`.
    attachment: Option<Attachment>,
}

/// What a registrar has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Segments that are known now.
    pub segments: usize,
    /// Communicators that are served now.
    pub communicators: usize,
    /// Registrations that are alive now.
    pub registrations: usize,
    /// Registrations ever made.
    pub registered: u64,
    /// Registrations ever undone.
    pub deregistered: u64,
    /// Calls that failed.
    pub failures: u64,
    /// Segments that could not be deregistered, and are held for ever.
    pub stuck: usize,
}

impl SegmentRegistrar {
    /// How long a call waits for a communicator that is inside NCCL, unless told otherwise.
    pub const PATIENCE: Duration = Duration::from_secs(30);

    /// Follows `allocator` from its present state on. No communicator is served yet.
    ///
    /// # Errors
    /// [`RegistrarError::Allocator`] when the allocator refuses the tracker.
    pub fn attach(allocator: &Allocator) -> Result<Self> {
        Self::attach_with(allocator, Self::PATIENCE)
    }

    /// [`attach`](Self::attach) with another patience. An allocation that takes a new segment waits that long, at
    /// most, for each communicator that another thread is inside of.
    ///
    /// # Errors
    /// As for [`attach`](Self::attach).
    pub fn attach_with(allocator: &Allocator, patience: Duration) -> Result<Self> {
        let ledger = Mutex::new(Ledger::new(allocator.device(), patience));
        let tracker = Arc::new(Registrar { ledger });
        // Fixed segments are neither mapped nor unmapped in parts.
        let filter = Filter::only(&[ActionKind::SegmentAlloc, ActionKind::SegmentFree]);
        let attachment = Some(allocator.attach(tracker.clone(), filter)?);
        Ok(Self { tracker, attachment })
    }

    /// Serves a communicator: registers every segment that is there, and from then on every one that comes.
    ///
    /// # Errors
    /// [`RegistrarError::WrongDevice`]; [`RegistrarError::Poisoned`]; [`RegistrarError::Register`], after which the
    /// communicator is not served and nothing is registered with it.
    pub fn add(&self, communicator: &Communicator) -> Result<()> {
        self.tracker.lock().add(communicator)
    }

    /// Serves a communicator no more: deregisters every segment from it. Nothing for one that is not served.
    ///
    /// # Errors
    /// [`RegistrarError::Deregister`] with the first failure; the segment is held until the communicator is gone.
    pub fn remove(&self, communicator: &Communicator) -> Result<()> {
        self.tracker.lock().remove(communicator)
    }

    /// What was done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.tracker.lock().counts()
    }

    /// Whether every segment is registered with every communicator.
    ///
    /// # Errors
    /// [`RegistrarError::Poisoned`] with the first failure.
    pub fn check(&self) -> Result<()> {
        self.tracker.lock().check()
    }

    /// Follows the allocator no more, and deregisters everything.
    ///
    /// # Errors
    /// [`RegistrarError::Deregister`] with the first failure; [`RegistrarError::Allocator`] inside a tracker.
    pub fn detach(mut self) -> Result<()> {
        let detached = self.attachment.take().map_or(Ok(()), Attachment::detach);
        let cleared = self.tracker.lock().clear();
        detached?;
        cleared
    }
}

impl Drop for SegmentRegistrar {
    fn drop(&mut self) {
        if self.attachment.take().is_some()
            && let Err(error) = self.tracker.lock().clear()
        {
            error::report(error);
        }
    }
}

/// The half that the allocator knows.
struct Registrar {
    ledger: Mutex<Ledger>,
}

impl Registrar {
    fn lock(&self) -> MutexGuard<'_, Ledger> {
        // The ledger is consistent between its calls; a panic inside one leaves, at worst, a segment held.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Registrar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registrar({:?})", self.lock().counts())
    }
}

impl Tracker for Registrar {
    fn name(&self) -> &str {
        "segment registrar"
    }

    fn attached(&self, snapshot: &Snapshot) -> Result<(), TrackerError> {
        let mut ledger = self.lock();
        for state in &snapshot.segments {
            ledger.come(&state.segment)?;
        }
        Ok(())
    }

    fn observe(&self, entries: &[Entry]) -> Result<(), TrackerError> {
        for entry in entries {
            match &entry.action {
                Action::SegmentAlloc(segment) => self.lock().come(segment)?,
                Action::SegmentFree(segment) => self.lock().go(segment)?,
                _ => {}
            }
        }
        Ok(())
    }
}

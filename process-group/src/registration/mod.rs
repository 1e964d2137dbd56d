//! Registration of an allocator's segments with communicators, as they come and go.
//!
//! NCCL can use registered buffers without copies. It picks its path per rank, so whether a buffer is registered must be
//! the same on every rank of a call. A process says once which allocator is to be followed
//! ([`SegmentRegistrar::attach`]), and every group that is told so ([`Builder::registration`], or the environment) agrees
//! with its members whether their memory is registered: on all of them, or on none.
//! [`ProcessGroup::registration`](crate::ProcessGroup::registration) says what became of it, and
//! [`ProcessGroup::registration_report`](crate::ProcessGroup::registration_report) which buffers lay in registered memory.
//!
//! For: pools of fixed segments, each one exportable physical allocation, such as those over
//! [`VirtualMemorySource`](caching_alloc::driver::VirtualMemorySource). What is not registered, and why, says
//! [`Unregistrable`]. Not for: windows, which are collective and never come from a tracker (symm-mem commits them).
//!
//! Invariants: a segment is registered with every communicator that is served before any block of it is handed out; or,
//! where another thread is inside NCCL with that communicator at this moment, before the communicator's next call. What
//! is registered is held, so that its memory cannot go, until it is deregistered or the communicator is gone. A tracker
//! waits for nobody and calls nothing that another rank takes part in. A communicator that lacks a registration is
//! poisoned, and all of its group are told.
//!
//! [`Builder::registration`]: crate::group::Builder::registration

mod enlistment;
mod error;
mod registrar;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use caching_alloc::core::{ActionKind, Allocator, Attachment, Filter, PoolKind, SegmentSource};

pub(crate) use self::enlistment::Enlistment;
pub use self::error::{RegistrarError, Result};
use self::registrar::Registrar;
use crate::{comm::Communicator, store::Deadline};

pub use crate::memory::Unregistrable;

impl Unregistrable {
    /// Of a segment that stays where it is.
    fn of_fixed(source: &Arc<dyn SegmentSource>) -> Option<Self> {
        (!source.is_exportable()).then_some(Self::NotExportable)
    }
}

/// Follows one allocator for all communicators of its device in this process: groups that agreed to it join by
/// themselves, and communicators of their own may be [added](Self::add).
///
/// A segment that cannot be registered later leaves the allocation as it is, and poisons the communicators that lack it:
/// this rank's calls on them are refused at once, since a call with one side registered hangs, and the other ranks of
/// their groups get [`GroupError::MemberFailed`](crate::group::GroupError::MemberFailed), with the rank and the reason.
///
/// Dropping it ends it when the last group that relies on it has ended; then everything is deregistered.
#[derive(Debug)]
pub struct SegmentRegistrar {
    followed: Arc<Followed>,
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
    /// Registrations ever undone, also by a communicator's end.
    pub deregistered: u64,
    /// Calls that failed.
    pub failures: u64,
    /// Segments and communicators that still know them though they went: a thread was inside the communicator, or NCCL
    /// would not let go. The memory is kept until the communicator's next call, or its end.
    pub kept: usize,
}

/// An allocator that is followed, until nobody needs it any more.
#[derive(Debug)]
struct Followed {
    registrar: Arc<Registrar>,
    /// What its default pool's memory is.
    kind: MemoryClass,
    /// Gone after the end.
    attachment: Mutex<Option<Attachment>>,
}

/// What members compare of their allocators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryClass {
    Registrable,
    NotExportable,
    Remappable,
}

/// Every allocator that this process follows, in the order in which that began.
static FOLLOWED: Mutex<Vec<Weak<Followed>>> = Mutex::new(Vec::new());

fn followed() -> MutexGuard<'static, Vec<Weak<Followed>>> {
    FOLLOWED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SegmentRegistrar {
    /// How long a call waits for a communicator that is inside NCCL, unless told otherwise.
    pub const PATIENCE: Duration = Duration::from_secs(30);

    /// Follows `allocator` from its present state on. Groups that are made from now on register its memory if they agree
    /// to; those that are there do not, so every rank attaches before its groups are made.
    ///
    /// # Errors
    /// [`RegistrarError::AlreadyAttached`]; [`RegistrarError::Allocator`] when the allocator refuses the tracker.
    pub fn attach(allocator: &Allocator) -> Result<Self> {
        Self::attach_with(allocator, Self::PATIENCE)
    }

    /// [`attach`](Self::attach) with another patience for [`add`](Self::add), [`remove`](Self::remove) and the end.
    ///
    /// # Errors
    /// As for [`attach`](Self::attach).
    pub fn attach_with(allocator: &Allocator, patience: Duration) -> Result<Self> {
        let mut followed = followed();
        followed.retain(|other| other.strong_count() > 0);
        let device = allocator.device();
        if followed.iter().filter_map(Weak::upgrade).any(|other| other.is_of(allocator)) {
            return Err(RegistrarError::AlreadyAttached { device });
        }
        let registrar = Arc::new(Registrar::new(device, patience));
        let kinds = [
            ActionKind::SegmentAlloc,
            ActionKind::SegmentFree,
            ActionKind::SegmentMap,
            ActionKind::SegmentUnmap,
        ];
        let attachment = allocator.attach(registrar.clone(), Filter::only(&kinds))?;
        let pool = allocator.default_pool();
        let kind = match (pool.kind(), pool.source().is_exportable()) {
            (PoolKind::Remappable, _) => MemoryClass::Remappable,
            (_, true) => MemoryClass::Registrable,
            (_, false) => MemoryClass::NotExportable,
        };
        let own = Arc::new(Followed { registrar, kind, attachment: Mutex::new(Some(attachment)) });
        followed.push(Arc::downgrade(&own));
        Ok(Self { followed: own })
    }

    /// Serves a communicator: registers every segment that is there, and from then on every one that comes. For
    /// communicators that no group made; whether all of their ranks do so is for the program to see to.
    ///
    /// # Errors
    /// [`RegistrarError::WrongDevice`]; [`RegistrarError::AlreadyServed`]; [`RegistrarError::Register`], after which the
    /// communicator is not served and nothing is registered with it; one that another registrar serves is poisoned then.
    pub fn add(&self, communicator: &Communicator) -> Result<()> {
        let shared = communicator.shared();
        self.followed.registrar.serve(shared, Deadline::after(self.followed.registrar.patience))?;
        shared.rely(Arc::new(|_| ()));
        Ok(())
    }

    /// Serves a communicator no more: deregisters every segment from it.
    ///
    /// # Errors
    /// [`RegistrarError::NotServed`]; [`RegistrarError::Deregister`] with the first failure: the segment is held until
    /// the communicator is gone.
    pub fn remove(&self, communicator: &Communicator) -> Result<()> {
        let registrar = &self.followed.registrar;
        registrar.leave(communicator.shared(), Deadline::after(registrar.patience))
    }

    /// What was done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.followed.registrar.counts()
    }

    /// Whether every segment is registered with every communicator.
    ///
    /// # Errors
    /// [`RegistrarError::Lacking`] with the first failure of a communicator.
    pub fn check(&self) -> Result<()> {
        self.followed.registrar.check()
    }

    /// Follows the allocator no more, and deregisters everything.
    ///
    /// # Errors
    /// [`RegistrarError::InUse`]: groups rely on it, and nothing has changed but that it ends with the last of them;
    /// [`RegistrarError::Deregister`] with the first failure; [`RegistrarError::Allocator`] inside a tracker.
    pub fn detach(self) -> Result<()> {
        let followed = Arc::try_unwrap(self.followed)
            .map_err(|followed| RegistrarError::InUse { groups: Arc::strong_count(&followed) - 1 })?;
        followed.end()
    }
}

impl Followed {
    fn attachment(&self) -> MutexGuard<'_, Option<Attachment>> {
        self.attachment.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_of(&self, allocator: &Allocator) -> bool {
        self.attachment().as_ref().is_some_and(|attachment| attachment.is_of(allocator))
    }

    fn end(&self) -> Result<()> {
        let Some(attachment) = self.attachment().take() else { return Ok(()) };
        let detached = attachment.detach();
        let cleared = self.registrar.clear();
        detached?;
        cleared
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        if let Err(RegistrarError::Register { source, .. } | RegistrarError::Deregister { source, .. }) =
            self.end()
        {
            crate::comm::report(&source);
        }
    }
}

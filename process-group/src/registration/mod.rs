//! Registration of an allocator's segments with communicators, as segments are added and removed.
//!
//! NCCL can use registered buffers without copies. It picks its path per rank, so all ranks of a call must agree on
//! whether a buffer is registered. A process chooses once which allocator to follow ([`SegmentRegistrar::attach`]).
//! Every group with registration enabled (by [`Builder::registration`], or by the environment) agrees with its
//! members on whether their memory is registered: on all of them, or on none. An existing group registers a single pool
//! with [`ProcessGroup::register_pool`](crate::ProcessGroup::register_pool), which needs no registrar.
//! [`ProcessGroup::registration`](crate::ProcessGroup::registration) returns the outcome, and
//! [`ProcessGroup::registration_report`](crate::ProcessGroup::registration_report) lists the buffers in registered
//! memory.
//!
//! Use it for pools of fixed segments, each one exportable physical allocation, such as those over
//! [`VirtualMemorySource`](caching_alloc::driver::VirtualMemorySource). [`Unregistrable`] lists the memory that is
//! not registered, and the reasons. Windows are not made here: they are collective and never come from a tracker
//! (symm-mem commits them).
//!
//! Invariants: a segment is registered with every served communicator before any block of it is handed out. If
//! another thread is inside NCCL with that communicator at that moment, the segment is registered before the
//! communicator's next call. Registered memory is held, so that it cannot be freed, until it is deregistered or the
//! communicator is gone. A tracker never waits, and calls no function that another rank takes part in. A communicator
//! that lacks a registration is poisoned, and all members of its group are told.
//!
//! [`Builder::registration`]: crate::group::Builder::registration

mod enlistment;
mod error;
mod registrar;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use caching_alloc::core::{ActionKind, Allocator, Attachment, Filter, Pool, PoolKind, SegmentSource};

pub(crate) use self::enlistment::Enlistment;
pub use self::error::{RegistrarError, Result};
use self::registrar::Registrar;
use crate::{comm::Communicator, store::Deadline};

pub use crate::memory::Unregistrable;

impl Unregistrable {
    /// Returns the reason why a fixed segment cannot be registered, if there is one.
    fn of_fixed(source: &Arc<dyn SegmentSource>) -> Option<Self> {
        (!source.is_exportable()).then_some(Self::NotExportable)
    }
}

/// Follows one allocator for all communicators of its device in this process. Groups that agreed to registration join
/// automatically. Other communicators can be [added](Self::add).
///
/// If a later segment cannot be registered, the allocation still succeeds, and the communicators that lack the
/// segment are poisoned. This rank's calls on them are refused at once, because a call with one side registered
/// hangs. The other ranks of their groups get [`GroupError::MemberFailed`](crate::group::GroupError::MemberFailed),
/// with the rank and the reason.
///
/// After it is dropped, it ends when the last group that relies on it has ended. Then everything is deregistered.
#[derive(Debug)]
pub struct SegmentRegistrar {
    followed: Arc<Followed>,
}

/// Counters of a registrar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Current number of known segments.
    pub segments: usize,
    /// Current number of served communicators.
    pub communicators: usize,
    /// Current number of registrations.
    pub registrations: usize,
    /// Total number of registrations made.
    pub registered: u64,
    /// Total number of registrations undone, also by a communicator's end.
    pub deregistered: u64,
    /// Number of failed calls.
    pub failures: u64,
    /// Pairs of a removed segment and a communicator that still has it registered, because a thread was inside the
    /// communicator, or because NCCL failed to deregister it. The memory is kept until the communicator's next call,
    /// or its end.
    pub kept: usize,
}

/// A followed allocator, or one pool of it, until no registrar or group needs it.
#[derive(Debug)]
struct Followed {
    registrar: Arc<Registrar>,
    /// The class of the pool's memory, or of the default pool's.
    kind: MemoryClass,
    /// Empty after the end.
    attachment: Mutex<Option<Attachment>>,
}

/// The class of an allocator's memory, which members compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryClass {
    Registrable,
    NotExportable,
    Remappable,
}

impl MemoryClass {
    fn of(pool: &Pool) -> Self {
        match (pool.kind(), pool.source().is_exportable()) {
            (PoolKind::Remappable, _) => Self::Remappable,
            (_, true) => Self::Registrable,
            (_, false) => Self::NotExportable,
        }
    }
}

/// Every followed allocator of this process, in the order of attachment.
static FOLLOWED: Mutex<Vec<Weak<Followed>>> = Mutex::new(Vec::new());

fn followed() -> MutexGuard<'static, Vec<Weak<Followed>>> {
    FOLLOWED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SegmentRegistrar {
    /// Default wait for a communicator that is inside NCCL.
    pub const PATIENCE: Duration = Duration::from_secs(30);

    /// Follows `allocator` from its present state on. Groups that are made from now on register its memory if they
    /// agree to. Existing groups do not, so every rank attaches before its groups are made. An existing group can
    /// register [single pools](crate::ProcessGroup::register_pool).
    ///
    /// # Errors
    /// [`RegistrarError::AlreadyAttached`]; [`RegistrarError::Allocator`] when the allocator refuses the tracker.
    pub fn attach(allocator: &Allocator) -> Result<Self> {
        Self::attach_with(allocator, Self::PATIENCE)
    }

    /// [`attach`](Self::attach) with another limit for the waits of [`add`](Self::add), [`remove`](Self::remove) and
    /// the end.
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
        let registrar = Registrar::new(device, patience, None);
        let own = Arc::new(Followed::begin(allocator.default_pool(), registrar)?);
        followed.push(Arc::downgrade(&own));
        Ok(Self { followed: own })
    }

    /// Serves a communicator: registers every present segment, and from then on every new one. Use it for
    /// communicators that no group made.
    ///
    /// # Errors
    /// [`RegistrarError::WrongDevice`]; [`RegistrarError::AlreadyServed`]; [`RegistrarError::Register`], also if another
    /// registrar has registered the memory. The communicator is not served then, and keeps the registrations that it had.
    ///
    /// # Safety
    /// - All ranks of the communicator register the memory that they use in one call, or none does.
    /// - After the communicator was [removed](Self::remove), or the registrar has ended, no graph is launched that
    ///   captured the communicator's operations on the allocator's memory.
    pub unsafe fn add(&self, communicator: &Communicator) -> Result<()> {
        let (registrar, shared) = (&self.followed.registrar, communicator.shared());
        registrar.serve(shared, Deadline::after(registrar.patience))?;
        registrar.rely(shared, Arc::new(|_| ()));
        Ok(())
    }

    /// Stops serving a communicator: deregisters every segment from it. [`add`](Self::add) says what this does to graphs.
    ///
    /// # Errors
    /// [`RegistrarError::NotServed`]; [`RegistrarError::Deregister`] with the first failure. The segment is then held
    /// until the communicator is gone.
    pub fn remove(&self, communicator: &Communicator) -> Result<()> {
        let registrar = &self.followed.registrar;
        registrar.leave(communicator.shared(), Deadline::after(registrar.patience))
    }

    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.followed.registrar.counts()
    }

    /// Checks that every segment is registered with every communicator.
    ///
    /// # Errors
    /// [`RegistrarError::Lacking`] with the first failure of a communicator.
    pub fn check(&self) -> Result<()> {
        self.followed.registrar.check()
    }

    /// Stops following the allocator, and deregisters everything.
    ///
    /// # Errors
    /// [`RegistrarError::InUse`] if groups rely on it; it then ends with the last of them.
    /// [`RegistrarError::Deregister`] with the first failure; [`RegistrarError::Allocator`] inside a tracker.
    pub fn detach(self) -> Result<()> {
        let followed = Arc::try_unwrap(self.followed)
            .map_err(|followed| RegistrarError::InUse { groups: Arc::strong_count(&followed) - 1 })?;
        followed.end()
    }
}

impl Followed {
    /// Attaches the registrar to the pool's allocator.
    fn begin(pool: &Pool, registrar: Registrar) -> Result<Self> {
        let kinds = [
            ActionKind::SegmentAlloc,
            ActionKind::SegmentFree,
            ActionKind::SegmentMap,
            ActionKind::SegmentUnmap,
        ];
        let registrar = Arc::new(registrar);
        let attachment = pool.attach(registrar.clone(), Filter::only(&kinds))?;
        Ok(Self { registrar, kind: MemoryClass::of(pool), attachment: Mutex::new(Some(attachment)) })
    }

    /// Follows one pool. Other groups do not take part.
    fn of_pool(pool: &Pool) -> Result<Self> {
        let patience = SegmentRegistrar::PATIENCE;
        Self::begin(pool, Registrar::new(pool.device(), patience, Some(pool.id())))
    }

    /// Returns true if it follows this pool, or its whole allocator.
    fn follows(&self, pool: &Pool) -> bool {
        self.attachment().as_ref().is_some_and(|attachment| attachment.is_of_pool(pool))
            && self.registrar.follows(pool.id())
    }

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

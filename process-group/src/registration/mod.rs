//! Registration of an allocator's segments with communicators, as segments are added and removed.
//!
//! NCCL can use registered buffers without copies. NCCL chooses the transport per rank. So for each call, either all
//! ranks must have registered their buffers, or none. A process chooses once which allocator to follow
//! ([`SegmentRegistrar::attach`]). The members of each group with registration enabled (by [`Builder::registration`],
//! or by the environment) agree: either all members register, or none does.
//! [`ProcessGroup::registration`](crate::ProcessGroup::registration) returns the result of that agreement, and
//! [`ProcessGroup::registration_report`](crate::ProcessGroup::registration_report) lists the buffers in registered
//! memory. An existing group registers a single pool with
//! [`ProcessGroup::register_pool`](crate::ProcessGroup::register_pool), which needs no registrar.
//!
//! Use this module for pools of fixed segments, in which each segment is one exportable physical allocation, such as
//! pools over [`VirtualMemorySource`](caching_alloc::driver::VirtualMemorySource). [`Unregistrable`] lists the memory
//! that is not registered, and the reasons. This module makes no windows, because registering a window is collective.
//! For windows, see `SymmetricPool::commit` of the crate `symm-mem`.
//!
//! Each registrar is a tracker, which the allocator calls when a segment is added or removed.
//!
//! Invariants: a segment is registered with every served communicator before any block of it is handed out. If
//! another thread is inside NCCL with that communicator at that moment, the segment is registered before the
//! communicator's next call. Registered memory is held, so that it cannot be freed, until it is deregistered or the
//! communicator is gone. The tracker never waits, neither for a thread nor for another rank. If a segment cannot be
//! registered with a communicator, the communicator is poisoned and all members of its group are notified.
//!
//! [`Builder::registration`]: crate::group::Builder::registration

mod enlistment;
mod error;
mod registrar;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use caching_alloc::core::{ActionKind, Allocator, Attachment, Filter, Pool, PoolKind, Segment};

pub(crate) use self::enlistment::Enlistment;
pub use self::error::{RegistrarError, Result};
use self::registrar::Registrar;
use crate::{comm::Communicator, store::Deadline};

pub use crate::memory::Unregistrable;

impl Unregistrable {
    /// Returns the reason why a fixed segment cannot be registered. `None` if it can.
    fn of_fixed(segment: &Segment) -> Option<Self> {
        (!segment.is_exportable()).then_some(Self::NotExportable)
    }
}

/// Registers the segments of one allocator with communicators of the allocator's device: those of groups that agreed
/// to registration, and those that are [added](Self::add).
///
/// If a later segment cannot be registered with a communicator, the allocation still succeeds, and the communicator
/// is poisoned. This rank's calls on the communicator are refused at once, because a call in which only some ranks'
/// buffers are registered hangs. The other ranks of the communicator's group get
/// [`GroupErrorKind::MemberFailed`](crate::group::GroupErrorKind::MemberFailed), with the rank and the reason.
///
/// Dropping this value does not stop registration while groups rely on it. When the last of these groups has ended,
/// all segments are deregistered.
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
    /// Number of registrations and deregistrations that failed.
    pub failures: u64,
    /// Current number of registrations whose segment was removed. The segment's memory is kept meanwhile. There are two
    /// reasons:
    /// - Another thread was inside NCCL, or the communicator is suspended. The next call on the communicator (after it
    ///   is resumed) deregisters the segment.
    /// - NCCL failed to deregister the segment. The memory is kept until the communicator is gone.
    pub kept: usize,
}

/// A followed allocator, or one followed pool. Shared by its [`SegmentRegistrar`] and the groups that rely on it.
/// Registration ends when the last of them is dropped.
#[derive(Debug)]
struct Followed {
    registrar: Arc<Registrar>,
    /// Memory class of the followed pool. For a whole allocator, the class of its default pool.
    kind: MemoryClass,
    /// `None` once [`end`](Self::end) has run.
    attachment: Mutex<Option<Attachment>>,
}

/// The class of the memory of an allocator or pool. The members of a group compare their classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryClass {
    Registrable,
    NotExportable,
    Remappable,
}

impl MemoryClass {
    fn of(pool: &Pool) -> Self {
        match (pool.kind(), pool.is_exportable()) {
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
    /// Default time limit of a wait for other threads to leave NCCL. Applies to each communicator separately.
    pub const PATIENCE: Duration = Duration::from_secs(30);

    /// Follows `allocator` from its present state on. Groups that are made from now on register the allocator's
    /// memory if their members agree to. Existing groups do not, so call this on every rank before the groups are
    /// made. An existing group can register [single pools](crate::ProcessGroup::register_pool).
    ///
    /// # Errors
    /// [`RegistrarError::AlreadyAttached`]; [`RegistrarError::Allocator`] if the allocator does not accept the
    /// registrar's tracker.
    pub fn attach(allocator: &Allocator) -> Result<Self> {
        Self::attach_with(allocator, Self::PATIENCE)
    }

    /// Like [`attach`](Self::attach), with another limit for the waits of [`add`](Self::add),
    /// [`remove`](Self::remove) and [`detach`](Self::detach), and of the deregistration after a drop.
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

    /// Serves a communicator: registers every present segment with it, and from then on every new segment. Use this
    /// for communicators that no group made.
    ///
    /// # Errors
    /// [`RegistrarError::WrongDevice`]; [`RegistrarError::AlreadyServed`]; [`RegistrarError::Register`], also if
    /// another registrar has registered the memory. After an error the communicator is not served, and keeps only the
    /// registrations that it had before.
    ///
    /// # Safety
    /// - For each collective call, either every rank has registered the buffers that it passes, or no rank has.
    /// - After the communicator was [removed](Self::remove), or the registrar has ended, no graph is launched that
    ///   captured the communicator's operations on the allocator's memory.
    pub unsafe fn add(&self, communicator: &Communicator) -> Result<()> {
        let (registrar, shared) = (&self.followed.registrar, communicator.shared());
        registrar.serve(shared, Deadline::after(registrar.patience))?;
        registrar.rely(shared, Arc::new(|_| ()));
        Ok(())
    }

    /// Stops serving a communicator: deregisters every segment from it. For captured graphs, see the safety section
    /// of [`add`](Self::add).
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

    /// Checks that no registration of a segment with a served communicator has failed. [Unregistrable] segments are not
    /// checked.
    ///
    /// # Errors
    /// [`RegistrarError::Lacking`] with the first failure of a communicator.
    pub fn check(&self) -> Result<()> {
        self.followed.registrar.check()
    }

    /// Stops following the allocator, and deregisters everything.
    ///
    /// # Errors
    /// [`RegistrarError::InUse`] if groups rely on the registrar, which then ends with the last of these groups.
    /// [`RegistrarError::Deregister`] with the first failure; [`RegistrarError::Allocator`] if called from a
    /// tracker's callback.
    pub fn detach(self) -> Result<()> {
        let followed = Arc::try_unwrap(self.followed)
            .map_err(|followed| RegistrarError::InUse { groups: Arc::strong_count(&followed) - 1 })?;
        followed.end()
    }
}

impl Followed {
    /// Attaches the registrar to the pool's allocator as a tracker.
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

    /// Follows one pool for one group. The pool is not added to the process-wide list, so other groups do not
    /// register it.
    fn of_pool(pool: &Pool) -> Result<Self> {
        let patience = SegmentRegistrar::PATIENCE;
        Self::begin(pool, Registrar::new(pool.device(), patience, Some(pool.id())))
    }

    /// Returns true if this pool, or its whole allocator, is followed.
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

//! The communicators of one group that take part in registration.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use caching_alloc::core::Pool;

use super::{Followed, MemoryClass, Result, followed, registrar::Alarm};
use crate::{
    comm::{Communicator, Shared},
    store::Deadline,
};

/// Communicators of one group and one device, and the allocators of that device that were followed when the
/// enlistment was made. [`serve`](Self::serve) registers every allocator's segments with every communicator. Dropping
/// this value deregisters them.
pub(crate) struct Enlistment {
    communicators: Vec<Weak<Shared>>,
    followed: Vec<Arc<Followed>>,
}

impl Enlistment {
    /// Records the allocators of the communicators' device that are followed now. Nothing is registered yet.
    pub(crate) fn new(communicators: &[&Communicator]) -> Self {
        let device = communicators.first().map(|communicator| communicator.context().device().ordinal());
        let of_device = |followed: &Arc<Followed>| Some(followed.registrar.device()) == device;
        let followed = followed().iter().filter_map(Weak::upgrade).filter(of_device).collect();
        Self::of(communicators, followed)
    }

    /// Follows one pool, for these communicators only. Nothing is registered yet.
    pub(crate) fn of_pool(communicators: &[&Communicator], pool: &Pool) -> Result<Self> {
        Ok(Self::of(communicators, vec![Arc::new(Followed::of_pool(pool)?)]))
    }

    fn of(communicators: &[&Communicator], followed: Vec<Arc<Followed>>) -> Self {
        let weak = |communicator: &&Communicator| Arc::downgrade(communicator.shared());
        Self { communicators: communicators.iter().map(weak).collect(), followed }
    }

    /// Returns true if this pool is followed, so that [`serve`](Self::serve) registers its segments.
    pub(crate) fn follows(&self, pool: &Pool) -> bool {
        self.followed.iter().any(|followed| followed.follows(pool))
    }

    /// Returns the communicators that still exist.
    fn communicators(&self) -> impl Iterator<Item = Arc<Shared>> {
        self.communicators.iter().filter_map(Weak::upgrade)
    }

    /// Returns the memory classes of the followed allocators, in the order of attachment.
    pub(crate) fn classes(&self) -> Vec<MemoryClass> {
        self.followed.iter().map(|followed| followed.kind).collect()
    }

    /// Returns the serial numbers of the registrars whose segments are registered with the communicators.
    pub(crate) fn registrars(&self) -> Vec<u64> {
        self.followed.iter().map(|followed| followed.registrar.serial).collect()
    }

    /// Registers all segments. After a failure none is registered.
    pub(crate) fn serve(&self, deadline: Deadline) -> Result<()> {
        let serve = |shared: Arc<Shared>| {
            self.followed.iter().try_for_each(|followed| followed.registrar.serve(&shared, deadline))
        };
        self.communicators().try_for_each(serve).inspect_err(|_| drop(self.leave()))
    }

    /// Declares that the members rely on the registrations from now on. A failure to register a segment, whether it
    /// comes later or has happened already, poisons the communicator and is passed to `alarm`.
    pub(crate) fn rely(&self, alarm: impl Fn(&str) + Send + Sync + 'static) {
        let alarm: Arc<Alarm> = Arc::new(alarm);
        for shared in self.communicators() {
            self.followed.iter().for_each(|followed| followed.registrar.rely(&shared, alarm.clone()));
        }
    }

    /// Deregisters everything. Returns the first failure.
    pub(crate) fn leave(&self) -> Result<()> {
        let mut first = Ok(());
        for shared in self.communicators() {
            for followed in &self.followed {
                let patience = Deadline::after(followed.registrar.patience);
                // If NCCL fails to deregister a segment, the communicator keeps the memory of the segment.
                first = first.and(followed.registrar.leave(&shared, patience));
            }
        }
        first
    }
}

impl Drop for Enlistment {
    fn drop(&mut self) {
        // After an earlier `leave` this fails with `NotServed`, which is no problem.
        let _ = self.leave();
    }
}

impl fmt::Debug for Enlistment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Enlistment({} allocators, {} communicators)",
            self.followed.len(),
            self.communicators.len()
        )
    }
}

//! A group's communicators among those that are served.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use super::{Followed, MemoryClass, Result, followed};
use crate::{
    comm::{Communicator, Shared},
    store::Deadline,
};

/// Communicators of one device that every allocator of it serves, of those that were followed when they were made.
/// Dropping it takes them out.
pub(crate) struct Enlistment {
    communicators: Vec<Weak<Shared>>,
    followed: Vec<Arc<Followed>>,
}

impl Enlistment {
    /// The allocators of the communicators' device that are followed now. They serve them not yet.
    pub(crate) fn new(communicators: &[&Communicator]) -> Self {
        let device = communicators.first().map(|communicator| communicator.context().device().ordinal());
        let of_device = |followed: &Arc<Followed>| Some(followed.registrar.device()) == device;
        let followed = followed().iter().filter_map(Weak::upgrade).filter(of_device).collect();
        let weak = |communicator: &&Communicator| Arc::downgrade(communicator.shared());
        Self { communicators: communicators.iter().map(weak).collect(), followed }
    }

    /// Those that are still there.
    fn communicators(&self) -> impl Iterator<Item = Arc<Shared>> {
        self.communicators.iter().filter_map(Weak::upgrade)
    }

    /// What the allocators' memory is, in the order in which they were attached.
    pub(crate) fn classes(&self) -> Vec<MemoryClass> {
        self.followed.iter().map(|followed| followed.kind).collect()
    }

    /// Whose segments the communicators know.
    pub(crate) fn registrars(&self) -> Vec<u64> {
        self.followed.iter().map(|followed| followed.registrar.serial).collect()
    }

    /// Has all segments registered; after a failure, none is.
    pub(crate) fn serve(&self, deadline: Deadline) -> Result<()> {
        let serve = |shared: Arc<Shared>| {
            self.followed.iter().try_for_each(|followed| followed.registrar.serve(&shared, deadline))
        };
        self.communicators().try_for_each(serve).inspect_err(|_| self.leave())
    }

    /// From now on the members rely on it: what fails from here on poisons the communicator and is told.
    pub(crate) fn rely(&self, alarm: impl Fn(&str) + Clone + Send + Sync + 'static) {
        self.communicators().for_each(|shared| shared.rely(Arc::new(alarm.clone())));
    }

    /// Has nothing registered any more.
    pub(crate) fn leave(&self) {
        for shared in self.communicators() {
            for followed in &self.followed {
                let patience = Deadline::after(followed.registrar.patience);
                // Of what NCCL does not let go, the communicator keeps the memory.
                let _ = followed.registrar.leave(&shared, patience);
            }
        }
    }
}

impl Drop for Enlistment {
    fn drop(&mut self) {
        self.leave();
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

//! A group's communicator among those that are served.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use super::{Followed, MemoryClass, Result, followed};
use crate::{
    comm::{Communicator, Shared},
    store::Deadline,
};

/// A communicator that every allocator of its device serves, of those that were followed when it was made. Dropping it
/// takes it out.
pub(crate) struct Enlistment {
    communicator: Weak<Shared>,
    followed: Vec<Arc<Followed>>,
}

impl Enlistment {
    /// The allocators of the communicator's device that are followed now. They serve it not yet.
    pub(crate) fn new(communicator: &Communicator) -> Self {
        let device = communicator.context().device().ordinal();
        let of_device = |followed: &Arc<Followed>| followed.registrar.device() == device;
        let followed = followed().iter().filter_map(Weak::upgrade).filter(of_device).collect();
        Self { communicator: Arc::downgrade(communicator.shared()), followed }
    }

    /// What the allocators' memory is, in the order in which they were attached.
    pub(crate) fn classes(&self) -> Vec<MemoryClass> {
        self.followed.iter().map(|followed| followed.kind).collect()
    }

    /// Whose segments the communicator knows.
    pub(crate) fn registrars(&self) -> Vec<u64> {
        self.followed.iter().map(|followed| followed.registrar.serial).collect()
    }

    /// Has all segments registered; after a failure, none is.
    pub(crate) fn serve(&self, deadline: Deadline) -> Result<()> {
        let Some(shared) = self.communicator.upgrade() else { return Ok(()) };
        let served =
            self.followed.iter().try_for_each(|followed| followed.registrar.serve(&shared, deadline));
        served.inspect_err(|_| self.leave())
    }

    /// From now on the members rely on it: what fails from here on poisons the communicator and is told.
    pub(crate) fn rely(&self, alarm: impl Fn(&str) + Send + Sync + 'static) {
        if let Some(shared) = self.communicator.upgrade() {
            shared.rely(Arc::new(alarm));
        }
    }

    /// Has nothing registered any more.
    pub(crate) fn leave(&self) {
        let Some(shared) = self.communicator.upgrade() else { return };
        for followed in &self.followed {
            let patience = Deadline::after(followed.registrar.patience);
            // Of what NCCL does not let go, the communicator keeps the memory.
            let _ = followed.registrar.leave(&shared, patience);
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
        write!(f, "Enlistment({} allocators)", self.followed.len())
    }
}

//! Allows only one [commit](crate::SymmetricPool::commit) or [retirement](crate::SymmetricPool::retire) at a time to
//! use a communicator. A commit registers windows, and a retirement deregisters them.
//!
//! NCCL pairs the windows of different ranks by the order of their registration alone, and a deregistration frees
//! addresses for later windows. If two threads committed or retired at the same time, the order of their calls into
//! NCCL could differ between ranks.

use std::{marker::PhantomData, sync::Mutex};

use process_group::comm::Communicator;

use crate::lock::lock;

/// The addresses of the communicators with a commit or retirement in progress in this process. A [`RegistrationGuard`]
/// borrows its communicator, so no other communicator gets the address while it is in the list.
static COMMITTING: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The exclusive right to register or deregister windows of a communicator. Dropping the guard releases the right.
pub(crate) struct RegistrationGuard<'a> {
    key: usize,
    communicator: PhantomData<&'a Communicator>,
}

impl<'a> RegistrationGuard<'a> {
    /// Takes the right for `communicator`. Returns `None` if another guard has it.
    pub(crate) fn take(communicator: &'a Communicator) -> Option<Self> {
        let key = std::ptr::from_ref(communicator).addr();
        let mut committing = lock(&COMMITTING);
        if committing.contains(&key) {
            return None;
        }
        committing.push(key);
        Some(Self { key, communicator: PhantomData })
    }
}

impl Drop for RegistrationGuard<'_> {
    fn drop(&mut self) {
        lock(&COMMITTING).retain(|key| *key != self.key);
    }
}

/// The commits and retirements of a pool that are in progress on this rank. A retirement frees segments that a commit
/// in another thread may be registering, so they exclude each other. Commits for different groups do not.
#[derive(Default)]
pub(super) struct PoolUses(Mutex<Uses>);

#[derive(Default)]
struct Uses {
    commits: usize,
    is_retiring: bool,
}

/// The right to commit the pool, or to retire segments of it. Dropping this value releases the right.
pub(super) struct PoolUse<'a> {
    uses: &'a PoolUses,
    is_retirement: bool,
}

impl PoolUses {
    /// Takes the right to commit. Returns `None` during a retirement.
    pub(super) fn commit(&self) -> Option<PoolUse<'_>> {
        let mut uses = lock(&self.0);
        if uses.is_retiring {
            return None;
        }
        uses.commits += 1;
        Some(PoolUse { uses: self, is_retirement: false })
    }

    /// Takes the right to retire segments. Returns `None` during a commit or another retirement.
    pub(super) fn retire(&self) -> Option<PoolUse<'_>> {
        let mut uses = lock(&self.0);
        if uses.is_retiring || uses.commits > 0 {
            return None;
        }
        uses.is_retiring = true;
        Some(PoolUse { uses: self, is_retirement: true })
    }
}

impl Drop for PoolUse<'_> {
    fn drop(&mut self) {
        let mut uses = lock(&self.uses.0);
        match self.is_retirement {
            true => uses.is_retiring = false,
            false => uses.commits -= 1,
        }
    }
}

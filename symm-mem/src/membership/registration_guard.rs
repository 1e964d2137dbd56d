//! Allows one commit or retirement of a communicator at a time.
//!
//! If two threads committed two pools for one group at the same time, the order of their registrations could differ
//! between ranks. NCCL pairs windows by their order alone.

use std::{
    marker::PhantomData,
    sync::{Mutex, MutexGuard, PoisonError},
};

use process_group::comm::Communicator;

/// The addresses of the communicators with a commit or retirement in progress in this process. They stay valid because
/// a guard borrows its communicator.
static COMMITTING: Mutex<Vec<usize>> = Mutex::new(Vec::new());

fn committing() -> MutexGuard<'static, Vec<usize>> {
    COMMITTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to register or deregister windows of a communicator. Dropping it ends the right.
pub(crate) struct RegistrationGuard<'a> {
    key: usize,
    communicator: PhantomData<&'a Communicator>,
}

impl<'a> RegistrationGuard<'a> {
    /// Takes the right for `communicator`. Returns `None` while another commit or retirement holds it.
    pub(crate) fn take(communicator: &'a Communicator) -> Option<Self> {
        let key = std::ptr::from_ref(communicator).addr();
        let mut committing = committing();
        if committing.contains(&key) {
            return None;
        }
        committing.push(key);
        Some(Self { key, communicator: PhantomData })
    }
}

impl Drop for RegistrationGuard<'_> {
    fn drop(&mut self) {
        committing().retain(|key| *key != self.key);
    }
}

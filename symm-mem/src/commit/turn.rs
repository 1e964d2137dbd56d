//! One commit of a communicator at a time.
//!
//! Two threads that commit two pools for one group would register in an order that each rank finds for itself, and
//! NCCL pairs windows by their order alone.

use std::{
    marker::PhantomData,
    sync::{Mutex, MutexGuard, PoisonError},
};

use process_group::comm::Communicator;

/// The communicators that commits of this process are about, by their addresses: a commit borrows its communicator.
static COMMITTING: Mutex<Vec<usize>> = Mutex::new(Vec::new());

fn committing() -> MutexGuard<'static, Vec<usize>> {
    COMMITTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to commit with a communicator; ends with this value.
pub(crate) struct Turn<'a> {
    key: usize,
    communicator: PhantomData<&'a Communicator>,
}

impl<'a> Turn<'a> {
    /// `None` while another commit has it.
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

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        committing().retain(|key| *key != self.key);
    }
}

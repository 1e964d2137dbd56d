//! A segment's registration with `ncclCommRegister`. A [commit](crate::SymmetricPool::commit) registers a pool's
//! segments in this way if NCCL does not support windows for the group.

use std::sync::Mutex;

use process_group::{
    comm::{CommError, Registration},
    store::Deadline,
};

use crate::lock::lock;

/// A segment's registration. If the members of the group agree to keep their registrations, the communicator keeps this
/// value, so the segment stays registered until `deregister` is called or the communicator ends.
/// Dropping the pool does not deregister the segment: ranks drop their pools at different times, and NCCL calls hang if
/// a segment is registered on some ranks only.
#[derive(Debug)]
pub struct PlainRegistration(Mutex<Option<Registration>>);

impl PlainRegistration {
    pub(super) fn new(registration: Registration) -> Self {
        Self(Mutex::new(Some(registration)))
    }

    /// Deregisters the segment. Does nothing if this method was called before.
    pub(crate) fn deregister(&self, deadline: Deadline) -> Result<(), CommError> {
        let registration = lock(&self.0).take();
        registration.map_or(Ok(()), |registration| registration.deregister(deadline))
    }
}

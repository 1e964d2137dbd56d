//! A segment's registration with `ncclCommRegister`.

use std::sync::{Mutex, PoisonError};

use process_group::{
    comm::{CommError, Registration},
    store::Deadline,
};

/// A segment's registration. The communicator holds it until it ends, even if the pool is dropped before, because ranks
/// drop their pools at different times.
#[derive(Debug)]
pub(crate) struct PlainRegistration(Mutex<Option<Registration>>);

impl PlainRegistration {
    pub(super) fn new(registration: Registration) -> Self {
        Self(Mutex::new(Some(registration)))
    }

    /// Ends the registration. Returns success without an effect if it has ended already.
    pub(crate) fn deregister(&self, deadline: Deadline) -> Result<(), CommError> {
        let registration = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        registration.map_or(Ok(()), |registration| registration.deregister(deadline))
    }
}

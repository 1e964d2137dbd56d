//! Local registration of buffers: a note for this rank's communicator, which other ranks do not join.

use std::{fmt, sync::Weak};

use cuda_driver::DevicePtr;

use super::{Communicator, Result, abort, reaper, shared::Shared};
use crate::store::Deadline;

/// A buffer that is registered with a communicator. Dropping it deregisters; so does the communicator's end.
///
/// Whether a buffer is registered must be the same on every rank of each call that uses it: NCCL picks its path
/// per rank, and a call with one side registered hangs.
pub struct Registration {
    /// Gone when it is deregistered.
    communicator: Weak<Shared>,
    ptr: DevicePtr,
    bytes: usize,
    is_effective: bool,
}

impl Registration {
    /// Where the buffer starts.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether NCCL gave a handle. It accepts and registers nothing with `NCCL_LOCAL_REGISTER=0` or
    /// `NCCL_P2P_USE_CUDA_MEMCPY=1`.
    #[must_use]
    pub fn is_effective(&self) -> bool {
        self.is_effective
    }

    /// Deregisters. Nothing for a communicator that has ended, or that can only be aborted, which does it.
    ///
    /// # Errors
    /// [`CommError::Nccl`](super::CommError::Nccl); [`CommError::Busy`](super::CommError::Busy) when the
    /// communicator was busy until the deadline and for ten seconds more: then it is still registered, and the
    /// memory must not be reused.
    #[doc(alias = "ncclCommDeregister")]
    pub fn deregister(mut self, deadline: Deadline) -> Result<()> {
        self.release(deadline)
    }

    fn release(&mut self, deadline: Deadline) -> Result<()> {
        let Some(shared) = self.communicator.upgrade() else { return Ok(()) };
        let released = shared.deregister(self.ptr, deadline);
        if !matches!(released, Err(super::CommError::Busy { .. })) {
            self.communicator = Weak::new();
        }
        released
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Err(error) = self.release(Deadline::after(abort::PATIENCE)) {
            reaper::report(&error);
        }
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration({} bytes at {:#x})", self.bytes, self.ptr.0)
    }
}

impl Communicator {
    /// Registers a buffer, so that collectives may use it without copies. Local and lazy: NCCL notes the range,
    /// and does the work at the first call that touches it. Waits only for calls of this communicator that are
    /// inside NCCL right now.
    ///
    /// # Errors
    /// [`CommError::Missing`](super::CommError::Missing) below 2.19; [`CommError::Argument`](super::CommError::Argument)
    /// for a range that overlaps one that is registered; [`CommError::Nccl`](super::CommError::Nccl);
    /// [`CommError::Busy`](super::CommError::Busy) past the deadline.
    ///
    /// # Safety
    /// The memory stays allocated, and mapped where it is, until the registration is gone. Whether it is registered
    /// is the same on every rank whose calls use it together.
    #[doc(alias = "ncclCommRegister")]
    pub unsafe fn register(&self, ptr: DevicePtr, bytes: usize, deadline: Deadline) -> Result<Registration> {
        let shared = self.shared();
        // SAFETY: the caller's contract.
        let is_effective = unsafe { shared.register(ptr, bytes, deadline) }?;
        Ok(Registration { communicator: std::sync::Arc::downgrade(shared), ptr, bytes, is_effective })
    }
}

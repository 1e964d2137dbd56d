//! Local registration of buffers with this rank's communicator. Other ranks take no part.

use std::{fmt, sync::Weak};

use cuda_driver::DevicePtr;

use super::{Communicator, Result, abort, reaper, shared::Shared};
use crate::store::Deadline;

/// A buffer that is registered with a communicator. It is deregistered when this value is dropped, or when the
/// communicator ends.
///
/// All ranks of a call must agree on whether its buffers are registered. NCCL picks its path per rank, and a call
/// with one side registered hangs.
pub struct Registration {
    /// Empty once the buffer is deregistered.
    communicator: Weak<Shared>,
    ptr: DevicePtr,
    bytes: usize,
    is_effective: bool,
}

impl Registration {
    /// Returns the start address of the buffer.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Returns its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if NCCL gave a handle. With `NCCL_LOCAL_REGISTER=0` or `NCCL_P2P_USE_CUDA_MEMCPY=1` it returns
    /// success and registers nothing.
    #[must_use]
    pub fn is_effective(&self) -> bool {
        self.is_effective
    }

    /// Deregisters the buffer. Does nothing if the communicator has ended, or can only be aborted, because the
    /// end deregisters the buffer. On an [adopted](Communicator::adopt) communicator it does so also after an error,
    /// until the communicator is released.
    ///
    /// # Errors
    /// [`CommError::Nccl`](super::CommError::Nccl); [`CommError::Busy`](super::CommError::Busy) when the communicator
    /// was busy until the deadline and for ten seconds more. The buffer is then still registered, and the memory must
    /// not be reused.
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
    /// Registers a buffer, so that collectives may use it without copies. Local and lazy: NCCL records the range, and
    /// does the work at the first call that touches it. Waits only for calls of this communicator that are inside
    /// NCCL right now.
    ///
    /// # Errors
    /// [`CommError::Missing`](super::CommError::Missing) below 2.19; [`CommError::Argument`](super::CommError::Argument)
    /// for a range that overlaps one that is registered; [`CommError::Suspended`](super::CommError::Suspended);
    /// [`CommError::Nccl`](super::CommError::Nccl); [`CommError::Busy`](super::CommError::Busy) past the deadline.
    ///
    /// # Safety
    /// The memory stays allocated, and mapped at its address, until the registration is gone. All ranks whose calls
    /// use the memory together agree on whether it is registered.
    #[doc(alias = "ncclCommRegister")]
    pub unsafe fn register(&self, ptr: DevicePtr, bytes: usize, deadline: Deadline) -> Result<Registration> {
        let shared = self.shared();
        // SAFETY: the caller's contract.
        let is_effective = unsafe { shared.register(ptr, bytes, deadline) }?;
        Ok(Registration { communicator: std::sync::Arc::downgrade(shared), ptr, bytes, is_effective })
    }
}

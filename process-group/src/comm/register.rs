//! Local registration of buffers with this rank's communicator. Other ranks take no part.

use std::{fmt, sync::Weak};

use cuda_driver::DevicePtr;

use super::{Communicator, Result, abort, reaper, shared::Shared};
use crate::store::Deadline;

/// A buffer that is registered with a communicator. The buffer is deregistered when this value is dropped, or when
/// the communicator ends.
///
/// For each collective call, either every rank has registered the buffers that it passes, or no rank has. NCCL
/// chooses the transport per rank, so a call in which only some ranks' buffers are registered hangs.
pub struct Registration {
    /// Cannot be upgraded once the buffer is deregistered.
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

    /// Returns the length of the buffer in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if NCCL returned a handle for the buffer. With `NCCL_LOCAL_REGISTER=0` or
    /// `NCCL_P2P_USE_CUDA_MEMCPY=1`, NCCL returns success but no handle, and registers nothing.
    #[must_use]
    pub fn is_effective(&self) -> bool {
        self.is_effective
    }

    /// Deregisters the buffer. Does nothing if the communicator has ended, or can only be aborted, because ending a
    /// communicator deregisters its buffers. Exception: an [adopted](Communicator::adopt) communicator that is unusable
    /// after an error is not ended by this crate, so this call still deregisters the buffer.
    ///
    /// # Errors
    /// [`CommError::Nccl`](super::CommError::Nccl); [`CommError::Busy`](super::CommError::Busy) if another thread was
    /// inside NCCL with the communicator until the deadline. After `Busy`, the communicator's next call deregisters the
    /// buffer. After either error, keep the memory until the communicator has ended.
    #[doc(alias = "ncclCommDeregister")]
    pub fn deregister(mut self, deadline: Deadline) -> Result<()> {
        self.release(deadline)
    }

    fn release(&mut self, deadline: Deadline) -> Result<()> {
        let shared = std::mem::take(&mut self.communicator).upgrade();
        shared.map_or(Ok(()), |shared| shared.deregister(self.ptr, deadline))
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
    /// prepares the memory in the first collective that uses the range. This call waits only for calls of this
    /// communicator that are inside NCCL at the moment.
    ///
    /// # Errors
    /// [`CommError::Missing`](super::CommError::Missing) below 2.19;
    /// [`CommError::Argument`](super::CommError::Argument) for an empty range, or one that overlaps a registered
    /// range; [`CommError::Suspended`](super::CommError::Suspended); [`CommError::Nccl`](super::CommError::Nccl);
    /// [`CommError::Busy`](super::CommError::Busy) past the deadline.
    ///
    /// # Safety
    /// The memory stays allocated, and mapped at its address, until the buffer is deregistered or the communicator is
    /// gone. For each collective call, either every rank has registered the buffers that it passes, or no rank has.
    #[doc(alias = "ncclCommRegister")]
    pub unsafe fn register(&self, ptr: DevicePtr, bytes: usize, deadline: Deadline) -> Result<Registration> {
        let shared = self.shared();
        // SAFETY: the caller's contract.
        let is_effective = unsafe { shared.register(ptr, bytes, deadline) }?;
        Ok(Registration { communicator: std::sync::Arc::downgrade(shared), ptr, bytes, is_effective })
    }
}

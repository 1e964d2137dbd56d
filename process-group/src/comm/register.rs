//! Local registration of buffers: a note for this rank's communicator, which other ranks do not join.

use std::{
    ffi::c_void,
    fmt, ptr,
    sync::{
        Arc, Weak,
        atomic::{AtomicPtr, Ordering},
    },
};

use cuda_driver::DevicePtr;
use nccl_sys::Feature;

use super::{ArgumentError, Communicator, Result, abort, call::call, gate::Kind, reaper, shared::Shared};
use crate::store::Deadline;

/// A buffer that is registered with a communicator. Dropping it deregisters; so does the communicator's end.
///
/// Whether a buffer is registered must be the same on every rank of each call that uses it: NCCL picks its path
/// per rank, and a call with one side registered hangs.
pub struct Registration {
    communicator: Weak<Shared>,
    ptr: DevicePtr,
    bytes: usize,
    /// Null where NCCL accepted the call and registered nothing.
    handle: AtomicPtr<c_void>,
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
        !self.handle.load(Ordering::Relaxed).is_null()
    }

    /// Deregisters. Nothing for a communicator that has ended, or that can only be aborted, which does it.
    ///
    /// # Errors
    /// [`CommError::Nccl`](super::CommError::Nccl); [`CommError::Busy`](super::CommError::Busy) when the
    /// communicator was busy until the deadline and for ten seconds more: then it is still registered, and the
    /// memory must not be reused.
    #[doc(alias = "ncclCommDeregister")]
    pub fn deregister(self, deadline: Deadline) -> Result<()> {
        self.release(deadline)
    }

    /// [`deregister`](Self::deregister) that may be tried again when the communicator was busy.
    pub(crate) fn release(&self, deadline: Deadline) -> Result<()> {
        const CALL: &str = "ncclCommDeregister";
        let Some(shared) = self.communicator.upgrade() else { return Ok(()) };
        if !self.is_effective() || shared.gate.check(CALL).is_err() {
            return Ok(());
        }
        let _entry = match shared.gate.enter(CALL, Kind::Local, Some(deadline)) {
            Ok(entry) => entry,
            // It ended, or was poisoned, while we waited.
            Err(_) if shared.gate.check(CALL).is_err() => return Ok(()),
            Err(busy) => return Err(busy),
        };
        let _current = shared.context.enter()?;
        // Whatever NCCL answers, the handle is given back once.
        let handle = self.handle.swap(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: the communicator is alive inside the gate; the handle is its own.
        unsafe { call!(&shared.nccl, shared.name(), ncclCommDeregister(shared.raw(), handle)) }
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
    /// [`CommError::Missing`](super::CommError::Missing) below 2.19; [`CommError::Nccl`](super::CommError::Nccl);
    /// [`CommError::Busy`](super::CommError::Busy) past the deadline.
    ///
    /// # Safety
    /// The memory stays allocated, and mapped where it is, until the registration is gone. Whether it is registered
    /// is the same on every rank whose calls use it together.
    #[doc(alias = "ncclCommRegister")]
    pub unsafe fn register(&self, ptr: DevicePtr, bytes: usize, deadline: Deadline) -> Result<Registration> {
        // SAFETY: the caller's contract.
        unsafe { register(self.shared(), ptr, bytes, deadline) }
    }
}

/// [`Communicator::register`] for who holds the communicator's shared half.
///
/// # Safety
/// As for [`Communicator::register`].
pub(crate) unsafe fn register(
    shared: &Arc<Shared>,
    ptr: DevicePtr,
    bytes: usize,
    deadline: Deadline,
) -> Result<Registration> {
    const CALL: &str = "ncclCommRegister";
    if ptr.0 == 0 || bytes == 0 {
        return Err(ArgumentError::Null { call: "register", buffer: "registered", bytes }.into());
    }
    shared.nccl.api().require(Feature::REGISTER)?;
    let _entry = shared.gate.enter(CALL, Kind::Local, Some(deadline))?;
    let _current = shared.context.enter()?;
    let mut handle = ptr::null_mut();
    // SAFETY: the communicator is alive inside the gate; the memory is alive by the caller's contract; the handle
    // is written before the call returns, because communicators are blocking.
    unsafe {
        call!(
            &shared.nccl,
            shared.name(),
            ncclCommRegister(shared.raw(), ptr.0 as *mut c_void, bytes, &mut handle)
        )
    }?;
    Ok(Registration { communicator: Arc::downgrade(shared), ptr, bytes, handle: AtomicPtr::new(handle) })
}

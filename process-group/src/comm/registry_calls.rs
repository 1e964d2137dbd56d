//! The NCCL calls that register and deregister a communicator's ranges.

use std::{ffi::c_void, ptr, sync::Arc};

use cuda_driver::{DevicePtr, graph::RelaxedCapture};
use nccl_sys::Feature;

use super::{
    ArgumentError, CommError, Result,
    call::call,
    call_guard::Kind,
    registry::{DEREGISTER, Handle, Job, Phase, REGISTER, Range, SegmentHold, Unsettled, reason},
    shared::Shared,
};
use crate::store::Deadline;

impl Shared {
    /// Records a range to register, without a call of NCCL. The communicator's next call,
    /// [`flush_if_free`](Self::flush_if_free) or [`flush_by`](Self::flush_by) registers the range. A failure is passed to
    /// `hold`.
    pub(crate) fn note(
        &self,
        address: u64,
        bytes: usize,
        hold: Arc<dyn SegmentHold>,
    ) -> Result<(), Unsettled> {
        self.registry.note(address, bytes, hold.clone()).map_err(|source| {
            hold.not_registered(&reason(address, &source));
            Unsettled { address, bytes, is_registration: true, source: source.into() }
        })
    }

    /// Records a range to deregister, like [`note`](Self::note). Does nothing if the range is not registered.
    pub(crate) fn note_removal(&self, address: u64) {
        let _ = self.registry.leave(DEREGISTER, address);
    }

    /// Executes the pending requests. Leaves them to the communicator's next call if the call guard does not admit this
    /// thread at once, or if the communicator is suspended.
    pub(crate) fn flush_if_free(&self) -> Result<(), Unsettled> {
        match self.guard.enter(REGISTER, Kind::Local, Some(Deadline::now())) {
            // No suspension begins while this thread is inside.
            Ok(_entry) if !self.guard.is_suspended() => self.flush(),
            _ => Ok(()),
        }
    }

    /// Waits until no other thread is inside the call guard, then executes the pending requests.
    pub(crate) fn flush_by(&self, deadline: Deadline) -> Result<(), Unsettled> {
        let _entry = self.guard.enter(REGISTER, Kind::Local, Some(deadline)).map_err(nowhere)?;
        self.guard.check(REGISTER).map_err(nowhere)?;
        self.flush()
    }

    /// Executes the pending requests before `call`. A failed request may poison the communicator, so this function then
    /// checks whether `call` is still allowed. The caller is inside the guard.
    #[cold]
    pub(super) fn flush_before(&self, call: &'static str) -> Result<()> {
        match self.flush() {
            // Some requests were not started, so `call` might use memory that is not registered yet.
            Err(unsettled) if self.registry.has_pending() => Err(*unsettled.source),
            _ => self.guard.check(call),
        }
    }

    /// Executes all pending requests. Returns the first failure. The caller is inside the guard.
    pub(crate) fn flush(&self) -> Result<(), Unsettled> {
        let settled = self.context.with_current(|| self.flush_in_current());
        settled.map_err(|error| nowhere(error.into()))?
    }

    fn flush_in_current(&self) -> Result<(), Unsettled> {
        // If this thread captures a stream, the driver would otherwise refuse NCCL's registration calls.
        let relaxed = RelaxedCapture::enter(self.context.driver());
        let _relaxed = relaxed.map_err(|error| nowhere(error.into()))?;
        let mut first = Ok(());
        while let Some(job) = self.registry.next() {
            let (address, bytes, is_registration, result) = match job {
                Job::Register(address, bytes) => {
                    // SAFETY: the caller is inside the guard. The range's hold keeps the memory mapped at its
                    // address.
                    let result = unsafe { self.raw_register(address, bytes) };
                    let result = result.and_then(|handle| match handle {
                        Handle(0) => {
                            let communicator = self.name().to_owned();
                            Err(CommError::NothingRegistered { communicator, address, bytes })
                        }
                        handle => Ok(handle),
                    });
                    self.registry.came(address, &result);
                    (address, bytes, true, result.map(drop))
                }
                Job::Deregister(address, handle) => {
                    // SAFETY: the caller is inside the guard. The handle belongs to this communicator and is
                    // deregistered once.
                    let result = unsafe { self.raw_deregister(handle) };
                    self.registry.went(address, &result);
                    (address, 0, false, result)
                }
            };
            let unsettled =
                |source: CommError| Unsettled { address, bytes, is_registration, source: source.into() };
            first = first.and(result.map_err(unsettled));
        }
        first
    }

    /// Deregisters all ranges, as a step of destroying or releasing the communicator. The caller is inside the guard,
    /// and has closed it, so no new range is registered.
    pub(super) fn deregister_all(&self) -> Result<()> {
        let known: Vec<_> = self.registry.lock().ranges.keys().copied().collect();
        for address in known {
            match self.registry.leave(DEREGISTER, address) {
                // Another thread has cancelled the registration of this range meanwhile.
                Err(CommError::Argument(ArgumentError::NotRegistered { .. })) => {}
                left => left?,
            }
        }
        if self.registry.has_pending() { self.flush().map_err(|unsettled| *unsettled.source) } else { Ok(()) }
    }

    /// Registers a range of memory that the caller keeps alive. Returns true if NCCL returned a handle.
    ///
    /// # Safety
    /// The memory stays allocated, and mapped at its address, until the range is deregistered, or the communicator is
    /// gone.
    pub(super) unsafe fn register(&self, ptr: DevicePtr, bytes: usize, deadline: Deadline) -> Result<bool> {
        if bytes == 0 {
            return Err(ArgumentError::Empty { call: "register", address: ptr.0 }.into());
        }
        if ptr.0 == 0 {
            return Err(ArgumentError::Null { call: "register", buffer: "registered", bytes }.into());
        }
        self.nccl.api().require(Feature::REGISTER)?;
        let _entry = self.guard.enter(REGISTER, Kind::Local, Some(deadline))?;
        // `enter` also admits calls on a suspended communicator, so check that here.
        self.guard.check(REGISTER)?;
        self.context.with_current(|| {
            let range = Range { bytes, phase: Phase::Moving, unwanted: false, hold: None };
            self.registry.insert(REGISTER, ptr.0, range)?;
            // SAFETY: this thread is inside the guard. The caller keeps the memory mapped at its address.
            let result = unsafe { self.raw_register(ptr.0, bytes) };
            self.registry.came(ptr.0, &result);
            result.map(|handle| handle != Handle(0))
        })?
    }

    /// Deregisters a range that [`register`](Self::register) registered. After [`CommError::Busy`], the communicator's
    /// next call deregisters the range.
    pub(super) fn deregister(&self, ptr: DevicePtr, deadline: Deadline) -> Result<()> {
        // A poisoned communicator is aborted later, which deregisters its ranges. This crate does not abort an
        // adopted one, so the range must be deregistered here even if the communicator is poisoned.
        let kind = if self.is_adopted() { Kind::Cleanup } else { Kind::Local };
        let _entry = match self.guard.enter(DEREGISTER, kind, Some(deadline)) {
            Ok(entry) => entry,
            Err(busy @ CommError::Busy { .. })
                if self.is_adopted()
                    || matches!(self.guard.check(DEREGISTER), Ok(()) | Err(CommError::Suspended { .. })) =>
            {
                // This fails only if the range is not registered any more.
                let _ = self.registry.leave(DEREGISTER, ptr.0);
                return Err(busy);
            }
            // The communicator has ended, or can only be aborted.
            Err(_) => return Ok(()),
        };
        self.context.with_current(|| {
            let handle = match self.registry.lock().ranges.get_mut(&ptr.0) {
                Some(range) => match std::mem::replace(&mut range.phase, Phase::Moving) {
                    Phase::Registered(handle) => handle,
                    _ => return Ok(()),
                },
                None => return Ok(()),
            };
            // SAFETY: this thread is inside the guard. The handle belongs to this communicator. It is deregistered
            // once, because the range is removed below even after an error.
            let result = unsafe { self.raw_deregister(handle) };
            self.registry.went(ptr.0, &Ok(()));
            result
        })?
    }

    /// # Safety
    /// The caller is inside the guard. The memory stays allocated, and mapped at its address, until the range is
    /// deregistered, or the communicator is gone.
    unsafe fn raw_register(&self, address: u64, bytes: usize) -> Result<Handle> {
        let mut handle = ptr::null_mut();
        let buffer = address as *mut c_void;
        // SAFETY: the guard keeps the communicator alive, and the caller keeps the memory alive. NCCL writes the
        // handle before the call returns, because the communicator is blocking.
        unsafe { call!(&self.nccl, self.name(), ncclCommRegister(self.raw(), buffer, bytes, &mut handle)) }?;
        Ok(Handle(handle.addr()))
    }

    /// # Safety
    /// The caller is inside the guard. The handle belongs to this communicator and is deregistered once.
    unsafe fn raw_deregister(&self, Handle(handle): Handle) -> Result<()> {
        if handle == 0 {
            return Ok(());
        }
        let handle = handle as *mut c_void;
        // SAFETY: the guard keeps the communicator alive. The handle is valid by the caller's contract.
        unsafe { call!(&self.nccl, self.name(), ncclCommDeregister(self.raw(), handle)) }
    }
}

/// A failure that concerns no single range.
fn nowhere(source: CommError) -> Unsettled {
    Unsettled { address: 0, bytes: 0, is_registration: true, source: source.into() }
}

//! Allocation, local registration, windows.

use std::ffi::{c_int, c_void};
use std::sync::PoisonError;

use nccl_sys::{ncclComm_t, ncclResult_t, ncclWindow_t};

use super::{Out, call, queued};
use crate::abi::DriverError;
use crate::memory::{AS_DESCRIPTOR, GRANULARITY, MemoryError, map_for_all, round_up};
use crate::nccl::error::Failure;
use crate::nccl::group;
use crate::nccl::window::rules::ReleaseBehavior;
use crate::nccl::window::{Outcome, Registration, deregister};

/// Flags of `ncclCommWindowRegister`: the first release that has each, and its bit.
const FLAGS: [(u32, c_int); 4] = [(22703, 1), (22907, 2), (23203, 4), (23203, 8)];

fn memory(error: MemoryError) -> Failure {
    group::cuda(DriverError::from(error))
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclMemAlloc(pointer: *mut *mut c_void, size: usize) -> ncclResult_t {
    call("ncclMemAlloc", |machine, library| {
        let out = Out::new(pointer, "ptr")?;
        out.set(std::ptr::null_mut());
        machine.streams.forbid_during_capture(machine, "ncclMemAlloc").map_err(group::cuda)?;
        let device = machine.current().map_err(group::cuda)?.device;
        if size == 0 {
            return Ok(());
        }
        let bytes = round_up(size as u64, GRANULARITY)
            .ok_or_else(|| Failure::argument(format!("{size} bytes are more than memory has")))?;
        let physical = machine.devices[device].arena.allocate(bytes, AS_DESCRIPTOR).map_err(memory)?;
        let handle = machine.memory.handles().add(physical.clone());
        let mapped = map_for_all(machine, &[(handle, physical.clone())]);
        // The mapping keeps the memory.
        machine.memory.handles().release(handle).map_err(memory)?;
        let base = mapped.map_err(memory)?;
        library.allocations.lock().unwrap_or_else(PoisonError::into_inner).insert(base);
        out.set(base as *mut c_void);
        Ok(())
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclMemFree(pointer: *mut c_void) -> ncclResult_t {
    call("ncclMemFree", |machine, library| {
        if pointer.is_null() {
            return Ok(());
        }
        machine.streams.forbid_during_capture(machine, "ncclMemFree").map_err(group::cuda)?;
        let base = pointer as u64;
        if !library.allocations.lock().unwrap_or_else(PoisonError::into_inner).remove(&base) {
            return Err(Failure::argument(format!(
                "{base:#x} is nothing that ncclMemAlloc gave, or was freed"
            )));
        }
        let mut space = machine.memory.space();
        let bytes = space.at(base).map(|mapped| mapped.len);
        let bytes = bytes.ok_or_else(|| Failure::argument(format!("{base:#x} was unmapped")))?;
        let gone = space.unmap(base, bytes).map_err(memory)?;
        space.unreserve(base, bytes).map_err(memory)?;
        drop(space);
        drop(gone);
        Ok(())
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommRegister(
    comm: ncclComm_t,
    buffer: *mut c_void,
    size: usize,
    handle: *mut *mut c_void,
) -> ncclResult_t {
    call("ncclCommRegister", |_, library| {
        let comm = library.comm(comm)?;
        comm.usable()?;
        let out = Out::new(handle, "handle")?;
        if buffer.is_null() || size == 0 {
            return Err(Failure::argument(format!("registering {size} bytes at {buffer:p}")));
        }
        let mut registrations = comm.registrations.lock().unwrap_or_else(PoisonError::into_inner);
        out.set(registrations.add(buffer as u64, size as u64, library.handle())? as *mut c_void);
        Ok(())
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommDeregister(comm: ncclComm_t, handle: *mut c_void) -> ncclResult_t {
    call("ncclCommDeregister", |_, library| {
        let comm = library.comm(comm)?;
        comm.registrations.lock().unwrap_or_else(PoisonError::into_inner).remove(handle as usize)
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommWindowRegister(
    comm: ncclComm_t,
    buffer: *mut c_void,
    size: usize,
    window: *mut ncclWindow_t,
    flags: c_int,
) -> ncclResult_t {
    queued("ncclCommWindowRegister", |machine, library| {
        let comm = library.comm(comm)?;
        comm.active()?;
        let out = Out::new(window, "win")?;
        let known =
            FLAGS.iter().filter(|(since, _)| *since <= comm.release).fold(0, |all, (_, flag)| all | flag);
        if flags & !known != 0 {
            return Err(Failure::argument(format!(
                "flags {flags:#x} of a window in release {}",
                comm.release
            )));
        }
        let era = ReleaseBehavior::of(comm.release);
        let captured = if era.allows_capture() {
            None
        } else {
            machine
                .streams
                .forbid_during_capture(machine, "ncclCommWindowRegister")
                .map_err(group::cuda)
                .err()
        };
        let (address, size) = (buffer as u64, size as u64);
        let registration = Registration { address, size, flags, handle: library.handle(), captured };
        let write = move |outcome| match outcome {
            Outcome::Handle(handle) => out.set(handle as ncclWindow_t),
            Outcome::Null => out.set(std::ptr::null_mut()),
            Outcome::Unwritten => {}
        };
        if let Some(outcome) = registration.locally(&comm) {
            write(outcome?);
            return Ok(());
        }
        if era.writes_at_call() {
            write(Outcome::Handle(registration.handle));
        }
        let (machine_, comm_) = (machine.clone(), comm.clone());
        let job = Box::new(move || {
            write(registration.run(&machine_, &comm_)?);
            Ok(())
        });
        group::add_job(machine, library, &comm, job)
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommWindowDeregister(
    comm: ncclComm_t,
    window: ncclWindow_t,
) -> ncclResult_t {
    call("ncclCommWindowDeregister", |machine, library| {
        let comm = library.comm(comm)?;
        deregister(machine, &comm, window as usize)
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclWinGetUserPtr(
    comm: ncclComm_t,
    window: ncclWindow_t,
    pointer: *mut *mut c_void,
) -> ncclResult_t {
    call("ncclWinGetUserPtr", |_, library| {
        let comm = library.comm(comm)?;
        let out = Out::new(pointer, "outUserPtr")?;
        let windows = comm.windows.lock().unwrap_or_else(PoisonError::into_inner);
        out.set(windows.base(window as usize).unwrap_or(0) as *mut c_void);
        Ok(())
    })
}

/// Returns the address of a rank's window memory for the requesting rank.
fn peer_pointer(
    name: &'static str,
    window: ncclWindow_t,
    offset: usize,
    rank: c_int,
    pointer: *mut *mut c_void,
) -> ncclResult_t {
    call(name, |machine, library| {
        let out = Out::new(pointer, "outPtr")?;
        let handle = window as usize;
        let comm = library.comm_of_window(handle)?;
        let rank = usize::try_from(rank).map_err(|_| Failure::argument(format!("rank {rank}")))?;
        let mut windows = comm.windows.lock().unwrap_or_else(PoisonError::into_inner);
        out.set(windows.pointer(machine, handle, comm.rank, rank, offset as u64)? as *mut c_void);
        Ok(())
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclGetPeerDevicePointer(
    window: ncclWindow_t,
    offset: usize,
    peer: c_int,
    pointer: *mut *mut c_void,
) -> ncclResult_t {
    peer_pointer("ncclGetPeerDevicePointer", window, offset, peer, pointer)
}

/// All devices are on one host and have peer access, so the LSA team is the whole communicator.
#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclGetLsaDevicePointer(
    window: ncclWindow_t,
    offset: usize,
    lsa_rank: c_int,
    pointer: *mut *mut c_void,
) -> ncclResult_t {
    peer_pointer("ncclGetLsaDevicePointer", window, offset, lsa_rank, pointer)
}

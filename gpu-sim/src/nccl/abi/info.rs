//! Versions, errors, questions about a communicator.

use std::ffi::{c_char, c_int};
use std::sync::PoisonError;

use nccl_sys::{ncclComm_t, ncclCommMemStat_t, ncclResult_t};

use super::{Out, call};
use crate::nccl::error::{self, Failure};
use crate::world;

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> ncclResult_t {
    call("ncclGetVersion", |machine, _| {
        Out::new(version, "version")?.set(machine.nccl_release);
        Ok(())
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclGetErrorString(result: ncclResult_t) -> *const c_char {
    let machine = world::machine();
    let release = machine.as_ref().map_or(0, |machine| machine.nccl_release);
    if let Some(machine) = machine {
        let _ = machine.faults.gate("ncclGetErrorString");
    }
    let text = match result {
        ncclResult_t::ncclSuccess => c"no error",
        ncclResult_t::ncclUnhandledCudaError => {
            c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
        }
        ncclResult_t::ncclSystemError => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        ncclResult_t::ncclInternalError => {
            c"internal error - please report this issue to the NCCL developers"
        }
        ncclResult_t::ncclInvalidArgument => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        ncclResult_t::ncclInvalidUsage => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        ncclResult_t::ncclRemoteError => c"remote process exited or there was a network error",
        ncclResult_t::ncclInProgress if release >= 21400 => c"NCCL operation in progress",
        ncclResult_t::ncclTimeout if release >= 23003 => c"NCCL operation timed out",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclGetLastError(_comm: ncclComm_t) -> *const c_char {
    if let Some(machine) = world::machine() {
        let _ = machine.faults.gate("ncclGetLastError");
    }
    error::last()
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommGetAsyncError(
    comm: ncclComm_t,
    error: *mut ncclResult_t,
) -> ncclResult_t {
    call("ncclCommGetAsyncError", |machine, library| {
        let comm = library.comm(comm)?;
        let found = comm.async_error();
        Out::new(error, "asyncError")?.set(found);
        // The codes of a fault of this rank's device: in its collective, and of work that a fault has discarded.
        if matches!(found, ncclResult_t::ncclUnhandledCudaError | ncclResult_t::ncclRemoteError) {
            machine.contexts.faults_were_returned(comm.device);
        }
        Ok(())
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommCount(comm: ncclComm_t, count: *mut c_int) -> ncclResult_t {
    call("ncclCommCount", |_, library| {
        Out::new(count, "count")?.set(library.comm(comm)?.size as c_int);
        Ok(())
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommCuDevice(comm: ncclComm_t, device: *mut c_int) -> ncclResult_t {
    call("ncclCommCuDevice", |_, library| {
        Out::new(device, "device")?.set(library.comm(comm)?.device as c_int);
        Ok(())
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommUserRank(comm: ncclComm_t, rank: *mut c_int) -> ncclResult_t {
    call("ncclCommUserRank", |_, library| {
        Out::new(rank, "rank")?.set(library.comm(comm)?.rank as c_int);
        Ok(())
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommMemStats(
    comm: ncclComm_t,
    stat: ncclCommMemStat_t,
    value: *mut u64,
) -> ncclResult_t {
    call("ncclCommMemStats", |_, library| {
        let comm = library.comm(comm)?;
        let out = Out::new(value, "value")?;
        comm.usable()?;
        let scratch = comm.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let (persistent, buffers, is_suspended) = scratch
            .as_ref()
            .map_or((0, 0, false), |all| (all.persistent.size(), all.buffer_bytes, all.buffers.is_none()));
        out.set(match stat {
            ncclCommMemStat_t::ncclStatGpuMemSuspend => buffers,
            ncclCommMemStat_t::ncclStatGpuMemSuspended => u64::from(is_suspended),
            ncclCommMemStat_t::ncclStatGpuMemPersist => persistent,
            ncclCommMemStat_t::ncclStatGpuMemTotal => persistent + buffers,
            other => return Err(Failure::argument(format!("no statistic has the number {}", other.0))),
        });
        Ok(())
    })
}

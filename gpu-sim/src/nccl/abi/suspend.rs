//! Suspending a communicator: it releases the memory of its buffers until it is resumed.

use std::ffi::c_int;
use std::sync::PoisonError;

use nccl_sys::{NCCL_SUSPEND_MEM, ncclComm_t, ncclResult_t};

use super::queued;
use crate::nccl::error::Failure;
use crate::nccl::host::{self, Call};
use crate::nccl::{group, init};

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommSuspend(comm: ncclComm_t, flags: c_int) -> ncclResult_t {
    queued("ncclCommSuspend", |machine, library| {
        let comm = library.comm(comm)?;
        comm.usable()?;
        if flags != NCCL_SUSPEND_MEM as c_int {
            return Err(Failure::argument(format!("flags {flags:#x} of a suspension are not modelled")));
        }
        let (machine_, comm_) = (machine.clone(), comm.clone());
        let job = Box::new(move || {
            if comm_.is_suspended() {
                return Err(Failure::usage(format!("{comm_} is suspended already")));
            }
            machine_.streams.forbid_during_capture(&machine_, "ncclCommSuspend").map_err(group::cuda)?;
            machine_.streams.synchronize_device(comm_.device).map_err(group::cuda)?;
            host::exchange(&comm_, &host::card(Call::Suspend))?;
            let mut scratch = comm_.scratch.lock().unwrap_or_else(PoisonError::into_inner);
            drop(scratch.as_mut().and_then(|scratch| scratch.buffers.take()));
            Ok(())
        });
        group::add_job(machine, library, &comm, job)
    })
}

#[cfg_attr(feature = "exports", unsafe(no_mangle))]
pub(super) unsafe extern "C" fn ncclCommResume(comm: ncclComm_t) -> ncclResult_t {
    queued("ncclCommResume", |machine, library| {
        let comm = library.comm(comm)?;
        comm.usable()?;
        let (machine_, comm_) = (machine.clone(), comm.clone());
        let job = Box::new(move || {
            if !comm_.is_suspended() {
                return Err(Failure::usage(format!("{comm_} is not suspended")));
            }
            init::resume(&machine_, &comm_)?;
            host::exchange(&comm_, &host::card(Call::Resume))?;
            Ok(())
        });
        group::add_job(machine, library, &comm, job)
    })
}

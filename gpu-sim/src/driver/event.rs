//! Events.

use std::ffi::c_uint;

use cuda_driver_sys::{CUevent, CUipcEventHandle, CUresult, CUstream};

use crate::abi::DriverError;

/// `CU_EVENT_BLOCKING_SYNC`, `CU_EVENT_DISABLE_TIMING`.
const BLOCKING_SYNC: c_uint = 1;
const DISABLE_TIMING: c_uint = 2;

abi! {
    call fn cuEventCreate(machine, out: *mut CUevent, flags: c_uint) {
        let context = machine.current()?;
        if flags & !(BLOCKING_SYNC | DISABLE_TIMING) != 0 {
            return Err(DriverError::unsupported(format!("event flags {flags}: events between processes are not modelled")));
        }
        put!(out, machine.streams.create_event(context.id, flags & DISABLE_TIMING == 0).id as CUevent)?;
    }

    call fn cuEventDestroy_v2(machine, event: CUevent) {
        machine.streams.destroy_event(event)?;
    }

    call fn cuEventRecord(machine, event: CUevent, stream: CUstream) {
        machine.streams.event(event)?.record(machine, &machine.stream(stream)?)?;
    }

    call fn cuEventRecordWithFlags(machine, event: CUevent, stream: CUstream, flags: c_uint) {
        if flags != 0 {
            return Err(DriverError::unsupported("external event nodes are not modelled"));
        }
        machine.streams.event(event)?.record(machine, &machine.stream(stream)?)?;
    }

    call fn cuEventQuery(machine, event: CUevent) {
        let event = machine.streams.event(event)?;
        machine.streams.forbid_during_capture(machine, "cuEventQuery")?;
        let done = event.is_done()?;
        machine.contexts.get(event.context)?.check()?;
        if !done {
            return Err(CUresult::CUDA_ERROR_NOT_READY.into());
        }
    }

    call fn cuEventSynchronize(machine, event: CUevent) {
        let event = machine.streams.event(event)?;
        machine.streams.forbid_during_capture(machine, "cuEventSynchronize")?;
        event.synchronize()?;
        machine.contexts.get(event.context)?.check()?;
    }

    call fn cuIpcGetEventHandle(machine, out: *mut CUipcEventHandle, event: CUevent) {
        machine.streams.event(event)?;
        return Err(DriverError::new(CUresult::CUDA_ERROR_INVALID_HANDLE, "the event was not made for other processes (which is not modelled)"));
    }

    call fn cuIpcOpenEventHandle(machine, out: *mut CUevent, handle: CUipcEventHandle) {
        machine.current()?;
        return Err(DriverError::unsupported("events between processes are not modelled"));
    }

    call fn cuEventElapsedTime(machine, out: *mut f32, start: CUevent, end: CUevent) {
        let (start, end) = (machine.streams.event(start)?, machine.streams.event(end)?);
        put!(out, end.elapsed_since(&start)? as f32)?;
    }

    call fn cuEventElapsedTime_v2(machine, out: *mut f32, start: CUevent, end: CUevent) {
        let (start, end) = (machine.streams.event(start)?, machine.streams.event(end)?);
        put!(out, end.elapsed_since(&start)? as f32)?;
    }
}

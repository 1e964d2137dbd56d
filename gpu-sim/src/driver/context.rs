//! Contexts: primary and created, current and not, and access to peers.

use std::ffi::{c_int, c_uint, c_ulonglong};

use cuda_driver_sys::{CUcontext, CUctxCreateParams, CUdevice, CUexecAffinityParam, CUlimit, CUresult};

use crate::abi::{DriverError, DriverResult};
use crate::world::Machine;

abi! {
    call fn cuDevicePrimaryCtxRetain(machine, out: *mut CUcontext, device: CUdevice) {
        let context = machine.device(device)?.retain_primary(&machine.contexts);
        put!(out, context.id as CUcontext)?;
    }

    call fn cuDevicePrimaryCtxRelease_v2(machine, device: CUdevice) {
        if let Some(context) = machine.device(device)?.release_primary()? {
            machine.destroy_context(&context);
        }
    }

    call fn cuDevicePrimaryCtxReset_v2(machine, device: CUdevice) {
        if let Some(context) = machine.device(device)?.reset_primary() {
            machine.destroy_context(&context);
        }
    }

    call fn cuDevicePrimaryCtxGetState(machine, device: CUdevice, flags: *mut c_uint, active: *mut c_int) {
        let (set, alive) = machine.device(device)?.primary_state();
        put!(flags, set)?;
        put!(active, c_int::from(alive))?;
    }

    call fn cuDevicePrimaryCtxSetFlags_v2(machine, device: CUdevice, flags: c_uint) {
        machine.device(device)?.set_primary_flags(flags);
    }

    call fn cuCtxCreate_v3(
        machine, out: *mut CUcontext, affinity: *mut CUexecAffinityParam, affinities: c_int, flags: c_uint,
        device: CUdevice,
    ) {
        if affinities != 0 {
            return Err(DriverError::unsupported("execution affinity is not modelled"));
        }
        put!(out, create(machine, device, flags)?)?;
    }

    call fn cuCtxCreate_v4(
        machine, out: *mut CUcontext, parameters: *mut CUctxCreateParams, flags: c_uint, device: CUdevice,
    ) {
        if !parameters.is_null() {
            return Err(DriverError::unsupported("parameters of contexts are not modelled"));
        }
        put!(out, create(machine, device, flags)?)?;
    }

    call fn cuCtxDestroy_v2(machine, context: CUcontext) {
        let context = machine.contexts.get(context as u64)?;
        if context.primary {
            return Err(DriverError::new(CUresult::CUDA_ERROR_INVALID_CONTEXT, "a primary context is released, not destroyed"));
        }
        if machine.current_handle() == Some(context.id) {
            machine.set_current(None);
        }
        machine.destroy_context(&context);
    }

    call fn cuCtxSetCurrent(machine, context: CUcontext) {
        let wanted = context as u64;
        if wanted != 0 {
            machine.contexts.get(wanted)?;
        }
        machine.set_current((wanted != 0).then_some(wanted));
    }

    call fn cuCtxGetCurrent(machine, out: *mut CUcontext) {
        put!(out, machine.current_handle().unwrap_or(0) as CUcontext)?;
    }

    call fn cuCtxPushCurrent_v2(machine, context: CUcontext) {
        machine.push_current(machine.contexts.get(context as u64)?.id);
    }

    call fn cuCtxPopCurrent_v2(machine, out: *mut CUcontext) {
        let popped = machine.pop_current();
        let popped = popped.ok_or_else(|| DriverError::new(CUresult::CUDA_ERROR_INVALID_CONTEXT, "no context is current"))?;
        if !out.is_null() {
            put!(out, popped as CUcontext)?;
        }
    }

    call fn cuCtxGetDevice(machine, out: *mut CUdevice) {
        put!(out, machine.current_even_poisoned()?.device as CUdevice)?;
    }

    call fn cuCtxGetDevice_v2(machine, out: *mut CUdevice, context: CUcontext) {
        put!(out, of(machine, context)?.device as CUdevice)?;
    }

    call fn cuCtxGetFlags(machine, out: *mut c_uint) {
        put!(out, machine.current()?.flags)?;
    }

    call fn cuCtxGetId(machine, context: CUcontext, out: *mut c_ulonglong) {
        put!(out, of(machine, context)?.id)?;
    }

    call fn cuCtxGetApiVersion(machine, context: CUcontext, out: *mut c_uint) {
        of(machine, context)?;
        put!(out, 3020)?;
    }

    call fn cuCtxSynchronize(machine) {
        synchronize(machine, std::ptr::null_mut())?;
    }

    call fn cuCtxSynchronize_v2(machine, context: CUcontext) {
        synchronize(machine, context)?;
    }

    call fn cuCtxGetStreamPriorityRange(machine, least: *mut c_int, greatest: *mut c_int) {
        machine.current()?;
        if !least.is_null() {
            put!(least, super::stream::LEAST_PRIORITY)?;
        }
        if !greatest.is_null() {
            put!(greatest, super::stream::GREATEST_PRIORITY)?;
        }
    }

    call fn cuCtxGetLimit(machine, out: *mut usize, limit: CUlimit) {
        put!(out, machine.current()?.limit(limit)?)?;
    }

    call fn cuCtxSetLimit(machine, limit: CUlimit, value: usize) {
        machine.current()?.set_limit(limit, value)?;
    }

    call fn cuCtxEnablePeerAccess(machine, peer: CUcontext, flags: c_uint) {
        let (own, peer) = (machine.current()?, machine.contexts.get(peer as u64)?);
        if flags != 0 {
            return Err(DriverError::invalid(format!("peer access with flags {flags}, which must be 0")));
        }
        if own.device == peer.device {
            return Err(DriverError::new(CUresult::CUDA_ERROR_INVALID_DEVICE, "a device is not its own peer"));
        }
        if !machine.devices[own.device].peers.set(peer.device, true) {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED.into());
        }
    }

    call fn cuCtxDisablePeerAccess(machine, peer: CUcontext) {
        let (own, peer) = (machine.current()?, machine.contexts.get(peer as u64)?);
        if !machine.devices[own.device].peers.set(peer.device, false) {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED.into());
        }
    }
}

/// Returns a given context; null is the current one.
fn of(machine: &Machine, context: CUcontext) -> DriverResult<std::sync::Arc<crate::device::Context>> {
    if context.is_null() { machine.current_even_poisoned() } else { machine.contexts.get(context as u64) }
}

fn create(machine: &Machine, device: CUdevice, flags: c_uint) -> DriverResult<CUcontext> {
    let device = machine.device(device)?.ordinal;
    let context = machine.contexts.create(device, false, flags);
    machine.push_current(context.id);
    Ok(context.id as CUcontext)
}

fn synchronize(machine: &Machine, context: CUcontext) -> DriverResult {
    let context = of(machine, context)?;
    context.check()?;
    for stream in machine.streams.of_context(context.id) {
        stream.refuse_while_capturing("synchronising the context")?;
    }
    machine.streams.forbid_during_capture(machine, "cuCtxSynchronize")?;
    machine.streams.synchronize_context(&context)?;
    context.check()
}

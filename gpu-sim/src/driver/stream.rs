//! Streams and host functions.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::Arc;

use cuda_driver_sys::{
    CUcontext, CUdevice, CUevent, CUgraphNodeType, CUgreenCtx, CUhostFn, CUresult, CUstream, CUstreamCallback,
};

use crate::abi::{DriverError, DriverResult};
use crate::sched;
use crate::stream::{Exec, Op, Repeat, StreamKind};
use crate::world::Machine;

/// Stream priorities: numerically, least to greatest.
pub(super) const LEAST_PRIORITY: c_int = 0;
pub(super) const GREATEST_PRIORITY: c_int = -5;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

abi! {
    call fn cuStreamCreate(machine, out: *mut CUstream, flags: c_uint) {
        create(machine, out, flags, 0)?;
    }

    call fn cuStreamCreateWithPriority(machine, out: *mut CUstream, flags: c_uint, priority: c_int) {
        create(machine, out, flags, priority.clamp(GREATEST_PRIORITY, LEAST_PRIORITY))?;
    }

    call fn cuStreamDestroy_v2(machine, stream: CUstream) {
        let known = machine.stream_even_poisoned(stream)?;
        if !known.flavour.is_created() {
            return Err(DriverError::new(CUresult::CUDA_ERROR_INVALID_HANDLE, "a default stream cannot be destroyed"));
        }
        if let Some(capturing) = known.capturing() {
            capturing.session.invalidate(format!("{} was destroyed", known.name));
        }
        // Queued work still runs; the executor keeps the stream alive.
        machine.streams.destroy(known.id)?;
    }

    call fn cuStreamSynchronize(machine, stream: CUstream) {
        let stream = machine.stream(stream)?;
        stream.refuse_while_capturing("synchronising")?;
        machine.streams.forbid_during_capture(machine, "cuStreamSynchronize")?;
        stream.wait_all()?;
        stream.context.check()?;
    }

    call fn cuStreamQuery(machine, stream: CUstream) {
        let stream = machine.stream(stream)?;
        stream.refuse_while_capturing("a query")?;
        machine.streams.forbid_during_capture(machine, "cuStreamQuery")?;
        if !stream.is_idle() {
            return Err(CUresult::CUDA_ERROR_NOT_READY.into());
        }
        stream.context.check()?;
    }

    call fn cuStreamWaitEvent(machine, stream: CUstream, event: CUevent, flags: c_uint) {
        let (stream, event) = (machine.stream(stream)?, machine.streams.event(event)?);
        if flags != 0 {
            return Err(DriverError::unsupported(format!("waits for events with flags {flags} are not modelled")));
        }
        event.make_stream_wait(machine, &stream)?;
    }

    call fn cuStreamGetPriority(machine, stream: CUstream, out: *mut c_int) {
        put!(out, machine.stream(stream)?.priority)?;
    }

    call fn cuStreamGetFlags(machine, stream: CUstream, out: *mut c_uint) {
        let flags = if machine.stream(stream)?.flavour == StreamKind::NonBlocking { NON_BLOCKING } else { 0 };
        put!(out, flags)?;
    }

    call fn cuStreamGetId(machine, stream: CUstream, out: *mut c_ulonglong) {
        put!(out, machine.stream(stream)?.id)?;
    }

    call fn cuStreamGetCtx(machine, stream: CUstream, out: *mut CUcontext) {
        put!(out, machine.stream(stream)?.context.id as CUcontext)?;
    }

    call fn cuStreamGetCtx_v2(machine, stream: CUstream, out: *mut CUcontext, green: *mut CUgreenCtx) {
        put!(out, machine.stream(stream)?.context.id as CUcontext)?;
        if !green.is_null() {
            put!(green, std::ptr::null_mut())?;
        }
    }

    call fn cuStreamGetDevice(machine, stream: CUstream, out: *mut CUdevice) {
        put!(out, machine.stream(stream)?.context.device as CUdevice)?;
    }

    call fn cuLaunchHostFunc(machine, stream: CUstream, function: CUhostFn, data: *mut c_void) {
        let stream = machine.stream(stream)?;
        let function = function.ok_or_else(|| DriverError::invalid("a null host function"))?;
        let data = data as usize;
        let work = Repeat::new("a host function", move |_: &Exec| {
            // SAFETY: the program gave function and data together, to be called once for each launch.
            sched::blocking(|| unsafe { function(data as *mut c_void) });
            Ok(())
        });
        stream.enqueue(machine, CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST, work)?;
    }

    call fn cuStreamAddCallback(
        machine, stream: CUstream, callback: CUstreamCallback, data: *mut c_void, flags: c_uint,
    ) {
        let stream = machine.stream(stream)?;
        let callback = callback.ok_or_else(|| DriverError::invalid("a null callback"))?;
        if flags != 0 {
            return Err(DriverError::invalid(format!("flags {flags}, which must be 0")));
        }
        stream.make_room();
        stream.refuse_while_capturing("a callback")?;
        let (data, handle, context) = (data as usize, stream.handle() as usize, stream.context.clone());
        let run = Box::new(move |_: &Exec| {
            let status = context.check().err().map_or(CUresult::CUDA_SUCCESS, |refusal| refusal.code);
            // SAFETY: the program gave callback and data together, to be called once.
            sched::blocking(|| unsafe { callback(handle as CUstream, status, data as *mut c_void) });
            Ok(())
        });
        stream.push(machine, Op { what: "a callback".to_owned(), run, always: true, after: Vec::new() });
    }
}

fn create(machine: &Arc<Machine>, out: *mut CUstream, flags: c_uint, priority: c_int) -> DriverResult {
    let context = machine.current()?;
    let flavour = match flags {
        0 => StreamKind::Blocking,
        NON_BLOCKING => StreamKind::NonBlocking,
        other => return Err(DriverError::invalid(format!("stream flags {other}"))),
    };
    put!(out, machine.streams.create(&context, flavour, priority).handle())
}

//! Stream-ordered allocation from the devices' default pools.
//!
//! Memory is there when the call returns and goes when the stream reaches the free; pools keep nothing back. Pools
//! of one's own, exports, and allocation inside captures are not modelled.

use std::sync::Arc;

use cuda_driver_sys::{CUdevice, CUdeviceptr, CUmemoryPool, CUresult, CUstream};

use super::memory::allocate;
use crate::abi::{Answer, Refusal};
use crate::memory::Kind;
use crate::stream::{Exec, Op};
use crate::world::Machine;

/// Handles of the default pools: this and the device's ordinal.
const FIRST: u64 = 0x9001_0000;

abi! {
    call fn cuDeviceGetDefaultMemPool(machine, out: *mut CUmemoryPool, device: CUdevice) {
        put!(out, (FIRST + machine.device(device)?.ordinal as u64) as CUmemoryPool)?;
    }

    call fn cuDeviceGetMemPool(machine, out: *mut CUmemoryPool, device: CUdevice) {
        put!(out, (FIRST + machine.device(device)?.ordinal as u64) as CUmemoryPool)?;
    }

    call fn cuMemPoolTrimTo(machine, pool: CUmemoryPool, keep: usize) {
        device_of(machine, pool)?;
    }

    call fn cuMemAllocAsync(machine, out: *mut CUdeviceptr, bytes: usize, stream: CUstream) {
        let device = machine.stream(stream)?.context.device;
        allocate_async(machine, out, bytes, device, stream)?;
    }

    call fn cuMemAllocFromPoolAsync(
        machine, out: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream,
    ) {
        allocate_async(machine, out, bytes, device_of(machine, pool)?, stream)?;
    }

    call fn cuMemFreeAsync(machine, pointer: CUdeviceptr, stream: CUstream) {
        let stream = machine.stream(stream)?;
        stream.refuse_while_capturing("a stream-ordered free (not modelled)")?;
        let is_ours = |kind: &Kind| matches!(kind, Kind::Allocation { .. } | Kind::Pooled { .. });
        if !machine.memory.space().at(pointer).is_some_and(|m| m.base == pointer && is_ours(&m.kind)) {
            return Err(Refusal::invalid(format!("{pointer:#x} is no allocation's base")));
        }
        let run = Box::new(move |exec: &Exec| {
            let gone = exec.machine().memory.space().remove_whole(pointer, is_ours, "cuMemFreeAsync");
            if let Err(error) = gone {
                exec.machine().misuse(format!("{}: {error}", exec.stream_name()));
            }
            Ok(())
        });
        let what = format!("the free of {pointer:#x}");
        stream.push(machine, Op { what, run, always: true, after: Vec::new() });
    }
}

fn device_of(machine: &Machine, pool: CUmemoryPool) -> Answer<usize> {
    let ordinal = (pool as u64).checked_sub(FIRST).and_then(|o| i32::try_from(o).ok());
    let device = ordinal.and_then(|o| machine.device(o).ok());
    let device = device
        .ok_or_else(|| Refusal::new(CUresult::CUDA_ERROR_INVALID_HANDLE, format!("{pool:p} is no pool")))?;
    Ok(device.ordinal)
}

fn allocate_async(
    machine: &Arc<Machine>,
    out: *mut CUdeviceptr,
    bytes: usize,
    device: usize,
    stream: CUstream,
) -> Answer {
    let stream = machine.stream(stream)?;
    stream.refuse_while_capturing("a stream-ordered allocation (not modelled)")?;
    let kind = Kind::Pooled { context: stream.context.id };
    let pointer = match allocate(machine, device, bytes as u64, kind.clone()) {
        Err(refusal) if refusal.code == CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            // Frees that streams have not reached yet may make room.
            machine.streams.synchronize_device(device)?;
            allocate(machine, device, bytes as u64, kind)?
        }
        other => other?,
    };
    put!(out, pointer)
}

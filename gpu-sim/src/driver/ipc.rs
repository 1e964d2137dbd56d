//! Legacy interprocess memory handles.

use std::ffi::{c_char, c_uint};

use cuda_driver_sys::{CUdeviceptr, CUipcMemHandle, CUresult};

use crate::abi::DriverError;
use crate::memory::{Kind, ipc};

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which must be set.
const LAZY_PEER_ACCESS: c_uint = 1;

abi! {
    call fn cuIpcGetMemHandle(machine, out: *mut CUipcMemHandle, pointer: CUdeviceptr) {
        machine.current()?;
        let mapped = machine.memory.space().at(pointer).cloned();
        let mapped = mapped.filter(|m| matches!(m.kind, Kind::Allocation { .. }));
        let mapped = mapped.ok_or_else(|| DriverError::invalid(format!("{pointer:#x} is not inside memory of cuMemAlloc")))?;
        put!(out, CUipcMemHandle { reserved: ipc::name_of(&mapped).map(|b| b as c_char) })?;
    }

    call fn cuIpcOpenMemHandle_v2(machine, out: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) {
        let context = machine.current()?;
        if flags != LAZY_PEER_ACCESS {
            return Err(DriverError::invalid(format!("flags {flags}, which must be {LAZY_PEER_ACCESS}")));
        }
        let (physical, len) = ipc::open(&handle.reserved.map(|b| b as u8))?;
        machine.device(physical.device() as i32)?;
        let kind = Kind::Ipc { context: context.id };
        put!(out, machine.memory.space().insert_whole(machine.memory.region(), physical, len, kind)?)?;
    }

    call fn cuIpcCloseMemHandle(machine, pointer: CUdeviceptr) {
        let context = machine.current()?;
        machine.streams.synchronize_device(context.device)?;
        let ours = |kind: &Kind| matches!(kind, Kind::Ipc { .. });
        let gone = machine.memory.space().remove_whole(pointer, ours, "cuIpcCloseMemHandle");
        let gone = gone.map_err(|e| DriverError::new(CUresult::CUDA_ERROR_INVALID_VALUE, e.to_string()))?;
        drop(gone);
    }
}

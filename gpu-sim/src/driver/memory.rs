//! Plain device memory, pinned host memory, and pointer attributes.

use std::ffi::{c_int, c_uint, c_void};

use cuda_driver_sys::{CUcontext, CUdeviceptr, CUmemorytype, CUpointer_attribute, CUresult};

use crate::abi::{DriverError, DriverResult};
use crate::memory::{Kind, PAGE, Place, classify, round_up};
use crate::world::Machine;

abi! {
    call fn cuMemGetInfo_v2(machine, free: *mut usize, total: *mut usize) {
        let arena = &machine.devices[machine.current()?.device].arena;
        put!(free, arena.free() as usize)?;
        put!(total, arena.capacity() as usize)?;
    }

    call fn cuMemAlloc_v2(machine, out: *mut CUdeviceptr, bytes: usize) {
        let context = machine.current()?;
        machine.streams.forbid_during_capture(machine, "cuMemAlloc")?;
        put!(out, allocate(machine, context.device, bytes as u64, Kind::Allocation { context: context.id })?)?;
    }

    call fn cuMemFree_v2(machine, pointer: CUdeviceptr) {
        let context = machine.current()?;
        machine.streams.forbid_during_capture(machine, "cuMemFree")?;
        if pointer == 0 {
            return Ok(());
        }
        // The driver waits for all work that may still use the memory.
        machine.streams.synchronize_device(context.device)?;
        let wanted = |kind: &Kind| matches!(kind, Kind::Allocation { .. } | Kind::Pooled { .. });
        let gone = machine.memory.space().remove_whole(pointer, wanted, "cuMemFree")?;
        super::pool::record_free(machine, &gone.kind, gone.physical.size());
        drop(gone);
    }

    call fn cuMemGetAddressRange_v2(machine, base: *mut CUdeviceptr, size: *mut usize, pointer: CUdeviceptr) {
        let device = machine.current()?.device;
        if base.is_null() && size.is_null() {
            return Ok(());
        }
        let found = match machine.memory.region().contains(pointer) {
            true => machine.memory.space().mapping_around(pointer, device),
            false => range_around(machine, pointer),
        };
        let (start, len) = found.ok_or_else(|| {
            DriverError::new(CUresult::CUDA_ERROR_NOT_FOUND, format!("nothing is at {pointer:#x}{}", machine.memory.space().explain(pointer)))
        })?;
        if !base.is_null() {
            put!(base, start)?;
        }
        if !size.is_null() {
            put!(size, len as usize)?;
        }
    }

    call fn cuMemHostAlloc(machine, out: *mut *mut c_void, bytes: usize, flags: c_uint) {
        pin(machine, out, bytes, flags)?;
    }

    call fn cuMemAllocHost_v2(machine, out: *mut *mut c_void, bytes: usize) {
        pin(machine, out, bytes, 0)?;
    }

    call fn cuMemFreeHost(machine, pointer: *mut c_void) {
        let context = machine.current()?;
        machine.streams.forbid_during_capture(machine, "cuMemFreeHost")?;
        machine.streams.synchronize_device(context.device)?;
        let gone = machine.memory.host().remove(pointer as u64, true)?;
        drop(gone);
    }

    call fn cuMemHostRegister_v2(machine, pointer: *mut c_void, bytes: usize, flags: c_uint) {
        machine.current()?;
        machine.streams.forbid_during_capture(machine, "cuMemHostRegister")?;
        machine.memory.host().register(pointer as u64, bytes as u64, flags)?;
    }

    call fn cuMemHostUnregister(machine, pointer: *mut c_void) {
        let context = machine.current()?;
        machine.streams.synchronize_device(context.device)?;
        let gone = machine.memory.host().remove(pointer as u64, false)?;
        drop(gone);
    }

    call fn cuMemHostGetDevicePointer_v2(machine, out: *mut CUdeviceptr, pointer: *mut c_void, flags: c_uint) {
        machine.current()?;
        if flags != 0 {
            return Err(DriverError::invalid(format!("flags {flags}, which must be 0")));
        }
        if machine.memory.host().at(pointer as u64).is_none() {
            return Err(DriverError::invalid(format!("{pointer:p} is not pinned")));
        }
        put!(out, pointer as CUdeviceptr)?;
    }

    call fn cuMemHostGetFlags(machine, out: *mut c_uint, pointer: *mut c_void) {
        machine.current()?;
        let flags = machine.memory.host().at(pointer as u64).map(|p| p.flags);
        put!(out, flags.ok_or_else(|| DriverError::invalid(format!("{pointer:p} is not pinned")))?)?;
    }

    call fn cuPointerGetAttribute(machine, data: *mut c_void, attribute: CUpointer_attribute, pointer: CUdeviceptr) {
        if matches!(classify(&machine.memory, pointer), Place::Pageable) || range_around(machine, pointer).is_none() {
            return Err(DriverError::invalid(format!("{pointer:#x} is no live device or pinned pointer")));
        }
        if !describe(machine, data, attribute, pointer)? {
            return Err(DriverError::invalid(format!("{attribute:?} does not apply to {pointer:#x}")));
        }
    }

    call fn cuPointerGetAttributes(
        machine, count: c_uint, attributes: *mut CUpointer_attribute, data: *mut *mut c_void, pointer: CUdeviceptr,
    ) {
        let attributes = list!(attributes.cast_const(), count as usize)?;
        let data = list!(data.cast_const(), count as usize)?;
        for (attribute, data) in attributes.into_iter().zip(data) {
            // Attributes that do not apply are zero for any pointer, like in the driver.
            if !describe(machine, data, attribute, pointer)? {
                match width(attribute) {
                    Width::Pointer => put!(data.cast::<u64>(), 0)?,
                    Width::Int if attribute == CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => {
                        put!(data.cast::<c_int>(), -2)?;
                    }
                    Width::Int => put!(data.cast::<c_int>(), 0)?,
                    Width::Bool => put!(data.cast::<u8>(), 0)?,
                }
            }
        }
    }
}

/// Allocates plain memory of a device. `bytes` are valid; whole pages count against the capacity.
pub(super) fn allocate(
    machine: &Machine,
    device: usize,
    bytes: u64,
    kind: Kind,
) -> DriverResult<CUdeviceptr> {
    let room = round_up(bytes, PAGE).filter(|_| bytes > 0);
    let room = room.ok_or_else(|| DriverError::invalid(format!("an allocation of {bytes} bytes")))?;
    let physical = machine.devices[device].arena.allocate(room, 0)?;
    Ok(machine.memory.space().insert_whole(machine.memory.region(), physical, bytes, kind)?)
}

fn pin(machine: &Machine, out: *mut *mut c_void, bytes: usize, flags: c_uint) -> DriverResult {
    machine.current()?;
    machine.streams.forbid_during_capture(machine, "cuMemHostAlloc")?;
    let base = machine.memory.host().allocate(bytes as u64, flags)?;
    put!(out, base as *mut c_void)
}

/// Base and length of the allocation or reservation that contains `pointer`.
fn range_around(machine: &Machine, pointer: CUdeviceptr) -> Option<(u64, u64)> {
    if machine.memory.region().contains(pointer) {
        return machine.memory.space().range_around(pointer);
    }
    machine.memory.host().at(pointer).map(|p| (p.base, p.len))
}

/// C type of an attribute's value.
enum Width {
    Pointer,
    Int,
    Bool,
}

fn width(attribute: CUpointer_attribute) -> Width {
    use CUpointer_attribute as A;
    match attribute {
        A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        | A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        | A::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => Width::Int,
        A::CU_POINTER_ATTRIBUTE_IS_MANAGED
        | A::CU_POINTER_ATTRIBUTE_MAPPED
        | A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
        | A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => Width::Bool,
        _ => Width::Pointer,
    }
}

/// Writes an attribute. Returns false if it does not apply to the pointer.
fn describe(
    machine: &Machine,
    data: *mut c_void,
    attribute: CUpointer_attribute,
    pointer: CUdeviceptr,
) -> DriverResult<bool> {
    use CUpointer_attribute as A;
    let mapped = machine.memory.space().at(pointer).cloned();
    let pinned = machine.memory.host().at(pointer).cloned();
    let known = mapped.is_some() || pinned.is_some();
    let virtual_ = mapped.as_ref().is_some_and(|m| matches!(m.kind, Kind::Virtual { .. }));
    let context = mapped.as_ref().and_then(|m| match m.kind {
        Kind::Allocation { context }
        | Kind::Pooled { context, .. }
        | Kind::Ipc { context }
        | Kind::Variable { context } => Some(context),
        Kind::Virtual { .. } => None,
    });
    match attribute {
        A::CU_POINTER_ATTRIBUTE_CONTEXT if known => {
            put!(data.cast::<CUcontext>(), context.unwrap_or(0) as CUcontext)?
        }
        A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE if mapped.is_some() => {
            put!(data.cast::<c_uint>(), CUmemorytype::CU_MEMORYTYPE_DEVICE.0)?;
        }
        A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE if pinned.is_some() => {
            put!(data.cast::<c_uint>(), CUmemorytype::CU_MEMORYTYPE_HOST.0)?;
        }
        A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER if known => put!(data.cast::<CUdeviceptr>(), pointer)?,
        A::CU_POINTER_ATTRIBUTE_HOST_POINTER if pinned.is_some() => put!(data.cast::<u64>(), pointer)?,
        A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL if known => {
            let device = match &mapped {
                Some(mapped) => mapped.physical.device() as c_int,
                None => machine.current_even_poisoned().map_or(0, |c| c.device as c_int),
            };
            put!(data.cast::<c_int>(), device)?;
        }
        A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR if known => {
            put!(data.cast::<u64>(), range_around(machine, pointer).map_or(0, |r| r.0))?;
        }
        A::CU_POINTER_ATTRIBUTE_RANGE_SIZE if known => {
            put!(data.cast::<usize>(), range_around(machine, pointer).map_or(0, |r| r.1 as usize))?;
        }
        A::CU_POINTER_ATTRIBUTE_MAPPED => put!(data.cast::<u8>(), known.into())?,
        A::CU_POINTER_ATTRIBUTE_IS_MANAGED => put!(data.cast::<u8>(), 0)?,
        A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS if known => put!(data.cast::<u8>(), 0)?,
        A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
            let plain = mapped.as_ref().is_some_and(|m| matches!(m.kind, Kind::Allocation { .. }));
            put!(data.cast::<u8>(), plain.into())?;
        }
        A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES if known => {
            let kinds = mapped.as_ref().filter(|_| virtual_).map_or(0, |m| m.physical.kinds());
            put!(data.cast::<u64>(), u64::from(kinds))?;
        }
        A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE if known => put!(data.cast::<u64>(), 0)?,
        A::CU_POINTER_ATTRIBUTE_BUFFER_ID if mapped.is_some() => {
            // Handles and bases are never reused in a world.
            let id = mapped.as_ref().map_or(0, |m| match m.kind {
                Kind::Virtual { handle } => handle,
                _ => m.base,
            });
            put!(data.cast::<u64>(), id)?;
        }
        A::CU_POINTER_ATTRIBUTE_CONTEXT
        | A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        | A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER
        | A::CU_POINTER_ATTRIBUTE_HOST_POINTER
        | A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        | A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
        | A::CU_POINTER_ATTRIBUTE_RANGE_SIZE
        | A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
        | A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES
        | A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
        | A::CU_POINTER_ATTRIBUTE_BUFFER_ID => return Ok(false),
        other => return Err(DriverError::unsupported(format!("{other:?} is not modelled"))),
    }
    Ok(true)
}

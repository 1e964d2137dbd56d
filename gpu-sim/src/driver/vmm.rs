//! Virtual memory: physical handles, reservations, mappings, access rights, export and import.

use std::ffi::{c_ulonglong, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};

use cuda_driver_sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType, CUmemGenericAllocationHandle,
    CUmemLocation, CUmemLocationType, CUresult,
};

use crate::abi::{DriverError, DriverResult};
use crate::memory::{Access, GRANULARITY, Kind, Physical};
use crate::world::Machine;

use super::fabric;

const POSIX_FD: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const FABRIC: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;

abi! {
    call fn cuMemGetAllocationGranularity(
        machine, out: *mut usize, properties: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags,
    ) {
        requested(machine, &get!(properties)?)?;
        put!(out, GRANULARITY as usize)?;
    }

    call fn cuMemCreate(
        machine, out: *mut CUmemGenericAllocationHandle, bytes: usize, properties: *const CUmemAllocationProp,
        flags: c_ulonglong,
    ) {
        let (device, kinds) = requested(machine, &get!(properties)?)?;
        let bytes = bytes as u64;
        if flags != 0 || bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(DriverError::invalid(format!(
                "{bytes} bytes with flags {flags}: the size must be a multiple of {GRANULARITY}, the flags 0"
            )));
        }
        let physical = machine.devices[device].arena.allocate(bytes, kinds)?;
        put!(out, machine.memory.handles().add(physical))?;
    }

    call fn cuMemRelease(machine, handle: CUmemGenericAllocationHandle) {
        machine.memory.handles().release(handle)?;
    }

    call fn cuMemRetainAllocationHandle(machine, out: *mut CUmemGenericAllocationHandle, address: *mut c_void) {
        let mapped = machine.memory.space().at(address as u64).cloned();
        let Some((mapped, known_as)) = mapped.and_then(|m| match m.kind {
            Kind::Virtual { handle } => Some((m.clone(), handle)),
            _ => None,
        }) else {
            return Err(DriverError::invalid(format!("nothing is mapped by handle at {address:p}")));
        };
        put!(out, machine.memory.handles().retain(&mapped.physical, known_as))?;
    }

    call fn cuMemGetAllocationPropertiesFromHandle(
        machine, out: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle,
    ) {
        let physical = machine.memory.handles().get(handle)?.clone();
        // The handle types requested at creation; imported memory was not created in this process.
        let asked = physical.is_exportable() && !physical.is_imported();
        let handles = CUmemAllocationHandleType(if asked { physical.kinds() } else { 0 });
        put!(out, CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: handles,
            location: location(physical.device()),
            ..CUmemAllocationProp::default()
        })?;
    }

    call fn cuMemAddressReserve(
        machine, out: *mut CUdeviceptr, bytes: usize, alignment: usize, wish: CUdeviceptr, flags: c_ulonglong,
    ) {
        if flags != 0 {
            return Err(DriverError::invalid(format!("flags {flags}, which must be 0")));
        }
        let memory = &machine.memory;
        put!(out, memory.space().reserve(memory.region(), bytes as u64, alignment as u64, wish)?)?;
    }

    call fn cuMemAddressFree(machine, start: CUdeviceptr, bytes: usize) {
        machine.memory.space().unreserve(start, bytes as u64)?;
    }

    call fn cuMemMap(
        machine, base: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle,
        flags: c_ulonglong,
    ) {
        if flags != 0 {
            return Err(DriverError::invalid(format!("flags {flags}, which must be 0")));
        }
        let physical = machine.memory.handles().get(handle)?.clone();
        machine.memory.space().map(base, bytes as u64, offset as u64, handle, &physical)?;
    }

    call fn cuMemUnmap(machine, base: CUdeviceptr, bytes: usize) {
        let gone = machine.memory.space().unmap(base, bytes as u64)?;
        if gone.iter().any(|mapped| std::sync::Arc::strong_count(mapped) > 1) {
            machine.misuse(format!("cuMemUnmap of {bytes} bytes at {base:#x} while a device uses them"));
        }
    }

    call fn cuMemSetAccess(machine, base: CUdeviceptr, bytes: usize, rights: *const CUmemAccessDesc, count: usize) {
        let rights = list!(rights, count)?;
        let rights: Vec<(usize, Access)> = rights
            .iter()
            .map(|right| Ok((device_of(machine, &right.location)?, access_of(right.flags)?)))
            .collect::<DriverResult<_>>()?;
        machine.memory.space().set_access(base, bytes as u64, &rights)?;
    }

    call fn cuMemGetAccess(machine, out: *mut c_ulonglong, at: *const CUmemLocation, pointer: CUdeviceptr) {
        let device = device_of(machine, &get!(at)?)?;
        let rights = machine.memory.space().access_of(device, pointer);
        let rights = rights.ok_or_else(|| DriverError::invalid(format!("nothing is mapped at {pointer:#x}")))?;
        put!(out, u64::from(rights.bits()))?;
    }

    call fn cuMemExportToShareableHandle(
        machine, out: *mut c_void, handle: CUmemGenericAllocationHandle, kind: CUmemAllocationHandleType,
        flags: c_ulonglong,
    ) {
        check_kind(machine, kind)?;
        let physical = machine.memory.handles().get(handle)?.clone();
        if flags != 0 || physical.kinds() & kind.0 == 0 {
            return Err(DriverError::invalid(format!(
                "exporting {handle:#x} with flags {flags}: the flags must be 0, and the memory created with that shareable handle type"
            )));
        }
        if !physical.can_leave() {
            let why = "memory of a world of one thread cannot be shared with other processes";
            return Err(DriverError::new(CUresult::CUDA_ERROR_NOT_SUPPORTED, why));
        }
        if kind == FABRIC {
            let word = fabric::export(&physical).map_err(|e| DriverError::new(CUresult::CUDA_ERROR_OPERATING_SYSTEM, e))?;
            return put!(out.cast::<[u8; 64]>(), word);
        }
        let file = physical.file().try_clone_to_owned();
        let file = file.map_err(|e| DriverError::new(CUresult::CUDA_ERROR_OPERATING_SYSTEM, format!("duplicating the memory's file: {e}")))?;
        put!(out.cast::<RawFd>(), file.into_raw_fd())?;
    }

    call fn cuMemImportFromShareableHandle(
        machine, out: *mut CUmemGenericAllocationHandle, file: *mut c_void, kind: CUmemAllocationHandleType,
    ) {
        check_kind(machine, kind)?;
        if kind == FABRIC {
            let word = get!(file.cast::<[u8; 64]>().cast_const())?;
            let file = fabric::open(&word).map_err(|e| DriverError::new(CUresult::CUDA_ERROR_INVALID_HANDLE, e))?;
            let physical = Physical::import(file, None)?;
            machine.device(physical.device() as i32)?;
            return put!(out, machine.memory.handles().add(physical));
        }
        // The descriptor's number is passed as a pointer: 0 is NULL, and refused as such.
        let number = RawFd::try_from(file as i64).ok().filter(|&n| n > 0);
        let number = number
            .ok_or_else(|| DriverError::invalid(format!("{} is no file descriptor above 0", file as i64)))?;
        // SAFETY: the caller passes an open descriptor and keeps it open for the call; it stays the caller's.
        let file = unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned();
        let file = file.map_err(|e| DriverError::invalid(format!("file descriptor {number}: {e}")))?;
        let physical = Physical::import(file, None)?;
        machine.device(physical.device() as i32)?;
        put!(out, machine.memory.handles().add(physical))?;
    }
}

/// The device on which memory is requested, and the handle types that it must be exportable as.
fn requested(machine: &Machine, properties: &CUmemAllocationProp) -> DriverResult<(usize, u32)> {
    if properties.type_ != CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(DriverError::invalid(format!("memory of type {:?} is not modelled", properties.type_)));
    }
    let kinds = properties.requestedHandleTypes.0;
    let granted = POSIX_FD.0 | if machine.fabric { FABRIC.0 } else { 0 };
    if kinds & !granted != 0 {
        return Err(DriverError::unsupported(format!(
            "memory with handles of types {kinds:#x}: there are {granted:#x}"
        )));
    }
    Ok((device_of(machine, &properties.location)?, kinds))
}

pub(super) fn device_of(machine: &Machine, at: &CUmemLocation) -> DriverResult<usize> {
    let CUmemLocation { type_: kind, .. } = *at;
    if kind != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(DriverError::unsupported(format!(
            "memory at locations of type {kind:?} is not modelled"
        )));
    }
    Ok(machine.device(ordinal_of(at))?.ordinal)
}

pub(super) fn access_of(flags: CUmemAccess_flags) -> DriverResult<Access> {
    match flags {
        CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE => Ok(Access::empty()),
        CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ => Ok(Access::READ),
        CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE => Ok(Access::all()),
        other => Err(DriverError::invalid(format!("access flags {other:?}"))),
    }
}

fn check_kind(machine: &Machine, kind: CUmemAllocationHandleType) -> DriverResult {
    match kind {
        POSIX_FD => Ok(()),
        FABRIC if machine.fabric => Ok(()),
        other => {
            Err(DriverError::unsupported(format!("shareable handles of type {other:?} are not modelled")))
        }
    }
}

/// The ordinal that a device's location names.
fn ordinal_of(at: &CUmemLocation) -> i32 {
    // SAFETY: both variants are plain integers; for locations that are devices, `id` is the one that is meant.
    unsafe { at.__bindgen_anon_1.id }
}

fn location(device: usize) -> CUmemLocation {
    let mut at =
        CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, ..CUmemLocation::default() };
    at.__bindgen_anon_1.id = device as i32;
    at
}

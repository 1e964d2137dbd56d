//! Queries of the information that the driver has about an address.

use std::ffi::{c_int, c_uint, c_void};

use cuda_driver_sys::{CUmemorytype, CUpointer_attribute, CUresult};

use crate::call::{call, check, code};
use crate::handle_types::HandleTypes;
use crate::{Context, DevicePtr, Driver, Result};

/// The kind of memory behind an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Memory of a device.
    Device,
    /// Host memory that the driver allocated or registered.
    Host,
    /// A kind that this crate does not know, with the driver's number for it.
    Other(u32),
}

/// Basic information about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PointerInfo {
    /// The kind of memory behind the address.
    pub kind: MemoryKind,
    /// The ordinal of the device that the memory was allocated for; `None` if the driver reports none.
    pub device: Option<u32>,
}

/// All information that this crate queries about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PointerDetails {
    /// The kind of the memory and its device.
    pub info: PointerInfo,
    /// The allocation that contains the address. For a mapping of [`vmm`](crate::vmm) this is the whole reservation;
    /// [`Context::address_range`] returns the mapping alone.
    pub range: AddressRange,
    /// The handle types that the memory can be exported as.
    pub handle_types: HandleTypes,
    /// The driver's id of the allocation. Unlike an address, an id is never reused in the process.
    pub buffer_id: u64,
    /// The address at which the host can access the memory; `None` if the host cannot access it.
    pub host_address: Option<u64>,
    /// True if memory is mapped at the address.
    pub is_mapped: bool,
    /// True for managed memory, which the driver migrates between host and device.
    pub is_managed: bool,
    /// True if [`DeviceMemory::export_ipc`](super::DeviceMemory::export_ipc) can export the memory.
    pub is_legacy_ipc_capable: bool,
}

/// A range of addresses: an allocation, a mapping or reservation of [`vmm`](crate::vmm), or a variable of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressRange {
    /// The address of the first byte.
    pub start: DevicePtr,
    /// The size in bytes.
    pub bytes: usize,
}

impl Driver {
    /// Returns the driver's information about an address. Returns `None` if the driver does not know the memory
    /// (ordinary host memory, an address that was freed, or an unmapped part of a reservation). A call takes about
    /// 1 µs, so do not make one for each operation.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuPointerGetAttribute`. An unknown address is not an error.
    #[doc(alias = "cuPointerGetAttribute")]
    pub fn pointer_info(&self, ptr: DevicePtr) -> Result<Option<PointerInfo>> {
        let mut kind: c_uint = 0;
        let out = (&raw mut kind).cast();
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        // SAFETY: the attribute is an unsigned integer, written to a local that outlives the call.
        match unsafe { code!(self.api(), cuPointerGetAttribute(out, attribute, ptr.0)) }? {
            CUresult::CUDA_ERROR_INVALID_VALUE => return Ok(None),
            code => check(self.api(), "cuPointerGetAttribute", code)?,
        }
        let mut device: c_int = 0;
        let out = (&raw mut device).cast();
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        // SAFETY: the attribute is an integer, written to a local that outlives the call.
        unsafe { call!(self.api(), cuPointerGetAttribute(out, attribute, ptr.0)) }?;
        Ok(Some(PointerInfo { kind: memory_kind(kind), device: u32::try_from(device).ok() }))
    }

    /// Queries all [`PointerDetails`] of an address in one call. Returns `None` for the same addresses as
    /// [`pointer_info`](Self::pointer_info).
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuPointerGetAttributes`.
    #[doc(alias = "cuPointerGetAttributes")]
    pub fn pointer_details(&self, ptr: DevicePtr) -> Result<Option<PointerDetails>> {
        use CUpointer_attribute as A;
        let (mut kind, mut device): (c_uint, c_int) = (0, 0);
        let (mut start, mut bytes, mut types, mut buffer, mut host) = (0u64, 0usize, 0u64, 0u64, 0u64);
        let (mut mapped, mut managed, mut legacy): (c_uint, c_uint, c_uint) = (0, 0, 0);
        let mut attributes = [
            A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            A::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
            A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
            A::CU_POINTER_ATTRIBUTE_BUFFER_ID,
            A::CU_POINTER_ATTRIBUTE_HOST_POINTER,
            A::CU_POINTER_ATTRIBUTE_MAPPED,
            A::CU_POINTER_ATTRIBUTE_IS_MANAGED,
            A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        ];
        let mut out: [*mut c_void; 10] = [
            (&raw mut kind).cast(),
            (&raw mut device).cast(),
            (&raw mut start).cast(),
            (&raw mut bytes).cast(),
            (&raw mut types).cast(),
            (&raw mut buffer).cast(),
            (&raw mut host).cast(),
            (&raw mut mapped).cast(),
            (&raw mut managed).cast(),
            (&raw mut legacy).cast(),
        ];
        let count = attributes.len() as c_uint;
        // SAFETY: reads two arrays of `count` elements, and writes each attribute to a local that is at least as wide
        // as the attribute's type. The driver may write one to four bytes for a boolean attribute, so these locals
        // start at zero.
        unsafe {
            call!(self.api(), cuPointerGetAttributes(count, attributes.as_mut_ptr(), out.as_mut_ptr(), ptr.0))
        }?;
        // The driver writes zero for an attribute that does not apply, except a negative number for the device. No
        // attribute applies to an unknown address, so its memory type is zero.
        Ok((kind != 0).then(|| PointerDetails {
            info: PointerInfo { kind: memory_kind(kind), device: u32::try_from(device).ok() },
            range: AddressRange { start: DevicePtr(start), bytes },
            handle_types: HandleTypes::from_bits_truncate(types as u32),
            buffer_id: buffer,
            host_address: (host != 0).then_some(host),
            is_mapped: mapped != 0,
            is_managed: managed != 0,
            is_legacy_ipc_capable: legacy != 0,
        }))
    }
}

fn memory_kind(kind: c_uint) -> MemoryKind {
    match CUmemorytype(kind) {
        CUmemorytype::CU_MEMORYTYPE_DEVICE => MemoryKind::Device,
        CUmemorytype::CU_MEMORYTYPE_HOST => MemoryKind::Host,
        CUmemorytype(other) => MemoryKind::Other(other),
    }
}

impl Context {
    /// Returns the range of the allocation, or of the mapping of [`vmm`](crate::vmm), that contains an address.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemGetAddressRange_v2`: `CUDA_ERROR_NOT_FOUND` if the driver
    /// does not know the address, or if no access to the mapping there has been set.
    #[doc(alias = "cuMemGetAddressRange")]
    pub fn address_range(&self, ptr: DevicePtr) -> Result<AddressRange> {
        let _current = self.enter()?;
        let (mut start, mut bytes) = (0, 0);
        // SAFETY: writes an address and a size, to locals that outlive the call.
        unsafe { call!(self.api(), cuMemGetAddressRange_v2(&mut start, &mut bytes, ptr.0)) }?;
        Ok(AddressRange { start: DevicePtr(start), bytes })
    }
}

//! What the driver knows about an address.

use std::ffi::{c_int, c_uint};

use cuda_driver_sys::{CUmemorytype, CUpointer_attribute, CUresult};

use crate::call::{call, check, code};
use crate::{Context, DevicePtr, Driver, Result};

/// Where memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Memory of a device.
    Device,
    /// Memory of the host that the driver knows.
    Host,
    /// A kind that this crate does not know, as the driver counts it.
    Other(u32),
}

/// What the driver knows about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PointerInfo {
    /// Where the memory lies.
    pub kind: MemoryKind,
    /// The ordinal of the device that it was allocated for.
    pub device: u32,
}

/// An allocation, or a reservation's mapped part, around an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressRange {
    /// The first byte's address.
    pub start: DevicePtr,
    /// The size in bytes.
    pub bytes: usize,
}

impl Driver {
    /// What the driver knows about an address; `None` for memory that it did not make (plain host memory, a freed
    /// address). It costs about a µs: do not call it per operation.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuPointerGetAttribute`, but for an unknown address.
    #[doc(alias = "cuPointerGetAttribute")]
    pub fn pointer_info(&self, ptr: DevicePtr) -> Result<Option<PointerInfo>> {
        let mut kind: c_uint = 0;
        let out = (&raw mut kind).cast();
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        // SAFETY: this attribute is an unsigned integer, written to a local that outlives the call.
        match unsafe { code!(self.api(), cuPointerGetAttribute(out, attribute, ptr.0)) }? {
            CUresult::CUDA_ERROR_INVALID_VALUE => return Ok(None),
            code => check(self.api(), "cuPointerGetAttribute", code)?,
        }
        let mut device: c_int = 0;
        let out = (&raw mut device).cast();
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        // SAFETY: this attribute is an integer, written to a local that outlives the call.
        unsafe { call!(self.api(), cuPointerGetAttribute(out, attribute, ptr.0)) }?;
        let kind = match CUmemorytype(kind) {
            CUmemorytype::CU_MEMORYTYPE_DEVICE => MemoryKind::Device,
            CUmemorytype::CU_MEMORYTYPE_HOST => MemoryKind::Host,
            CUmemorytype(other) => MemoryKind::Other(other),
        };
        Ok(Some(PointerInfo { kind, device: u32::try_from(device).unwrap_or(0) }))
    }
}

impl Context {
    /// The allocation, or the mapping, that an address lies in.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemGetAddressRange_v2`: `CUDA_ERROR_NOT_FOUND` for an address
    /// that is none of the driver's.
    #[doc(alias = "cuMemGetAddressRange")]
    pub fn address_range(&self, ptr: DevicePtr) -> Result<AddressRange> {
        let _current = self.enter()?;
        let (mut start, mut bytes) = (0, 0);
        // SAFETY: writes an address and a size, to locals that outlive the call.
        unsafe { call!(self.api(), cuMemGetAddressRange_v2(&mut start, &mut bytes, ptr.0)) }?;
        Ok(AddressRange { start: DevicePtr(start), bytes })
    }
}

//! Reserved ranges of addresses, and the mappings in them.

use std::fmt;
use std::sync::Arc;

use cuda_driver_sys::{Api, CUmemAccess_flags};

use super::{PhysicalMemory, access_descriptions, location};
use crate::call::call;
use crate::error::within;
use crate::{Device, DevicePtr, Driver, Result, teardown};

/// The access of a device to mapped memory. After mapping, it is [`None`](Self::None) for every device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// No access.
    None,
    /// Read access.
    Read,
    /// Read and write access.
    ReadWrite,
}

impl Access {
    pub(crate) fn from_raw(flags: CUmemAccess_flags) -> Self {
        match flags {
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE => Self::None,
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ => Self::Read,
            _ => Self::ReadWrite,
        }
    }

    pub(crate) fn raw(self) -> CUmemAccess_flags {
        match self {
            Self::None => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE,
            Self::Read => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
            Self::ReadWrite => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        }
    }
}

/// A reserved range of addresses, in which physical memory can be mapped.
///
/// This is a handle, cheap to clone. Each [`Mapping`] and [`PageTable`](super::PageTable) of it holds a clone. Dropping
/// the last clone frees the range.
#[derive(Clone)]
pub struct Reservation {
    inner: Arc<Inner>,
}

struct Inner {
    driver: Driver,
    start: DevicePtr,
    bytes: usize,
}

impl Reservation {
    /// Reserves `bytes` bytes of addresses. `bytes` must be a multiple of the minimum [granularity](super::Granularity)
    /// of the memory that will be mapped. `alignment` must be a power of two or 0. The first address is a multiple of
    /// `alignment` bytes, or of the granularity if `alignment` is 0.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing) if the driver has no virtual memory calls;
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemAddressReserve`: `CUDA_ERROR_OUT_OF_MEMORY` if no such range
    /// is left; `CUDA_ERROR_INVALID_VALUE` if `bytes` or `alignment` is not as required above.
    #[doc(alias = "cuMemAddressReserve")]
    pub fn new(driver: &Driver, bytes: usize, alignment: usize) -> Result<Self> {
        let mut start = 0;
        // SAFETY: writes one address, to a local that outlives the call.
        unsafe { call!(driver.api(), cuMemAddressReserve(&mut start, bytes, alignment, 0, 0)) }?;
        Ok(Self { inner: Arc::new(Inner { driver: driver.clone(), start: DevicePtr(start), bytes }) })
    }

    /// The first address.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.inner.start
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.inner.bytes
    }

    /// Maps `bytes` bytes of `memory`, from byte `memory_offset` on, at byte `offset` of the reservation. The same
    /// memory may be mapped at several places. No device can access the mapping before [`Mapping::set_access`].
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](crate::Error::OutOfBounds) if the range is not inside the reservation or the memory;
    /// [`Error::DifferentDrivers`](crate::Error::DifferentDrivers).
    ///
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemMap`: `CUDA_ERROR_INVALID_VALUE` if something is already
    /// mapped in the range, if a size or offset is not a multiple of the granularity, or if the range exceeds the
    /// actual size of the memory, because the size stated at its import or [retention](PhysicalMemory::retain) was too
    /// large; `CUDA_ERROR_NOT_SUPPORTED` if the range is only a part of the memory and the driver maps only the whole
    /// memory (as driver 580 does).
    #[doc(alias = "cuMemMap")]
    pub fn map(
        &self,
        offset: usize,
        memory: &PhysicalMemory,
        memory_offset: usize,
        bytes: usize,
    ) -> Result<Mapping> {
        within("reservation", offset, bytes, self.bytes())?;
        within("physical memory", memory_offset, bytes, memory.bytes())?;
        self.require_driver_of(memory)?;
        let ptr = self.ptr() + offset;
        // SAFETY: the range is inside the reservation. The mapping keeps the reservation and the memory alive. The
        // driver refuses a range in which something is mapped.
        unsafe { call!(self.api(), cuMemMap(ptr.0, bytes, memory_offset, memory.raw(), 0)) }?;
        Ok(Mapping { reservation: self.clone(), memory: memory.clone(), offset, bytes, mapped: true })
    }

    /// Sets the access of devices to `bytes` bytes from byte `offset` on. Memory must be mapped in all of this range.
    /// Devices that are not named keep their access. One call for a range of many mappings is much cheaper than one
    /// call for each.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](crate::Error::OutOfBounds) if the range is not inside the reservation;
    /// [`Error::DifferentDrivers`](crate::Error::DifferentDrivers); [`Error::Driver`](crate::Error::Driver) from
    /// `cuMemSetAccess`: `CUDA_ERROR_INVALID_DEVICE` for a device that is not a peer of the memory's device;
    /// `CUDA_ERROR_INVALID_VALUE` if nothing is mapped in a part of the range.
    #[doc(alias = "cuMemSetAccess")]
    pub fn set_access(&self, offset: usize, bytes: usize, devices: &[(&Device, Access)]) -> Result<()> {
        within("reservation", offset, bytes, self.bytes())?;
        let descriptions = access_descriptions(&self.inner.driver, devices, "the reservation")?;
        let ptr = self.ptr() + offset;
        // SAFETY: reads the descriptions, which outlive the call.
        unsafe { call!(self.api(), cuMemSetAccess(ptr.0, bytes, descriptions.as_ptr(), descriptions.len())) }
    }

    /// Returns the access that a device has to the mapping that contains byte `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](crate::Error::OutOfBounds) if `offset` is not inside the reservation;
    /// [`Error::DifferentDrivers`](crate::Error::DifferentDrivers); [`Error::Driver`](crate::Error::Driver) from
    /// `cuMemGetAccess`: `CUDA_ERROR_INVALID_VALUE` if nothing is mapped there.
    #[doc(alias = "cuMemGetAccess")]
    pub fn access(&self, offset: usize, device: &Device) -> Result<Access> {
        within("reservation", offset, 1, self.bytes())?;
        self.inner.driver.require_same("the device", device.driver(), "the reservation")?;
        let mut flags = 0;
        let (at, ptr) = (location(device), self.ptr() + offset);
        // SAFETY: reads a location and writes one number, both in locals that outlive the call.
        unsafe { call!(self.api(), cuMemGetAccess(&mut flags, &at, ptr.0)) }?;
        Ok(Access::from_raw(CUmemAccess_flags(u32::try_from(flags).unwrap_or(u32::MAX))))
    }

    pub(super) fn api(&self) -> &Api {
        self.inner.driver.api()
    }

    /// Returns an error if `memory` is of another driver than the reservation.
    pub(super) fn require_driver_of(&self, memory: &PhysicalMemory) -> Result<()> {
        self.inner.driver.require_same("the memory", memory.context().driver(), "the reservation")
    }
}

impl Drop for Inner {
    #[doc(alias = "cuMemAddressFree")]
    fn drop(&mut self) {
        // SAFETY: the range is freed once. No mapping is left in it, because mappings hold `self`.
        teardown::report(unsafe { call!(self.driver.api(), cuMemAddressFree(self.start.0, self.bytes)) });
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({}, {} bytes)", self.inner.start, self.inner.bytes)
    }
}

/// Physical memory that is mapped in a reservation. Dropping the value unmaps the memory, without waiting for work that
/// uses it.
#[derive(Debug)]
pub struct Mapping {
    reservation: Reservation,
    memory: PhysicalMemory,
    /// The offset in the reservation, in bytes.
    offset: usize,
    bytes: usize,
    /// False after an attempt to unmap the memory, even if it failed.
    mapped: bool,
}

impl Mapping {
    /// The first address.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.reservation.ptr() + self.offset
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The reservation in which the memory is mapped.
    #[must_use]
    pub fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    /// The physical memory that is mapped.
    #[must_use]
    pub fn memory(&self) -> &PhysicalMemory {
        &self.memory
    }

    /// Sets the access of devices to the mapping. Devices that are not named keep their access.
    ///
    /// # Errors
    /// As [`Reservation::set_access`].
    pub fn set_access(&self, devices: &[(&Device, Access)]) -> Result<()> {
        self.reservation.set_access(self.offset, self.bytes, devices)
    }

    /// Unmaps the memory, without waiting for work that uses it. The caller ensures that no work uses the mapping any
    /// more.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemUnmap`. The addresses and the memory are then never freed,
    /// because freeing either while it is still mapped would corrupt its next user.
    #[doc(alias = "cuMemUnmap")]
    pub fn unmap(mut self) -> Result<()> {
        self.take_away()
    }

    fn take_away(&mut self) -> Result<()> {
        self.mapped = false;
        // SAFETY: unmaps exactly the range that `map` mapped, once.
        let unmapped = unsafe { call!(self.reservation.api(), cuMemUnmap(self.ptr().0, self.bytes)) };
        if unmapped.is_err() {
            super::keep(&self.reservation, vec![self.memory.clone()]);
        }
        unmapped
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.mapped {
            teardown::report(self.take_away());
        }
    }
}

//! Ranges of addresses and the mappings in them.

use std::fmt;
use std::sync::Arc;

use cuda_driver_sys::{Api, CUmemAccess_flags};

use super::{PhysicalMemory, access_descriptions, location};
use crate::call::call;
use crate::error::within;
use crate::{Device, DevicePtr, Driver, Result, teardown};

/// The access of a device to mapped memory. Freshly mapped memory is [`None`](Self::None) for every device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Nothing.
    None,
    /// Read.
    Read,
    /// Read and write.
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

/// A range of addresses without memory. A handle, cheap to clone. The last one (mappings hold one) frees the
/// range.
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
    /// Reserves `bytes` bytes of addresses, a multiple of the [granularity](super::Granularity), starting at a
    /// multiple of `alignment` bytes (a power of two; 0: the granularity).
    ///
    /// # Errors
    /// [`Error::Missing`](crate::Error::Missing) if the driver has no virtual memory calls;
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemAddressReserve`: `CUDA_ERROR_OUT_OF_MEMORY` where no such
    /// range is left, `CUDA_ERROR_INVALID_VALUE` for a size off the granularity.
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

    /// Maps `bytes` bytes of `memory`, from `memory_offset` on, at `offset`. The same pages may be mapped in
    /// several places. No device can access the mapping before [`Mapping::set_access`].
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](crate::Error::OutOfBounds) if it leaves the reservation or the memory;
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemMap`: `CUDA_ERROR_INVALID_VALUE` where something is mapped
    /// already, off the granularity, or past the end of imported memory; `CUDA_ERROR_NOT_SUPPORTED` for a part of
    /// the memory (measured with driver 580: it maps handles whole).
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
        // SAFETY: the range is inside the reservation, which with the memory is kept by the mapping; the driver
        // refuses a range that is mapped already.
        unsafe { call!(self.api(), cuMemMap(ptr.0, bytes, memory_offset, memory.raw(), 0)) }?;
        Ok(Mapping { reservation: self.clone(), memory: memory.clone(), offset, bytes, mapped: true })
    }

    /// Sets the access of devices to the addresses from `offset` on, all of which must be mapped. One call
    /// for a long run of mappings is much cheaper than one call for each. Devices that are not named keep
    /// their access.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](crate::Error::OutOfBounds) if it leaves the reservation;
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemSetAccess`: `CUDA_ERROR_INVALID_DEVICE` for a device that
    /// is no peer of the memory's, `CUDA_ERROR_INVALID_VALUE` where something is not mapped.
    #[doc(alias = "cuMemSetAccess")]
    pub fn set_access(&self, offset: usize, bytes: usize, devices: &[(&Device, Access)]) -> Result<()> {
        within("reservation", offset, bytes, self.bytes())?;
        let descriptions = access_descriptions(&self.inner.driver, devices, "the reservation")?;
        let ptr = self.ptr() + offset;
        // SAFETY: reads the descriptions, which outlive the call.
        unsafe { call!(self.api(), cuMemSetAccess(ptr.0, bytes, descriptions.as_ptr(), descriptions.len())) }
    }

    /// Returns the access that a device has to the mapping around `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](crate::Error::OutOfBounds) if it leaves the reservation;
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemGetAccess`: `CUDA_ERROR_INVALID_VALUE` where nothing is
    /// mapped.
    #[doc(alias = "cuMemGetAccess")]
    pub fn access(&self, offset: usize, device: &Device) -> Result<Access> {
        within("reservation", offset, 1, self.bytes())?;
        self.inner.driver.require_same("the device", device.driver(), "the reservation")?;
        let mut flags = 0;
        let (at, ptr) = (location(device), self.ptr() + offset);
        // SAFETY: reads a location and writes one number, locals that outlive the call.
        unsafe { call!(self.api(), cuMemGetAccess(&mut flags, &at, ptr.0)) }?;
        Ok(Access::from_raw(CUmemAccess_flags(u32::try_from(flags).unwrap_or(u32::MAX))))
    }

    pub(super) fn api(&self) -> &Api {
        self.inner.driver.api()
    }

    /// Refuses memory of another driver.
    pub(super) fn require_driver_of(&self, memory: &PhysicalMemory) -> Result<()> {
        self.inner.driver.require_same("the memory", memory.context().driver(), "the reservation")
    }
}

impl Drop for Inner {
    #[doc(alias = "cuMemAddressFree")]
    fn drop(&mut self) {
        // SAFETY: the range is freed once; mappings in it, which hold `self`, are gone.
        teardown::report(unsafe { call!(self.driver.api(), cuMemAddressFree(self.start.0, self.bytes)) });
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({}, {} bytes)", self.inner.start, self.inner.bytes)
    }
}

/// Physical memory behind a range of addresses. Dropping unmaps it, without waiting for work that uses it.
#[derive(Debug)]
pub struct Mapping {
    reservation: Reservation,
    memory: PhysicalMemory,
    /// Offset in the reservation.
    offset: usize,
    bytes: usize,
    /// False once it is unmapped.
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

    /// The reservation that the addresses are of.
    #[must_use]
    pub fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    /// The physical memory behind them.
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

    /// Unmaps the memory. It does not wait: no work may use the mapping any more.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemUnmap`. The addresses and the memory are then kept for ever,
    /// since giving either back under a mapping would corrupt whoever gets it next.
    #[doc(alias = "cuMemUnmap")]
    pub fn unmap(mut self) -> Result<()> {
        self.take_away()
    }

    fn take_away(&mut self) -> Result<()> {
        self.mapped = false;
        // SAFETY: exactly the range that `map` mapped, once.
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

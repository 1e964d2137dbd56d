//! Virtual memory: physical pages, ranges of addresses, and mappings between them; handles that other processes
//! can map too.
//!
//! [`PhysicalMemory`] and [`Reservation`] are handles, cheap to clone, and a [`Mapping`] holds one of each: the
//! address range cannot be freed under a mapping, nor the handle released by accident (the driver itself keeps
//! pages while they are mapped). A [`PageTable`] does the same for many pages that come and go in one range. After `unmap` there is no mapping left to use:
//! ```compile_fail,E0382
//! fn misuse(mapping: cuda_driver::vmm::Mapping) {
//!     mapping.unmap().unwrap();
//!     println!("{}", mapping.ptr());
//! }
//! ```
//! None of these calls waits for kernels, `unmap` included: that no work uses a mapping when it is unmapped is the
//! caller's to see to. None is refused while a stream captures. What only its own device reaches costs tens of µs
//! to map; what peers reach, milliseconds: share few, large, long-lived ranges.
//!
//! ```no_run
//! use cuda_driver::vmm::{Access, Granularity, HandleTypes, PhysicalMemory, Reservation};
//!
//! # fn main() -> cuda_driver::Result<()> {
//! let context = cuda_driver::Driver::load()?.device(0)?.retain_primary()?;
//! let granularity = Granularity::of(context.device(), HandleTypes::POSIX_FD)?;
//! let bytes = granularity.round_up(10_000_000);
//! let memory = PhysicalMemory::create(&context, bytes, HandleTypes::POSIX_FD)?;
//! let mapping = Reservation::new(context.driver(), bytes, 0)?.map(0, &memory, 0, bytes)?;
//! mapping.set_access(&[(context.device(), Access::ReadWrite)])?;
//! let descriptor = memory.export_fd()?; // for a peer: `PhysicalMemory::import_fd`
//! # drop(descriptor);
//! mapping.unmap()
//! # }
//! ```

mod granted;
pub mod multicast;
mod page_table;
mod physical;
mod reservation;

use std::sync::{Mutex, PoisonError};

use cuda_driver_sys::{
    CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationType, CUmemLocation, CUmemLocationType,
};

pub use self::page_table::PageTable;
pub use self::physical::{FabricHandle, PhysicalMemory, PhysicalProperties};
pub use self::reservation::{Access, Mapping, Reservation};
use crate::call::call;
pub use crate::handle_types::HandleTypes;
use crate::{Device, Driver, Error, Result};

/// The unit of sizes and offsets of physical memory, and of addresses and sizes of reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Granularity {
    /// The driver's minimum, in bytes.
    pub minimum: usize,
    /// The granularity with the best performance, in bytes.
    pub recommended: usize,
}

impl Granularity {
    /// The granularity of a device's memory that can be exported in the given ways.
    ///
    /// # Errors
    /// [`Error::Missing`] if the driver has no virtual memory calls; [`Error::Driver`] from
    /// `cuMemGetAllocationGranularity`, for example `CUDA_ERROR_NOT_SUPPORTED` for a way that the system does not
    /// have.
    #[doc(alias = "cuMemGetAllocationGranularity")]
    pub fn of(device: &Device, handle_types: HandleTypes) -> Result<Self> {
        let properties = properties(device, handle_types);
        let ask = |option| {
            let mut bytes = 0;
            // SAFETY: reads the properties and writes one size; both are locals that outlive the call.
            unsafe { call!(device.api(), cuMemGetAllocationGranularity(&mut bytes, &properties, option)) }?;
            Ok::<_, Error>(bytes)
        };
        Ok(Self {
            minimum: ask(CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM)?,
            recommended: ask(CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)?,
        })
    }

    /// Rounds `bytes` up to a multiple of the recommended granularity; `usize::MAX`, a size that no driver
    /// allocates, if there is none.
    #[must_use]
    pub fn round_up(&self, bytes: usize) -> usize {
        bytes.checked_next_multiple_of(self.recommended.max(1)).unwrap_or(usize::MAX)
    }
}

/// The addresses and the memory of mappings that could not be unmapped. Freeing either would corrupt its next
/// user, so both are kept for ever. They are held in a static so that leak checkers do not report them.
static STUCK: Mutex<Vec<(Reservation, Vec<PhysicalMemory>)>> = Mutex::new(Vec::new());

fn keep(reservation: &Reservation, memory: Vec<PhysicalMemory>) {
    STUCK.lock().unwrap_or_else(PoisonError::into_inner).push((reservation.clone(), memory));
}

/// The properties of physical memory, as the driver takes them.
fn properties(device: &Device, handle_types: HandleTypes) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType(handle_types.bits()),
        location: location(device),
        ..CUmemAllocationProp::default()
    }
}

/// The access of devices to memory of `user`, as the driver takes it.
pub(crate) fn access_descriptions(
    driver: &Driver,
    devices: &[(&Device, Access)],
    user: &'static str,
) -> Result<Vec<CUmemAccessDesc>> {
    let describe = |(device, access): &(&Device, Access)| {
        driver.require_same("the device", device.driver(), user)?;
        Ok(CUmemAccessDesc { location: location(device), flags: access.raw() })
    };
    devices.iter().map(describe).collect()
}

pub(crate) fn location(device: &Device) -> CUmemLocation {
    let mut location =
        CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, ..CUmemLocation::default() };
    location.__bindgen_anon_1.id = device.raw();
    location
}

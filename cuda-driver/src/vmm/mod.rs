//! Virtual memory: physical memory, reserved address ranges, and mappings between them. Other processes can map the
//! same physical memory through exported handles.
//!
//! [`PhysicalMemory`] and [`Reservation`] are handles, cheap to clone. A [`Mapping`] holds its reservation and its
//! physical memory, so both live at least as long as the mapping. A [`PageTable`] holds its reservation, and the
//! physical memory of all pages that are mapped in it.
//!
//! [`Mapping::unmap`] consumes the mapping, so the mapping cannot be used afterwards:
//! ```compile_fail,E0382
//! fn misuse(mapping: cuda_driver::vmm::Mapping) {
//!     mapping.unmap().unwrap();
//!     println!("{}", mapping.ptr());
//! }
//! ```
//! No call of this module waits for kernels, not even a call that unmaps memory. The caller ensures that no work uses a
//! mapping when the mapping is unmapped. The driver accepts the calls of this module while a stream captures.
//!
//! Mapping memory and setting its access take tens of µs if only the memory's own device gets access, and milliseconds
//! if peer devices get access too. So give peers access to few large ranges, and keep these ranges mapped.
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

/// The granularity of memory. Sizes and offsets of physical memory, and addresses and sizes of reservations, must be
/// multiples of [`minimum`](Self::minimum) bytes. [`Multicast::granularity`](multicast::Multicast::granularity) returns
/// the granularity of multicast objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Granularity {
    /// The driver's minimum, in bytes.
    pub minimum: usize,
    /// The granularity with the best performance, in bytes.
    pub recommended: usize,
}

impl Granularity {
    /// Returns the granularity of a device's memory that can be exported as the given handle types.
    ///
    /// # Errors
    /// [`Error::Missing`] if the driver has no virtual memory calls; [`Error::Driver`] from
    /// `cuMemGetAllocationGranularity`, for example `CUDA_ERROR_NOT_SUPPORTED` for a handle type that the system does
    /// not support.
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

    /// Rounds `bytes` up to a multiple of the recommended granularity. If no such multiple fits a `usize`, returns
    /// `usize::MAX`, a size that no driver allocates.
    #[must_use]
    pub fn round_up(&self, bytes: usize) -> usize {
        bytes.checked_next_multiple_of(self.recommended.max(1)).unwrap_or(usize::MAX)
    }
}

/// The reservations and the physical memory of mappings that could not be unmapped. They are never released, because
/// such a mapping may still exist: work of the addresses' next user could then overwrite the data of the pages' next
/// user. A static holds them, so that leak checkers do not report them.
static STUCK: Mutex<Vec<(Reservation, Vec<PhysicalMemory>)>> = Mutex::new(Vec::new());

fn keep(reservation: &Reservation, memory: Vec<PhysicalMemory>) {
    STUCK.lock().unwrap_or_else(PoisonError::into_inner).push((reservation.clone(), memory));
}

/// Returns the driver's description of physical memory on `device` that can be exported as `handle_types`.
fn properties(device: &Device, handle_types: HandleTypes) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType(handle_types.bits()),
        location: location(device),
        ..CUmemAllocationProp::default()
    }
}

/// Converts each device and its access to the driver's description. Returns an error if a device belongs to another
/// driver than `driver`. `user` names, for the error's message, the object that the devices are to access.
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

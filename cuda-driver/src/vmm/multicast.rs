//! Multicast objects: memory of several devices behind one address. The NVLink switches send a store to all of these
//! devices, and can reduce a load over them.
//!
//! **Off unless a program opts in**, with [`Multicast::opt_in`]. Creating a multicast object programs switches that all
//! processes of the host, or of the rack, share. On a host whose fabric is not set up for multicast, this has stalled
//! the fabric for all processes until a restart. So no crate of this workspace opts in by itself. The devices must
//! report support, and the caller must assert that the host is set up. The caller does so by calling `opt_in`, an
//! `unsafe` function that returns the permission as a value. The permission is not a Cargo feature: a feature that one
//! crate of a program turns on is on for all crates, and is not visible at the call.
//!
//! The order of calls is: one process calls [`Multicast::create`] and exports the object, and the others import it.
//! Each process then calls [`add_device`](MulticastObject::add_device) for its devices. After that each calls
//! [`bind`](MulticastObject::bind), which blocks until all devices have been added.

use std::ops::Deref;
use std::os::fd::BorrowedFd;

use cuda_driver_sys::{CUmulticastGranularity_flags, CUmulticastObjectProp, Feature};

use super::{FabricHandle, Granularity, HandleTypes, PhysicalMemory};
use crate::call::call;
use crate::error::within;
use crate::{Capabilities, Context, Device, Driver, Error, Result, teardown};

/// The permission to make and open multicast objects.
#[derive(Clone, Debug)]
pub struct Multicast {
    context: Context,
}

/// The properties of a multicast object to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MulticastProperties {
    /// The number of devices to be added.
    pub devices: u32,
    /// The size in bytes, a multiple of the [granularity](Multicast::granularity).
    pub bytes: usize,
    /// The handle types that the object can be exported as.
    pub handle_types: HandleTypes,
}

impl MulticastProperties {
    fn raw(self) -> CUmulticastObjectProp {
        CUmulticastObjectProp {
            numDevices: self.devices,
            size: self.bytes,
            handleTypes: self.handle_types.bits().into(),
            flags: 0,
        }
    }
}

fn check_device(device: &Device) -> Result<()> {
    if device.can(Capabilities::MULTICAST)? {
        return Ok(());
    }
    Err(Error::Unsupported { what: "multicast", device: device.ordinal() })
}

impl Multicast {
    /// Returns the permission to create and open multicast objects, for the context's device.
    ///
    /// # Safety
    /// The host's fabric must be set up for multicast (fabric manager running, every GPU registered with it, and,
    /// across hosts, IMEX), and the operator of the host must agree: a mistake also stalls processes of other users.
    ///
    /// # Errors
    /// [`Error::Missing`] below CUDA 12.1; [`Error::Unsupported`] for a device without multicast; [`Error::Driver`]
    /// from `cuDeviceGetAttribute`.
    pub unsafe fn opt_in(context: &Context) -> Result<Self> {
        context.api().require(Feature::MULTICAST)?;
        check_device(context.device())?;
        Ok(Self { context: context.clone() })
    }

    /// Returns the granularity of multicast objects with these properties. Their sizes and offsets must be multiples of
    /// [`minimum`](Granularity::minimum). The size in `properties` need not be such a multiple.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuMulticastGetGranularity`.
    #[doc(alias = "cuMulticastGetGranularity")]
    pub fn granularity(&self, properties: MulticastProperties) -> Result<Granularity> {
        let properties = properties.raw();
        let ask = |option| {
            let mut bytes = 0;
            // SAFETY: reads the properties and writes one size; both are locals that outlive the call.
            unsafe { call!(self.context.api(), cuMulticastGetGranularity(&mut bytes, &properties, option)) }?;
            Ok::<_, Error>(bytes)
        };
        Ok(Granularity {
            minimum: ask(CUmulticastGranularity_flags::CU_MULTICAST_GRANULARITY_MINIMUM)?,
            recommended: ask(CUmulticastGranularity_flags::CU_MULTICAST_GRANULARITY_RECOMMENDED)?,
        })
    }

    /// Creates a multicast object, to which no device has been added yet.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuMulticastCreate`.
    #[doc(alias = "cuMulticastCreate")]
    pub fn create(&self, properties: MulticastProperties) -> Result<MulticastObject> {
        let mut raw = 0;
        // SAFETY: reads the properties and writes one handle; both are locals that outlive the call.
        unsafe { call!(self.context.api(), cuMulticastCreate(&mut raw, &properties.raw())) }?;
        let MulticastProperties { bytes, handle_types, .. } = properties;
        Ok(MulticastObject { memory: PhysicalMemory::from_raw(&self.context, raw, bytes, handle_types) })
    }

    /// Opens an object that another process exported, as [`PhysicalMemory::import_fd`] opens physical memory.
    ///
    /// # Errors
    /// As [`PhysicalMemory::import_fd`].
    pub fn import_fd(&self, descriptor: BorrowedFd<'_>, bytes: usize) -> Result<MulticastObject> {
        Ok(MulticastObject { memory: PhysicalMemory::import_fd(&self.context, descriptor, bytes)? })
    }

    /// Opens an object that another process exported, as [`PhysicalMemory::import_fabric`] opens physical memory.
    ///
    /// # Errors
    /// As [`PhysicalMemory::import_fabric`].
    pub fn import_fabric(&self, handle: &FabricHandle, bytes: usize) -> Result<MulticastObject> {
        Ok(MulticastObject { memory: PhysicalMemory::import_fabric(&self.context, handle, bytes)? })
    }
}

/// A multicast object. The value is a handle, cheap to clone. It dereferences to [`PhysicalMemory`], so the object
/// can be mapped ([`Reservation::map`](super::Reservation::map)) and exported like physical memory.
#[derive(Clone, Debug)]
pub struct MulticastObject {
    memory: PhysicalMemory,
}

impl Deref for MulticastObject {
    type Target = PhysicalMemory;

    fn deref(&self) -> &PhysicalMemory {
        &self.memory
    }
}

impl MulticastObject {
    fn require_driver_of(&self, what: &'static str, theirs: &Driver) -> Result<()> {
        self.context().driver().require_same(what, theirs, "the multicast object")
    }

    /// Adds a device. Memory can be bound only when all processes have added all their devices.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a device without multicast; [`Error::DifferentDrivers`]; [`Error::Driver`] from
    /// `cuDeviceGetAttribute` or `cuMulticastAddDevice`.
    #[doc(alias = "cuMulticastAddDevice")]
    pub fn add_device(&self, device: &Device) -> Result<()> {
        self.require_driver_of("the device", device.driver())?;
        check_device(device)?;
        // SAFETY: the object is alive.
        unsafe { call!(device.api(), cuMulticastAddDevice(self.raw(), device.raw())) }
    }

    /// Binds `bytes` bytes of a device's memory, from `memory_offset` on, to the object's range at `offset`.
    /// Blocks until all devices have been added.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the range leaves the object or the memory; [`Error::DifferentDrivers`];
    /// [`Error::Driver`] from `cuMulticastBindMem`. Also the errors of [`PhysicalMemory::device_ordinal`] and
    /// [`Driver::device`](crate::Driver::device), because the call looks up the device of the memory, which unbinding
    /// needs.
    #[doc(alias = "cuMulticastBindMem")]
    pub fn bind(
        &self,
        offset: usize,
        memory: &PhysicalMemory,
        memory_offset: usize,
        bytes: usize,
    ) -> Result<Binding> {
        within("multicast object", offset, bytes, self.bytes())?;
        within("physical memory", memory_offset, bytes, memory.bytes())?;
        self.require_driver_of("the memory", memory.context().driver())?;
        // Imported memory may lie on another device than that of the context in which it was imported.
        let device = memory.context().driver().device(memory.device_ordinal()?)?;
        let api = self.context().driver().api();
        // SAFETY: object and memory are alive, and the binding keeps them alive. The ranges are inside the object and
        // the memory.
        unsafe { call!(api, cuMulticastBindMem(self.raw(), offset, memory.raw(), memory_offset, bytes, 0)) }?;
        Ok(Binding { object: self.clone(), memory: memory.clone(), device, offset, bytes, bound: true })
    }

    /// Like [`bind`](Self::bind), for memory that is mapped at the address `ptr`, by this crate or by other code. The
    /// memory stays bound until [`unbind`](Self::unbind), or until the object is destroyed.
    ///
    /// # Safety
    /// The mapping must stay until the range is unbound, or until the object is destroyed in every process.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the range leaves the object; [`Error::Driver`] from `cuMulticastBindAddr`.
    #[doc(alias = "cuMulticastBindAddr")]
    pub unsafe fn bind_address(&self, offset: usize, ptr: crate::DevicePtr, bytes: usize) -> Result<()> {
        within("multicast object", offset, bytes, self.bytes())?;
        let api = self.context().driver().api();
        // SAFETY: the object is alive; the caller promises that the address is mapped.
        unsafe { call!(api, cuMulticastBindAddr(self.raw(), offset, ptr.0, bytes, 0)) }
    }

    /// Unbinds memory of `device` that [`bind_address`](Self::bind_address) bound to the `bytes` bytes of the object
    /// at `offset`.
    ///
    /// # Errors
    /// [`Error::DifferentDrivers`]; [`Error::Driver`] from `cuMulticastUnbind`.
    #[doc(alias = "cuMulticastUnbind")]
    pub fn unbind(&self, device: &Device, offset: usize, bytes: usize) -> Result<()> {
        self.require_driver_of("the device", device.driver())?;
        let api = self.context().driver().api();
        // SAFETY: the object is alive; the driver refuses a range that is not bound.
        unsafe { call!(api, cuMulticastUnbind(self.raw(), device.raw(), offset, bytes)) }
    }
}

/// A device's memory that is bound to a multicast object. Dropping the value unbinds the memory.
#[derive(Debug)]
pub struct Binding {
    object: MulticastObject,
    memory: PhysicalMemory,
    device: Device,
    /// The offset in the object, in bytes.
    offset: usize,
    bytes: usize,
    /// False after an attempt to unbind the memory, even if it failed.
    bound: bool,
}

impl Binding {
    /// The memory that is bound.
    #[must_use]
    pub fn memory(&self) -> &PhysicalMemory {
        &self.memory
    }

    /// Unbinds the memory, as dropping does, and returns the outcome. No work may use the range any more.
    ///
    /// # Errors
    /// As [`MulticastObject::unbind`].
    pub fn release(mut self) -> Result<()> {
        self.bound = false;
        self.object.unbind(&self.device, self.offset, self.bytes)
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        if self.bound {
            teardown::report(self.object.unbind(&self.device, self.offset, self.bytes));
        }
    }
}

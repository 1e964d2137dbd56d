//! Physical memory, and the handles by which processes share it.

use std::ffi::c_void;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use cuda_driver_sys::{
    CUdevice_attribute, CUmemAllocationHandleType, CUmemAllocationProp, CUmemFabricHandle,
    CUmemGenericAllocationHandle, CUresult, Feature,
};

use super::{HandleTypes, properties};
use crate::call::{call, exported_fd, with_os_handle};
use crate::driver_error::DriverError;
use crate::{Context, DevicePtr, Error, Result, teardown};

/// A handle with which processes in the same NVLink domain, on this host and others, can open physical memory. It is
/// plain bytes, and may be sent to them by any means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct FabricHandle(pub [u8; 64]);

/// The properties of physical memory that the driver reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PhysicalProperties {
    /// The ordinal of the device that holds the pages. Has no meaning for pages that are not on a device, such as host
    /// memory of another library.
    pub device: u32,
    /// The handle types that the memory can be exported as. For imported memory, the driver may leave out the type of
    /// handle that it was imported from.
    pub handle_types: HandleTypes,
    /// True if other devices, such as network adapters, can access the memory by RDMA.
    pub is_rdma_capable: bool,
}

/// Returns [`Error::NoFabric`] for the codes by which the driver reports that this process has no access to a fabric.
/// Returns any other error as it is. A program cannot set up a fabric at run time, so it falls back to file descriptors
/// after [`Error::NoFabric`].
fn no_fabric(error: Error) -> Error {
    match error {
        Error::Driver(DriverError { function, code, name, .. })
            if matches!(code, CUresult::CUDA_ERROR_NOT_SUPPORTED | CUresult::CUDA_ERROR_NOT_PERMITTED) =>
        {
            Error::NoFabric { function, code, name }
        }
        other => other,
    }
}

/// Pages of a device's memory. They have no address until they are mapped.
///
/// This is a handle, cheap to clone. Each [`Mapping`](super::Mapping) and [`PageTable`](super::PageTable) of it holds a
/// clone. Dropping the last clone releases the driver's handle. Exported file descriptors, and the memory that other
/// processes have opened, still keep the pages.
#[derive(Clone)]
pub struct PhysicalMemory {
    inner: Arc<Inner>,
}

struct Inner {
    context: Context,
    raw: CUmemGenericAllocationHandle,
    bytes: usize,
    handle_types: HandleTypes,
}

impl PhysicalMemory {
    /// Allocates `bytes` bytes on the context's device. The size must be a multiple of the
    /// [granularity](super::Granularity). The memory can be exported as the given handle types. Network
    /// adapters can access the memory by GPUDirect RDMA if the context's device supports that.
    ///
    /// # Errors
    /// [`Error::Missing`] if the driver has no virtual memory calls, or is older than CUDA 12.3 and fabric handles are
    /// requested. [`Error::NoFabric`] if fabric handles are requested and this process has no access to a fabric.
    ///
    /// [`Error::Driver`] from `cuMemCreate`: `CUDA_ERROR_OUT_OF_MEMORY`; `CUDA_ERROR_INVALID_VALUE` if the size is not
    /// a multiple of the granularity; `CUDA_ERROR_NOT_SUPPORTED` or `CUDA_ERROR_NOT_PERMITTED` if the driver refuses
    /// the handle types. If fabric handles are requested, these two become [`Error::NoFabric`].
    #[doc(alias = "cuMemCreate")]
    pub fn create(context: &Context, bytes: usize, handle_types: HandleTypes) -> Result<Self> {
        let device = context.device();
        let fabric = handle_types.contains(HandleTypes::FABRIC);
        if fabric {
            context.api().require(Feature::FABRIC_HANDLES)?;
        }
        let mut properties = properties(device, handle_types);
        // A driver that does not know the attribute has no support for RDMA.
        let rdma = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
        properties.allocFlags.gpuDirectRDMACapable = device.attribute(rdma).is_ok_and(|can| can != 0).into();
        let mut raw = 0;
        // SAFETY: reads the properties and writes one handle; both are locals that outlive the call.
        let created = unsafe { call!(context.api(), cuMemCreate(&mut raw, bytes, &properties, 0)) };
        created.map_err(|error| if fabric { no_fabric(error) } else { error })?;
        Ok(Self::from_raw(context, raw, bytes, handle_types))
    }

    /// Opens physical memory that another process, or this one, exported. The descriptor may be closed after the call.
    ///
    /// `bytes` is the size that the exporter states, because the driver does not report it. The driver refuses to map
    /// more than the actual size.
    ///
    /// # Errors
    /// [`Error::Missing`] if the driver has no virtual memory calls; [`Error::Descriptor`] if the descriptor is
    /// number 0, which the driver does not accept, and cannot be duplicated; [`Error::Driver`] from
    /// `cuMemImportFromShareableHandle`, for example `CUDA_ERROR_UNKNOWN` if the descriptor is of something else.
    #[doc(alias = "cuMemImportFromShareableHandle")]
    pub fn import_fd(context: &Context, descriptor: BorrowedFd<'_>, bytes: usize) -> Result<Self> {
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let mut raw = 0;
        with_os_handle(descriptor, |number| {
            // SAFETY: for this handle type the "pointer" is the descriptor's number; writes one handle, to a local.
            unsafe { call!(context.api(), cuMemImportFromShareableHandle(&mut raw, number, kind)) }
        })?;
        Ok(Self::from_raw(context, raw, bytes, HandleTypes::POSIX_FD))
    }

    /// Opens physical memory that a process in the same NVLink domain exported. `bytes` is the size that the exporter
    /// states, as for [`import_fd`](Self::import_fd).
    ///
    /// # Errors
    /// [`Error::NoFabric`] if this process has no access to a fabric; [`Error::Missing`] below CUDA 12.3;
    /// [`Error::Driver`] from `cuMemImportFromShareableHandle` for other errors.
    #[doc(alias = "cuMemImportFromShareableHandle")]
    pub fn import_fabric(context: &Context, handle: &FabricHandle, bytes: usize) -> Result<Self> {
        context.api().require(Feature::FABRIC_HANDLES)?;
        let mut bits = CUmemFabricHandle { data: handle.0 };
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
        let (mut raw, from) = (0, (&raw mut bits).cast::<c_void>());
        // SAFETY: for this handle type the driver reads 64 bytes, from a local; writes one handle, to a local.
        let imported = unsafe { call!(context.api(), cuMemImportFromShareableHandle(&mut raw, from, kind)) };
        imported.map_err(no_fabric)?;
        Ok(Self::from_raw(context, raw, bytes, HandleTypes::FABRIC))
    }

    /// Returns the physical memory that is mapped at an address, whoever mapped it. `bytes` is the size of the whole
    /// allocation. The caller states it, because the driver does not report it. The driver refuses to map more than the
    /// actual size.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuMemRetainAllocationHandle`: `CUDA_ERROR_INVALID_VALUE` if nothing is mapped at the
    /// address, or if the memory there has no handle, such as memory from `cuMemAlloc`. [`Error::Driver`] from
    /// `cuMemGetAllocationPropertiesFromHandle`.
    #[doc(alias = "cuMemRetainAllocationHandle")]
    pub fn retain(context: &Context, ptr: DevicePtr, bytes: usize) -> Result<Self> {
        let mut raw = 0;
        let address = std::ptr::without_provenance_mut(usize::try_from(ptr.0).unwrap_or(usize::MAX));
        // SAFETY: the driver looks the address up and does not read from it; writes one handle, to a local that
        // outlives the call.
        unsafe { call!(context.api(), cuMemRetainAllocationHandle(&mut raw, address)) }?;
        // `inner` is made before the next call, so that the handle is released if that call fails.
        let mut inner = Inner { context: context.clone(), raw, bytes, handle_types: HandleTypes::empty() };
        inner.handle_types = properties_of(&inner)?.handle_types;
        Ok(Self { inner: Arc::new(inner) })
    }

    pub(super) fn from_raw(
        context: &Context,
        raw: CUmemGenericAllocationHandle,
        bytes: usize,
        handle_types: HandleTypes,
    ) -> Self {
        Self { inner: Arc::new(Inner { context: context.clone(), raw, bytes, handle_types }) }
    }

    /// Exports the memory as a new file descriptor, to be passed to another process. The descriptor keeps the pages
    /// alive.
    ///
    /// # Errors
    /// [`Error::NotExportable`] if [`handle_types`](Self::handle_types) lacks [`HandleTypes::POSIX_FD`];
    /// [`Error::Driver`] from `cuMemExportToShareableHandle`; [`Error::NoDescriptor`] if the driver reports success
    /// but returns no descriptor.
    #[doc(alias = "cuMemExportToShareableHandle")]
    pub fn export_fd(&self) -> Result<OwnedFd> {
        let Inner { context, raw, handle_types, .. } = &*self.inner;
        if !handle_types.contains(HandleTypes::POSIX_FD) {
            return Err(Error::NotExportable { made: *handle_types, wanted: HandleTypes::POSIX_FD });
        }
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        exported_fd("cuMemExportToShareableHandle", |out| {
            // SAFETY: for this handle type the driver writes an int, and `out` points to one.
            unsafe { call!(context.api(), cuMemExportToShareableHandle(out, *raw, kind, 0)) }
        })
    }

    /// Exports the memory as a fabric handle, which processes in the same NVLink domain can open. The fabric handle
    /// does not keep the pages alive; the memory that an importer opens does.
    ///
    /// # Errors
    /// [`Error::NotExportable`] if [`handle_types`](Self::handle_types) lacks [`HandleTypes::FABRIC`];
    /// [`Error::NoFabric`] if this process has no access to a fabric; [`Error::Driver`] from
    /// `cuMemExportToShareableHandle` for other errors.
    #[doc(alias = "cuMemExportToShareableHandle")]
    pub fn export_fabric(&self) -> Result<FabricHandle> {
        let Inner { context, raw, handle_types, .. } = &*self.inner;
        if !handle_types.contains(HandleTypes::FABRIC) {
            return Err(Error::NotExportable { made: *handle_types, wanted: HandleTypes::FABRIC });
        }
        let mut bits = CUmemFabricHandle { data: [0; 64] };
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
        let out = (&raw mut bits).cast::<c_void>();
        // SAFETY: for this handle type the driver writes 64 bytes, to a local that outlives the call.
        unsafe { call!(context.api(), cuMemExportToShareableHandle(out, *raw, kind, 0)) }
            .map_err(no_fabric)?;
        Ok(FabricHandle(bits.data))
    }

    /// Returns the properties that the driver reports. A process that imported the memory can find out the memory's
    /// device this way.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuMemGetAllocationPropertiesFromHandle`.
    #[doc(alias = "cuMemGetAllocationPropertiesFromHandle")]
    pub fn properties(&self) -> Result<PhysicalProperties> {
        properties_of(&self.inner)
    }

    /// Returns the ordinal of the device that holds the pages, from [`properties`](Self::properties).
    ///
    /// # Errors
    /// As [`properties`](Self::properties).
    pub fn device_ordinal(&self) -> Result<u32> {
        Ok(self.properties()?.device)
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.inner.bytes
    }

    /// The handle types that the memory can be exported as: those given to [`create`](Self::create), or the type that
    /// the memory was imported from. For [retained](Self::retain) memory, the types that the driver reports.
    #[must_use]
    pub fn handle_types(&self) -> HandleTypes {
        self.inner.handle_types
    }

    /// The context that the memory was created or opened with.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The driver's handle, valid while this memory lives.
    #[must_use]
    pub fn raw(&self) -> CUmemGenericAllocationHandle {
        self.inner.raw
    }
}

fn properties_of(memory: &Inner) -> Result<PhysicalProperties> {
    let mut properties = CUmemAllocationProp::default();
    let api = memory.context.api();
    // SAFETY: the handle is alive; writes the properties, to a local that outlives the call.
    unsafe { call!(api, cuMemGetAllocationPropertiesFromHandle(&mut properties, memory.raw)) }?;
    // SAFETY: the field is an integer for every type of location, and any bits are a value of it.
    let id = unsafe { properties.location.__bindgen_anon_1.id };
    Ok(PhysicalProperties {
        device: u32::try_from(id).unwrap_or(u32::MAX),
        handle_types: HandleTypes::from_bits_retain(properties.requestedHandleTypes.0),
        is_rdma_capable: properties.allocFlags.gpuDirectRDMACapable != 0,
    })
}

impl Drop for Inner {
    #[doc(alias = "cuMemRelease")]
    fn drop(&mut self) {
        // SAFETY: the handle is released once, and nothing uses it after this. After `retain`, the pages may still be
        // mapped. The driver then keeps them.
        teardown::report(unsafe { call!(self.context.api(), cuMemRelease(self.raw)) });
    }
}

impl fmt::Debug for PhysicalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { context, raw, bytes, handle_types } = &*self.inner;
        write!(f, "PhysicalMemory({raw:#x}, {bytes} bytes of {:?}, {handle_types:?})", context.device())
    }
}

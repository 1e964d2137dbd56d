//! Physical memory and its handles.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::sync::Arc;

use cuda_driver_sys::{
    CUdevice_attribute, CUmemAllocationHandleType, CUmemAllocationProp, CUmemGenericAllocationHandle,
};

use super::{HandleTypes, properties};
use crate::call::call;
use crate::{Context, Error, Result, teardown};

/// Pages of a device's memory, without an address until they are mapped. A handle, cheap to clone; the last one
/// gone (mappings hold one) releases the pages.
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
    /// Takes `bytes` bytes of the context's device, a multiple of the
    /// [granularity](super::Granularity), which can be exported in the given ways. It is open to RDMA by other
    /// devices where the device can do that.
    ///
    /// # Errors
    /// [`Error::Missing`] if the driver has no virtual memory calls; [`Error::Driver`] from `cuMemCreate`:
    /// `CUDA_ERROR_OUT_OF_MEMORY`, `CUDA_ERROR_INVALID_VALUE` for a size off the granularity,
    /// `CUDA_ERROR_NOT_SUPPORTED` or `CUDA_ERROR_NOT_PERMITTED` for a handle type.
    #[doc(alias = "cuMemCreate")]
    pub fn create(context: &Context, bytes: usize, handle_types: HandleTypes) -> Result<Self> {
        let device = context.device();
        let mut properties = properties(device, handle_types);
        // A driver that does not know the attribute cannot do it either.
        let rdma = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
        properties.allocFlags.gpuDirectRDMACapable = device.attribute(rdma).is_ok_and(|can| can != 0).into();
        let mut raw = 0;
        // SAFETY: reads the properties and writes one handle; both are locals that outlive the call.
        unsafe { call!(context.api(), cuMemCreate(&mut raw, bytes, &properties, 0)) }?;
        Ok(Self::from_raw(context, raw, bytes, handle_types))
    }

    /// Opens physical memory that another process, or this one, exported. The descriptor can be closed afterwards.
    /// `bytes` is the size that the exporter states: the driver does not tell, and refuses to map more than there
    /// is.
    ///
    /// # Errors
    /// [`Error::Missing`] if the driver has no virtual memory calls; [`Error::Driver`] from
    /// `cuMemImportFromShareableHandle`, for example `CUDA_ERROR_INVALID_VALUE` for a descriptor of something else.
    #[doc(alias = "cuMemImportFromShareableHandle")]
    pub fn import_fd(context: &Context, descriptor: BorrowedFd<'_>, bytes: usize) -> Result<Self> {
        let number = usize::try_from(descriptor.as_raw_fd()).unwrap_or(usize::MAX);
        let os_handle = std::ptr::without_provenance_mut::<c_void>(number);
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let mut raw = 0;
        // SAFETY: for this kind the "pointer" is the descriptor's number; writes one handle, to a local.
        unsafe { call!(context.api(), cuMemImportFromShareableHandle(&mut raw, os_handle, kind)) }?;
        Ok(Self::from_raw(context, raw, bytes, HandleTypes::POSIX_FD))
    }

    fn from_raw(
        context: &Context,
        raw: CUmemGenericAllocationHandle,
        bytes: usize,
        handle_types: HandleTypes,
    ) -> Self {
        Self { inner: Arc::new(Inner { context: context.clone(), raw, bytes, handle_types }) }
    }

    /// The memory as a new file descriptor, to be passed to another process. It keeps the pages.
    ///
    /// # Errors
    /// [`Error::NotExportable`] if it was made without [`HandleTypes::POSIX_FD`]; [`Error::Driver`] from
    /// `cuMemExportToShareableHandle`.
    #[doc(alias = "cuMemExportToShareableHandle")]
    pub fn export_fd(&self) -> Result<OwnedFd> {
        let Inner { context, raw, handle_types, .. } = &*self.inner;
        if !handle_types.contains(HandleTypes::POSIX_FD) {
            return Err(Error::NotExportable { made: *handle_types, wanted: HandleTypes::POSIX_FD });
        }
        let mut descriptor: c_int = -1;
        let out = (&raw mut descriptor).cast::<c_void>();
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // SAFETY: for this kind an int is written, to a local that outlives the call.
        unsafe { call!(context.api(), cuMemExportToShareableHandle(out, *raw, kind, 0)) }?;
        // SAFETY: the driver made the descriptor for this call, so nobody else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// The ordinal of the device that the pages lie on, as the driver says; an importer learns it this way.
    ///
    /// # Errors
    /// [`Error::Driver`] from `cuMemGetAllocationPropertiesFromHandle`.
    #[doc(alias = "cuMemGetAllocationPropertiesFromHandle")]
    pub fn device_ordinal(&self) -> Result<u32> {
        let mut properties = CUmemAllocationProp::default();
        let api = self.inner.context.api();
        // SAFETY: the handle is alive; writes the properties, to a local that outlives the call.
        unsafe { call!(api, cuMemGetAllocationPropertiesFromHandle(&mut properties, self.inner.raw)) }?;
        // SAFETY: an integer, whatever kind of location it is: every pattern of bits is a value.
        let id = unsafe { properties.location.__bindgen_anon_1.id };
        Ok(u32::try_from(id).unwrap_or(u32::MAX))
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.inner.bytes
    }

    /// How the memory can be exported.
    #[must_use]
    pub fn handle_types(&self) -> HandleTypes {
        self.inner.handle_types
    }

    /// The context it was made or imported in.
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

impl Drop for Inner {
    #[doc(alias = "cuMemRelease")]
    fn drop(&mut self) {
        // SAFETY: the handle is released once; mappings, which hold `self`, are gone.
        teardown::report(unsafe { call!(self.context.api(), cuMemRelease(self.raw)) });
    }
}

impl fmt::Debug for PhysicalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { context, raw, bytes, handle_types } = &*self.inner;
        write!(f, "PhysicalMemory({raw:#x}, {bytes} bytes of {:?}, {handle_types:?})", context.device())
    }
}

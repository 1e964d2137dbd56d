//! Legacy IPC handles, by which processes of one host share memory from `cuMemAlloc`. Memory from [`vmm`](crate::vmm)
//! is shared by file descriptors or fabric handles instead.

use std::ffi::c_char;

use cuda_driver_sys::{CUipcMem_flags, CUipcMemHandle};

use super::DeviceMemory;
use crate::call::call;
use crate::graph::RelaxedCapture;
use crate::{Context, DevicePtr, Result, teardown};

/// A handle with which other processes of the host can open an allocation. It is plain bytes, and may be sent to them
/// by any means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct IpcHandle(pub [u8; 64]);

impl DeviceMemory {
    /// Returns a handle with which other processes can open this allocation. The memory must stay allocated until all
    /// of them have closed it.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuIpcGetMemHandle`.
    #[doc(alias = "cuIpcGetMemHandle")]
    pub fn export_ipc(&self) -> Result<IpcHandle> {
        self.context().export_ipc(self.ptr())
    }
}

impl Context {
    /// Returns a handle with which other processes can open the allocation of `cuMemAlloc` that contains `ptr`.
    /// Opening the handle maps the whole allocation, from its first byte on. The memory must stay allocated until all
    /// processes have closed it.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuIpcGetMemHandle`: `CUDA_ERROR_INVALID_VALUE` if the memory is
    /// not from `cuMemAlloc`.
    #[doc(alias = "cuIpcGetMemHandle")]
    pub fn export_ipc(&self, ptr: DevicePtr) -> Result<IpcHandle> {
        let _current = self.enter()?;
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the driver looks the address up and does not read from it; writes 64 bytes, to a local that outlives
        // the call.
        unsafe { call!(self.api(), cuIpcGetMemHandle(&mut handle, ptr.0)) }?;
        Ok(IpcHandle(handle.reserved.map(|byte| byte.to_ne_bytes()[0])))
    }
}

/// An allocation of another process, mapped into this one. Dropping the value unmaps it; the other process keeps the
/// memory.
#[derive(Debug)]
pub struct ImportedMemory {
    context: Context,
    ptr: DevicePtr,
}

impl ImportedMemory {
    /// Maps the allocation that another process exported. The driver enables peer access to the allocation's device if
    /// necessary.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuIpcOpenMemHandle_v2`: `CUDA_ERROR_INVALID_CONTEXT` for a handle
    /// that this process exported; from some drivers `CUDA_ERROR_ALREADY_MAPPED` if the allocation is already open in
    /// this process; `CUDA_ERROR_MAP_FAILED` if the driver cannot map it.
    #[doc(alias = "cuIpcOpenMemHandle")]
    pub fn open(context: &Context, handle: IpcHandle) -> Result<Self> {
        let _current = context.enter()?;
        let raw = CUipcMemHandle { reserved: handle.0.map(|byte| c_char::from_ne_bytes([byte])) };
        let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0;
        let mut ptr = 0;
        // SAFETY: writes one address, to a local that outlives the call; the driver checks the handle.
        unsafe { call!(context.api(), cuIpcOpenMemHandle_v2(&mut ptr, raw, flags)) }?;
        Ok(Self { context: context.clone(), ptr: DevicePtr(ptr) })
    }

    /// The address in this process of the allocation's first byte.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// The context that the allocation was mapped into.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl Drop for ImportedMemory {
    #[doc(alias = "cuIpcCloseMemHandle")]
    fn drop(&mut self) {
        // Closing does not take part in an open capture and must not invalidate it.
        let _relaxed = RelaxedCapture::enter(self.context.driver());
        teardown::report(self.context.enter().and_then(|_current| {
            // SAFETY: `open` mapped the memory at this address, and nothing uses the mapping after this.
            unsafe { call!(self.context.api(), cuIpcCloseMemHandle(self.ptr.0)) }
        }));
    }
}

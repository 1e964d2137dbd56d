//! Legacy handles: memory from `cuMemAlloc` shared with other processes of the host. Memory from
//! [`vmm`](crate::vmm) is shared by file descriptors instead.

use std::ffi::c_char;

use cuda_driver_sys::{CUipcMem_flags, CUipcMemHandle};

use super::DeviceMemory;
use crate::call::call;
use crate::graph::RelaxedCapture;
use crate::{Context, DevicePtr, Result, teardown};

/// Names an allocation to other processes of the host: plain bytes, to be sent by any means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct IpcHandle(pub [u8; 64]);

impl DeviceMemory {
    /// Names this allocation to other processes. The memory must stay until all of them have closed it.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuIpcGetMemHandle`.
    #[doc(alias = "cuIpcGetMemHandle")]
    pub fn export_ipc(&self) -> Result<IpcHandle> {
        self.context().export_ipc(self.ptr())
    }
}

impl Context {
    /// Names the allocation of `cuMemAlloc` that an address lies in to other processes: all of it, from its first byte
    /// on. The memory must stay until all of them have closed it.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuIpcGetMemHandle`: `CUDA_ERROR_INVALID_VALUE` for other memory.
    #[doc(alias = "cuIpcGetMemHandle")]
    pub fn export_ipc(&self, ptr: DevicePtr) -> Result<IpcHandle> {
        let _current = self.enter()?;
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the address is looked up, not read; writes 64 bytes, to a local that outlives the call.
        unsafe { call!(self.api(), cuIpcGetMemHandle(&mut handle, ptr.0)) }?;
        Ok(IpcHandle(handle.reserved.map(|byte| byte.to_ne_bytes()[0])))
    }
}

/// Another process's allocation, mapped here. Dropping closes it; the memory stays its owner's.
#[derive(Debug)]
pub struct ImportedMemory {
    context: Context,
    ptr: DevicePtr,
}

impl ImportedMemory {
    /// Maps the allocation that another process exported; peer access to its device is enabled if need be.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuIpcOpenMemHandle_v2`: `CUDA_ERROR_INVALID_CONTEXT` for a
    /// handle of this same process, `CUDA_ERROR_ALREADY_MAPPED`, `CUDA_ERROR_MAP_FAILED`.
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

    /// The address of the allocation's first byte in this process.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// The context it was mapped into.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl Drop for ImportedMemory {
    #[doc(alias = "cuIpcCloseMemHandle")]
    fn drop(&mut self) {
        // Closing is not part of an open capture, and must not invalidate it.
        let _relaxed = RelaxedCapture::enter(self.context.driver());
        teardown::report(self.context.enter().and_then(|_current| {
            // SAFETY: opened by `open` and used by nobody after this.
            unsafe { call!(self.context.api(), cuIpcCloseMemHandle(self.ptr.0)) }
        }));
    }
}

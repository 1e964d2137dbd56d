//! The types of handles by which processes share memory.

use bitflags::bitflags;
use cuda_driver_sys::CUmemAllocationHandleType;

bitflags! {
    /// The types of handles that physical memory or a memory pool can be exported as.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct HandleTypes: u32 {
        /// A file descriptor, for processes on the same host.
        const POSIX_FD = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;
        /// A fabric handle of 64 bytes, for processes in the same NVLink domain.
        const FABRIC = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC.0;
        const _ = !0;
    }
}

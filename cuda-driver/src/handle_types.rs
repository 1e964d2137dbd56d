//! The kinds of handles that share memory between processes.

use bitflags::bitflags;
use cuda_driver_sys::CUmemAllocationHandleType;

bitflags! {
    /// The ways in which physical memory can be shared with other processes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct HandleTypes: u32 {
        /// A file descriptor, for processes of the same host.
        const POSIX_FD = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;
        /// 64 bytes, for processes of the same NVLink domain.
        const FABRIC = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC.0;
        const _ = !0;
    }
}

//! The windows of a communicator.

use std::{
    any::Any,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicPtr, Ordering},
    },
};

use cuda_driver::DevicePtr;
use nccl_sys::{ncclWindow_t, ncclWindow_vidmem};

use super::WindowFlags;

/// The cell to which NCCL writes a window's handle. NCCL does not specify when it writes, so the cell stays in place
/// until the communicator is gone.
pub(crate) type Cell = Arc<AtomicPtr<ncclWindow_vidmem>>;

/// The windows of a communicator.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    /// Serial number of the next window.
    pub(super) next: u64,
    /// Total bytes of all windows registered so far.
    pub(super) ever: u64,
    pub(super) live: Vec<Live>,
    /// Every cell whose address was passed to NCCL.
    pub(super) cells: Vec<Cell>,
    /// The memory under the windows, if a caller asked to keep it, and this crate's own memory for the communicator.
    pub(crate) kept: Vec<Arc<dyn Any + Send + Sync>>,
}

/// A window that is registered.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) serial: u64,
    pub(super) ptr: DevicePtr,
    pub(super) bytes: usize,
    pub(super) flags: WindowFlags,
    pub(super) cell: Cell,
}

impl Windows {
    pub(super) fn ranges(&self) -> Vec<(u64, usize)> {
        self.live.iter().map(|window| (window.ptr.0, window.bytes)).collect()
    }

    /// Takes the handles that NCCL has written, in registration order, and leaves null in their cells. Includes
    /// handles that NCCL wrote although the registration returned an error.
    pub(crate) fn take_handles(&self) -> Vec<ncclWindow_t> {
        let handles = self.cells.iter().map(|cell| cell.swap(ptr::null_mut(), Ordering::AcqRel));
        handles.filter(|handle| !handle.is_null()).collect()
    }

    /// Returns the handle of the symmetric window that contains `bytes` bytes at `address`, and the byte offset of
    /// `address` in that window. If several windows contain the bytes, returns the window that was registered last.
    pub(crate) fn handle(&self, address: u64, bytes: usize) -> Option<(ncclWindow_t, usize)> {
        let offset = |window: &Live| {
            let offset = usize::try_from(address.checked_sub(window.ptr.0)?).ok()?;
            let fits = offset.checked_add(bytes)? <= window.bytes;
            (fits && window.flags.contains(WindowFlags::SYMMETRIC)).then_some(offset)
        };
        let find = |window: &Live| Some((window.cell.load(Ordering::Acquire), offset(window)?));
        self.live.iter().rev().find_map(find)
    }
}

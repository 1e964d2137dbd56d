//! Addresses of the other members' windows on this rank.

use std::ptr;

use cuda_driver::DevicePtr;
use nccl_sys::Feature;

use super::{Window, WindowRequestError};
use crate::{
    comm::{Communicator, Result, call::call},
    store::Deadline,
};

impl Communicator {
    /// Returns the start address of a window on every rank, usable by kernels and copies of this rank's device.
    /// `None` for a rank whose memory this device cannot access directly. Local. Valid while the window is
    /// registered.
    ///
    /// # Errors
    /// [`Missing`](crate::comm::CommError::Missing) before NCCL 2.29; a
    /// [`WindowRequest`](crate::comm::CommError::WindowRequest) for a window of another communicator;
    /// [`Nccl`](crate::comm::CommError::Nccl); [`DeadlineExceeded`](crate::comm::CommError::DeadlineExceeded).
    #[doc(alias = "ncclGetPeerDevicePointer")]
    pub fn window_peers(&self, window: &Window, deadline: Deadline) -> Result<Vec<Option<DevicePtr>>> {
        const CALL: &str = "ncclGetPeerDevicePointer";
        self.nccl().api().require(Feature::PEER_POINTERS)?;
        let (serial, ptr, bytes) = (window.serial, window.ptr, window.bytes);
        let live = self.shared().windows().live.iter().any(|live| live.serial == serial);
        if !live || !ptr::eq(window.communicator.as_ptr(), std::sync::Arc::as_ptr(self.shared())) {
            let problem = format!("it is not a window of {}", self.name());
            return Err(WindowRequestError { index: 0, address: ptr.0, bytes, problem }.into());
        }
        let (raw, waiting_for) = (window.cell.clone(), "the addresses of a window".to_owned());
        self.serve(CALL, waiting_for, deadline, move |shared| {
            // It may have been deregistered before this thread came here.
            let window = raw.load(std::sync::atomic::Ordering::Acquire);
            if window.is_null() {
                let problem = "it is deregistered already".to_owned();
                return Err(WindowRequestError { index: 0, address: ptr.0, bytes, problem }.into());
            }
            let pointer = |rank: usize| {
                let mut pointer = ptr::null_mut();
                let rank = i32::try_from(rank).unwrap_or(i32::MAX);
                // SAFETY: the communicator is alive while this call is inside, and the window with it, which only this
                // thread deregisters; one pointer is written, to a local.
                unsafe {
                    call!(
                        &shared.nccl,
                        shared.name(),
                        ncclGetPeerDevicePointer(window, 0, rank, &mut pointer)
                    )
                }?;
                Ok((!pointer.is_null()).then_some(DevicePtr(pointer as u64)))
            };
            (0..shared.place.size).map(pointer).collect()
        })
    }
}

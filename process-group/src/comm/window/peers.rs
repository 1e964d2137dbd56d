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
    /// Returns, for every rank, the address at which this rank's device sees the start of that rank's copy of the
    /// window. Kernels and copies of this device can use the addresses. `None` for a rank whose memory this device
    /// cannot access directly. Local. The addresses are valid while the window is registered.
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
            // The window may have been deregistered before this job ran.
            let window = raw.load(std::sync::atomic::Ordering::Acquire);
            if window.is_null() {
                let problem = "it is deregistered already".to_owned();
                return Err(WindowRequestError { index: 0, address: ptr.0, bytes, problem }.into());
            }
            let pointer = |rank: usize| {
                let mut pointer = ptr::null_mut();
                let rank = i32::try_from(rank).unwrap_or(i32::MAX);
                // SAFETY: the call guard keeps the communicator alive during the call. The window is still
                // registered, because only this thread deregisters windows. NCCL writes one pointer, to the local
                // `pointer`.
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

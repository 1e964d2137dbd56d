//! Errors of the integration with cudarc.

use std::any::Any;

use ::cudarc::driver::DriverError;

use crate::core::{AllocError, StreamId};

/// The error of adopting a context, of registering a stream, or of making a slice.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudarcError {
    /// The cudarc context is not the device's primary context. For example, it was made by `cuCtxCreate`.
    #[error(
        "the context of device {ordinal} is not the device's primary context: make it by `CudaContext::new`, since the \
         allocator's driver layer uses primary contexts only"
    )]
    NotPrimary {
        /// The device's ordinal.
        ordinal: usize,
    },
    /// cudarc and [`Driver::load`](cuda_driver::Driver::load) have different primary contexts for the device. Either
    /// they use two copies of the driver library, or they number the devices differently.
    #[error(
        "the loaded driver has {} for device {ordinal}, expected cudarc's primary context {wanted:#x}: cudarc and this \
         crate must use the same copy of libcuda; unset `CUDA_DRIVER_SYS_LIBRARY` if it names another",
        .found.map_or_else(|| "no context".to_owned(), |found| format!("the primary context {found:#x}"))
    )]
    NotShared {
        /// The device's ordinal.
        ordinal: usize,
        /// The handle of cudarc's context.
        wanted: usize,
        /// The handle of the device's primary context in the loaded driver; `None` if the ordinal does not fit in 32
        /// bits.
        found: Option<usize>,
    },
    /// The stream belongs to another context than the adopted one.
    #[error(
        "the stream is of context {found_context:#x} of device {found}, expected a stream of the adopted context \
         {wanted_context:#x} of device {wanted}: make the stream by the adopted `CudaContext`, or adopt the stream's"
    )]
    OtherContext {
        /// The ordinal of the adopted context's device.
        wanted: usize,
        /// The handle of the adopted context.
        wanted_context: usize,
        /// The ordinal of the stream's device.
        found: usize,
        /// The handle of the stream's context.
        found_context: usize,
    },
    /// The stream is the per-thread default stream, which is a different stream on every thread.
    #[error(
        "the per-thread default stream is a different one on every thread, so no memory can be freed on it: use another"
    )]
    PerThreadStream,
    /// The block's allocator was not made with [`Adopted::events`](super::Adopted::events), the block was allocated on
    /// another stream than the given one, or the given stream was [forgotten](super::Adopted::forget).
    #[error(
        "the block at {address:#x} of {stream} cannot be a slice here: its allocator has to be made with this \
         `Adopted::events`, and the stream to be the one that it was allocated on"
    )]
    ForeignBlock {
        /// The address of the block's first byte.
        address: u64,
        /// The block's stream.
        stream: StreamId,
    },
    /// The block has fewer bytes than the slice needs.
    #[error("{len} elements of {size} bytes do not fit into a block of {bytes} bytes")]
    TooLong {
        /// Elements requested.
        len: usize,
        /// Bytes of one element.
        size: usize,
        /// Bytes of the block.
        bytes: u64,
    },
    /// The elements' alignment exceeds that of a block.
    #[error("elements aligned to {align} bytes cannot lie in a block, which begins at a multiple of 512")]
    Alignment {
        /// The alignment of the elements, in bytes.
        align: usize,
    },
    /// The allocator failed.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The driver layer failed.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
    /// cudarc failed. The error may come from an earlier call: cudarc keeps some errors, and returns them from its next
    /// call.
    #[error("cudarc: {0}")]
    Cuda(#[from] DriverError),
    /// cudarc panicked instead of returning an error.
    #[error("cudarc panicked while it made a slice: {message}")]
    Panicked {
        /// The message of the panic.
        message: String,
    },
}

impl CudarcError {
    pub(super) fn of_panic(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        Self::Panicked { message: text.unwrap_or("no message").to_owned() }
    }
}

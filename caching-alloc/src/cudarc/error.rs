//! Errors of the integration with cudarc.

use std::any::Any;

use ::cudarc::driver::DriverError;

use crate::core::{AllocError, StreamId};

/// Why memory could not be shared with cudarc.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudarcError {
    /// The context was made by `cuCtxCreate`.
    #[error(
        "the context of device {ordinal} is not the device's primary one, which `CudaContext::new` retains; the \
         allocator's driver layer is_registered that one only"
    )]
    NotPrimary {
        /// The device.
        ordinal: usize,
    },
    /// The driver that was found has another primary context: it is another copy, or numbers the devices
    /// differently.
    #[error(
        "cudarc has the primary context {wanted:#x} of device {ordinal}, the driver that this process has loaded has \
         {}; is there a second copy of libcuda, or `CUDA_DRIVER_SYS_LIBRARY` set?",
        .found.map_or_else(|| "no such device".to_owned(), |found| format!("{found:#x}"))
    )]
    NotShared {
        /// The device.
        ordinal: usize,
        /// cudarc's context.
        wanted: usize,
        /// This crate's context, if there is such a device.
        found: Option<usize>,
    },
    /// The stream belongs to another context.
    #[error("a stream of device {wanted} was expected, this one is of a context of device {found}")]
    OtherContext {
        /// The device of the context that was adopted.
        wanted: usize,
        /// The stream's.
        found: usize,
    },
    /// The per-thread default stream.
    #[error(
        "the per-thread default stream is another one on every thread, so no memory can be freed on it; make a stream"
    )]
    PerThreadStream,
    /// The block's allocator does not use the adopted context's streams, or the block belongs to another
    /// stream than the given one.
    #[error(
        "the block at {address:#x} of {stream} cannot be a slice here: its allocator has to be made with this \
         `Adopted::events`, and the stream to be the one that it was allocated on"
    )]
    ForeignBlock {
        /// Its first byte.
        address: u64,
        /// Its stream.
        stream: StreamId,
    },
    /// The block has fewer bytes than the slice needs.
    #[error("{len} elements of {size} bytes do not fit into a block of {bytes} bytes")]
    TooLong {
        /// Elements requested.
        len: usize,
        /// Bytes of one.
        size: usize,
        /// Bytes of the block.
        bytes: u64,
    },
    /// The elements' alignment exceeds that of a block.
    #[error("elements aligned to {align} bytes cannot lie in a block, which begins at a multiple of 512")]
    Alignment {
        /// Their alignment, in bytes.
        align: usize,
    },
    /// The allocator refused.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The driver layer failed.
    #[error(transparent)]
    Driver(#[from] cuda_driver::Error),
    /// cudarc failed; possibly with an earlier error, which it reports at its next call.
    #[error("cudarc: {0}")]
    Cuda(#[from] DriverError),
    /// cudarc panicked where it does not return an error.
    #[error("cudarc panicked while it made a slice: {message}")]
    Panicked {
        /// The panic's message.
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

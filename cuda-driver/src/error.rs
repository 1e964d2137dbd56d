//! Errors of the crate.

use cuda_driver_sys::{CUgraphExecUpdateResult, CUresult, LoadError, Missing};

use crate::address::DevicePtr;
use crate::driver_error::DriverError;
use crate::handle_types::HandleTypes;
use crate::module::{LaunchError, ModuleError};

/// The result of every call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver's library could not be loaded.
    #[error(
        "the CUDA driver could not be loaded (libcuda.so.1 comes with NVIDIA's kernel driver, not with the toolkit: \
         install the driver, or start the container with the GPUs mapped in)"
    )]
    Load(#[from] LoadError),

    /// The loaded driver lacks a function or a feature.
    #[error(transparent)]
    Missing(#[from] Missing),

    /// The driver answered with an error.
    #[error(transparent)]
    Driver(#[from] DriverError),

    /// There is no device of this ordinal.
    #[error("device {ordinal} was asked for, but the driver shows {count} (see CUDA_VISIBLE_DEVICES)")]
    NoSuchDevice {
        /// The ordinal that was asked for.
        ordinal: u32,
        /// The number of devices.
        count: u32,
    },

    /// There is no device of this name.
    #[error("no device that the process sees has the {what} {name:?} (see CUDA_VISIBLE_DEVICES)")]
    NoDeviceNamed {
        /// The kind of name.
        what: &'static str,
        /// The name that was asked for.
        name: String,
    },

    /// The device cannot do it.
    #[error("device {device} cannot do {what}; ask `Device::capabilities` before choosing this way")]
    Unsupported {
        /// The operation or feature.
        what: &'static str,
        /// The device's ordinal.
        device: u32,
    },

    /// Fabric handles were refused.
    #[error(
        "memory for fabric handles was refused: {function} failed with {name} ({code}). They need GPUs of an NVLink \
         domain, a fabric manager, and an IMEX channel that this process may open \
         (/dev/nvidia-caps-imex-channels/channel0); without, use file descriptors",
        code = .code.0
    )]
    NoFabric {
        /// The function that was called, by its symbol.
        function: &'static str,
        /// The code it returned.
        code: CUresult,
        /// The code's name.
        name: String,
    },

    /// An executable graph cannot be made to do what another graph does.
    #[error(
        "the executable graph cannot be updated: {reason:?} (instantiate the new graph instead; the old executable \
         still does what it did)"
    )]
    GraphUpdate {
        /// The difference, as the driver reports it.
        reason: CUgraphExecUpdateResult,
    },

    /// The file's name cannot be given to C.
    #[error("the path {path:?} has a NUL byte in it")]
    Path {
        /// The path.
        path: std::path::PathBuf,
    },

    /// A range leaves the object that it should lie in.
    #[error("{bytes} bytes at offset {offset} leave the {what} of {size} bytes")]
    OutOfBounds {
        /// The object.
        what: &'static str,
        /// Start of the range, in bytes from the object's start.
        offset: usize,
        /// The range's length in bytes.
        bytes: usize,
        /// The object's size in bytes.
        size: usize,
    },

    /// A range of addresses is not filled by whole pages.
    #[error(
        "{bytes} bytes at offset {offset} of the addresses from {start} are not whole pages: pages fill them up to \
         offset {up_to}"
    )]
    NotPages {
        /// The first address.
        start: DevicePtr,
        /// Start of the range, in bytes from the first address.
        offset: usize,
        /// The range's length in bytes.
        bytes: usize,
        /// End of the last page that begins in the range and has no hole before it, in bytes from the first
        /// address.
        up_to: usize,
    },

    /// Two objects of different contexts were brought together where the driver wants one.
    #[error(
        "{what} belongs to device {found}, but {user} belongs to device {wanted}: make both in the context of one device"
    )]
    DifferentDevices {
        /// The object.
        what: &'static str,
        /// Its device's ordinal.
        found: u32,
        /// The object that should have used it.
        user: &'static str,
        /// The ordinal of that object's device.
        wanted: u32,
    },

    /// Two objects of different drivers were brought together: a handle of one driver means nothing to another.
    #[error("{what} belongs to another driver than {user}: make both from one `Driver`")]
    DifferentDrivers {
        /// The object.
        what: &'static str,
        /// The object that should have used it.
        user: &'static str,
    },

    /// The call cannot become part of a capture.
    #[error("{what} was asked of a stream that is capturing: {instead}")]
    WhileCapturing {
        /// The call.
        what: &'static str,
        /// The alternative to use.
        instead: &'static str,
    },

    /// A capture may have begun or ended while work on slices was enqueued, so that a graph may hold the work.
    #[error(
        "a capture of the stream began or ended on another thread while {what} was enqueued: the memory that it uses \
         is never freed (do not begin captures of a stream that other threads use)"
    )]
    CaptureRace {
        /// The work.
        what: &'static str,
    },

    /// The end of a copy that uses a pinned slice is unknown, because a call of the driver failed.
    #[error(
        "the pinned slice may be in use by a copy whose end is unknown, since {cause}: its memory is never accessed or \
         freed again"
    )]
    UnknownEnd {
        /// The reason.
        cause: &'static str,
    },

    /// A range is not within a slice.
    #[error("elements {start}..{end} are not a range of a slice of {len} elements")]
    OutOfRange {
        /// First element of the range.
        start: usize,
        /// The element after the last one of the range.
        end: usize,
        /// The number of elements of the slice.
        len: usize,
    },

    /// Source and destination of a copy differ in length.
    #[error("{from} elements cannot be copied to {to}: take a part of the longer slice")]
    DifferentLengths {
        /// Elements of the source.
        from: usize,
        /// Elements of the destination.
        to: usize,
    },

    /// A slice was to belong to the per-thread default stream, which is another stream on each thread.
    #[error("a slice cannot belong to the per-thread default stream: create a stream for it")]
    PerThreadStream,

    /// The memory cannot be exported, because it was made without the handle type.
    #[error(
        "physical memory made for handle types {made:?} cannot be exported as {wanted:?}: ask for it at creation"
    )]
    NotExportable {
        /// The handle types that it was made for.
        made: HandleTypes,
        /// The handle type that was requested.
        wanted: HandleTypes,
    },

    /// A descriptor of number 0, which the driver does not take, could not be given another number.
    #[error("file descriptor 0 could not be duplicated for the driver, which does not take this number")]
    Descriptor {
        /// The system's error.
        source: std::io::Error,
    },

    /// The driver reported success for an export, and gave no descriptor.
    #[error(
        "{function} reported success but gave {found} for a file descriptor: the driver is broken; update it, or share \
         the memory another way"
    )]
    NoDescriptor {
        /// The function that was called, by its symbol.
        function: &'static str,
        /// The number in the descriptor's place.
        found: i32,
    },

    /// A module, or something in one, could not be had.
    #[error(transparent)]
    Module(#[from] ModuleError),

    /// A kernel was not launched.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

impl Error {
    /// The driver's code, if it was the driver that failed.
    #[must_use]
    pub fn code(&self) -> Option<CUresult> {
        match self {
            Self::Driver(DriverError { code, .. }) | Self::NoFabric { code, .. } => Some(*code),
            Self::Module(ModuleError::Refused { cause, .. }) => Some(cause.code),
            _ => None,
        }
    }

    /// Returns true if the driver was out of device or host memory.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.code() == Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }
}

/// Refuses a range that leaves its object.
pub(crate) fn within(what: &'static str, offset: usize, bytes: usize, size: usize) -> Result<()> {
    match offset.checked_add(bytes) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::OutOfBounds { what, offset, bytes, size }),
    }
}

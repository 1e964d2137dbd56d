//! Errors of the crate.

use cuda_driver_sys::{CUgraphExecUpdateResult, CUresult, LoadError, Missing};

use crate::address::DevicePtr;
use crate::driver_error::DriverError;
use crate::handle_types::HandleTypes;
use crate::module::{LaunchError, ModuleError};

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error type of this crate: one variant for each reason for which a call fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver's library could not be loaded.
    #[error("the CUDA driver could not be loaded")]
    Load(#[from] LoadError),

    /// The loaded driver lacks a function or a feature.
    #[error(transparent)]
    Missing(#[from] Missing),

    /// A call to the driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),

    /// There is no device with this ordinal.
    #[error(
        "device {ordinal} was asked for, but the driver shows {count} device(s), numbered from 0 (see CUDA_VISIBLE_DEVICES; with gpu-sim, World::builder().devices(n) or GPU_SIM_DEVICES)"
    )]
    NoSuchDevice {
        /// The ordinal that was asked for.
        ordinal: u32,
        /// The number of devices that the process can see.
        count: u32,
    },

    /// The process sees no device with this PCI bus id or UUID.
    #[error("no device that the process sees has the {what} {name:?} (see CUDA_VISIBLE_DEVICES)")]
    NoDeviceNamed {
        /// The kind of the name: PCI bus id or UUID.
        what: &'static str,
        /// The name that was asked for.
        name: String,
    },

    /// The device does not support the operation or feature.
    #[error("device {device} cannot do {what}; ask `Device::capabilities` before choosing this way")]
    Unsupported {
        /// The operation or feature.
        what: &'static str,
        /// The device's ordinal.
        device: u32,
    },

    /// The driver refused to make physical memory for fabric handles, or to export or import a fabric handle, by the
    /// code `CUDA_ERROR_NOT_SUPPORTED` or `CUDA_ERROR_NOT_PERMITTED`. For another code, and for the creation of a
    /// memory pool or a multicast object, the error is [`Error::Driver`].
    #[error(
        "memory for fabric handles was refused: {function} failed with {name} ({code}). They need GPUs of an NVLink \
         domain, a fabric manager, and an IMEX channel that this process may open \
         (/dev/nvidia-caps-imex-channels/channel0); without, use file descriptors",
        code = .code.0
    )]
    NoFabric {
        /// The symbol of the function that was called.
        function: &'static str,
        /// The code that the function returned.
        code: CUresult,
        /// The code's name.
        name: String,
    },

    /// An executable graph cannot be updated to another graph, because the two differ too much.
    #[error(
        "the executable graph cannot be updated: {reason:?} (instantiate the new graph instead; the old executable \
         still does what it did)"
    )]
    GraphUpdate {
        /// The reason, as the driver reports it.
        reason: CUgraphExecUpdateResult,
    },

    /// The path cannot be passed to the driver, because it contains a NUL byte.
    #[error("the path {path:?} has a NUL byte in it")]
    Path {
        /// The path.
        path: std::path::PathBuf,
    },

    /// A range is not inside the object to which it belongs.
    #[error("{bytes} bytes at offset {offset} leave the {what} of {size} bytes")]
    OutOfBounds {
        /// Description of the object.
        what: &'static str,
        /// Start of the range, in bytes from the object's start.
        offset: usize,
        /// The range's length in bytes.
        bytes: usize,
        /// The object's size in bytes.
        size: usize,
    },

    /// A range of a [`PageTable`](crate::vmm::PageTable)'s addresses is empty, contains an address where no page is
    /// mapped, or does not begin and end at page boundaries.
    #[error(
        "{bytes} bytes at offset {offset} of the addresses from {start} are not whole pages: pages fill them up to \
         offset {up_to}"
    )]
    NotPages {
        /// The first address of the page table.
        start: DevicePtr,
        /// Start of the range, in bytes from `start`.
        offset: usize,
        /// The range's length in bytes.
        bytes: usize,
        /// The pages from `offset` on follow each other without a hole up to this offset, in bytes from `start`. The
        /// value is `offset` if no page begins there or the range is empty. It exceeds the end of the range if a page
        /// crosses that end.
        up_to: usize,
    },

    /// Two objects that must belong to one device belong to different devices.
    #[error(
        "{what} belongs to device {found}, but {user} belongs to device {wanted}: make both in the context of one \
         device"
    )]
    DifferentDevices {
        /// Description of the first object.
        what: &'static str,
        /// The ordinal of the first object's device.
        found: u32,
        /// Description of the second object.
        user: &'static str,
        /// The ordinal of the second object's device.
        wanted: u32,
    },

    /// Two objects belong to different drivers. A handle of one driver is not valid for another.
    #[error("{what} belongs to another driver than {user}: make both from one `Driver`")]
    DifferentDrivers {
        /// Description of the first object.
        what: &'static str,
        /// Description of the second object.
        user: &'static str,
    },

    /// A stream that the call uses is capturing, and the call cannot be part of this capture.
    #[error("{what} was asked of a stream that is capturing: {instead}")]
    WhileCapturing {
        /// Description of the call.
        what: &'static str,
        /// Advice on calls to make instead.
        instead: &'static str,
    },

    /// During the call, another thread may have made a stream that the call uses part of a capture, or may have ended
    /// the capture of the stream on which the call enqueues work. It is then unknown whether this work is part of a
    /// graph. If the work may have been enqueued, the memory that it uses is never freed.
    ///
    /// Calls that enqueue work on slices, allocate a slice, or make a stream wait for another stream can return this
    /// error.
    #[error(
        "a capture of the stream began or ended on another thread while {what} was enqueued: memory that the work may \
         use is never freed (do not begin captures of a stream that other threads use)"
    )]
    CaptureRace {
        /// Description of the work.
        what: &'static str,
    },

    /// A pinned slice cannot be used, because it is unknown when a copy that uses it ends: a call to the driver failed,
    /// or raced with a capture.
    #[error(
        "the pinned slice may be in use by a copy whose end is unknown, since {cause}: its memory is never accessed or \
         freed again"
    )]
    UnknownEnd {
        /// The reason.
        cause: &'static str,
    },

    /// A range of elements is not inside its slice, or starts after its end.
    #[error("elements {start}..{end} are not a range of a slice of {len} elements")]
    OutOfRange {
        /// Index of the first element of the range.
        start: usize,
        /// Index after the last element of the range.
        end: usize,
        /// The number of elements of the slice.
        len: usize,
    },

    /// The source and the destination of a copy differ in length.
    #[error("{from} elements cannot be copied to {to}: take a part of the longer slice")]
    DifferentLengths {
        /// Elements of the source.
        from: usize,
        /// Elements of the destination.
        to: usize,
    },

    /// A slice cannot belong to the per-thread default stream, which is a different stream on each thread.
    #[error("a slice cannot belong to the per-thread default stream: create a stream for it")]
    PerThreadStream,

    /// Physical memory cannot be exported as a handle type that was not requested when the memory was made. Imported
    /// memory can be exported only as the type of the handle from which it was imported.
    #[error(
        "physical memory made for handle types {made:?} cannot be exported as {wanted:?}: ask for it at creation"
    )]
    NotExportable {
        /// The handle types that were requested when the memory was made. For imported memory, the type of the imported
        /// handle. For [retained](crate::vmm::PhysicalMemory::retain) memory, the types that the driver reports.
        made: HandleTypes,
        /// The handle type of the export.
        wanted: HandleTypes,
    },

    /// File descriptor 0 could not be duplicated. The driver does not accept this number, so the import needs a
    /// duplicate.
    #[error("file descriptor 0 could not be duplicated for the driver, which does not take this number")]
    Descriptor {
        /// The error of the operating system.
        source: std::io::Error,
    },

    /// The driver reported success for an export, but returned no valid file descriptor.
    #[error(
        "{function} reported success but gave {found} for a file descriptor: the driver is broken; update it, or share \
         the memory another way"
    )]
    NoDescriptor {
        /// The symbol of the function that was called.
        function: &'static str,
        /// The number that the driver returned.
        found: i32,
    },

    /// A module could not be loaded, or does not contain what was looked up in it.
    #[error(transparent)]
    Module(#[from] ModuleError),

    /// A launch has a mistake that this crate found. If the driver refuses a launch, the error is [`Error::Driver`].
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

impl Error {
    /// Returns the code that the driver returned, for [`Error::Driver`], [`Error::NoFabric`] and
    /// [`ModuleError::Refused`]. Returns `None` for every other error.
    #[must_use]
    pub fn code(&self) -> Option<CUresult> {
        match self {
            Self::Driver(DriverError { code, .. }) | Self::NoFabric { code, .. } => Some(*code),
            Self::Module(ModuleError::Refused { cause, .. }) => Some(cause.code),
            _ => None,
        }
    }

    /// Returns true if the [code](Self::code) is `CUDA_ERROR_OUT_OF_MEMORY`: no device memory, host memory or range of
    /// addresses of the requested size was left, or a size limit (of a memory pool or of locked memory) was exceeded.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.code() == Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }
}

/// Returns [`Error::OutOfBounds`] unless the range of `bytes` bytes at `offset` lies inside the object `what` of `size`
/// bytes.
pub(crate) fn within(what: &'static str, offset: usize, bytes: usize, size: usize) -> Result<()> {
    match offset.checked_add(bytes) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::OutOfBounds { what, offset, bytes, size }),
    }
}

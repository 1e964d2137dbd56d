//! Errors of the registration of segments.

use caching_alloc::core::TrackError;

use crate::comm::{CommError, Unsettled};

/// The result of the functions of this module.
pub type Result<T, E = RegistrarError> = std::result::Result<T, E>;

/// The reason why segments are not registered as required.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistrarError {
    /// Another registrar of this process follows the allocator already.
    #[error(
        "the allocator of device {device} is followed by a registrar of this process already; one serves all \
         communicators"
    )]
    AlreadyAttached {
        /// The allocator's device.
        device: u32,
    },
    /// The communicator is not on the allocator's device.
    #[error("{communicator} is of device {found}, but the allocator's segments are on device {wanted}")]
    WrongDevice {
        /// The communicator's name.
        communicator: String,
        /// The communicator's device.
        found: u32,
        /// The allocator's device.
        wanted: u32,
    },
    /// The registrar serves the communicator already.
    #[error("{communicator} is served by this registrar already")]
    AlreadyServed {
        /// The communicator's name.
        communicator: String,
    },
    /// The registrar does not serve the communicator.
    #[error("{communicator} is not served by this registrar: nothing of it can be deregistered")]
    NotServed {
        /// The communicator's name.
        communicator: String,
    },
    /// A segment could not be registered.
    #[error("the segment of {bytes} bytes at {address:#x} could not be registered")]
    Register {
        /// Start address of the segment.
        address: u64,
        /// Length of the segment in bytes.
        bytes: u64,
        /// The failure.
        source: CommError,
    },
    /// A segment could not be deregistered. The segment is held until the communicator is gone, so that its memory is
    /// not reused.
    #[error(
        "the segment at {address:#x} could not be deregistered, and is held until the communicator is gone"
    )]
    Deregister {
        /// Start address of the segment.
        address: u64,
        /// The failure.
        source: CommError,
    },
    /// A segment could not be registered with a communicator, which was therefore poisoned.
    #[error("{communicator} lacks a registration and can only be aborted, on every rank: {reason}")]
    Lacking {
        /// The communicator's name.
        communicator: String,
        /// The first failed registration, in words.
        reason: String,
    },
    /// Groups rely on the registrations, so the registrar cannot be detached.
    #[error(
        "{groups} group(s) rely on this registrar: end them first, or let it be dropped, which waits for them"
    )]
    InUse {
        /// Number of groups.
        groups: usize,
    },
    /// A segment was released before it could be held.
    #[error(transparent)]
    Released(#[from] caching_alloc::core::SegmentReleased),
    /// The allocator failed.
    #[error(transparent)]
    Allocator(#[from] TrackError),
}

impl From<Unsettled> for RegistrarError {
    fn from(unsettled: Unsettled) -> Self {
        let Unsettled { address, bytes, is_registration, source } = unsettled;
        let source = *source;
        match is_registration {
            true => Self::Register { address, bytes: bytes as u64, source },
            false => Self::Deregister { address, source },
        }
    }
}

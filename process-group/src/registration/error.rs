//! What can go wrong with the registration of segments.

use caching_alloc::core::TrackError;

use crate::comm::{self, CommError};

/// The result of the calls of this module.
pub type Result<T, E = RegistrarError> = std::result::Result<T, E>;

/// Why segments are not registered as they should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistrarError {
    /// A communicator of another device than the allocator's.
    #[error("{communicator} is of device {found}, but the allocator's segments are on device {wanted}")]
    WrongDevice {
        /// Which communicator.
        communicator: String,
        /// Its device.
        found: u32,
        /// The allocator's device.
        wanted: u32,
    },
    /// A segment could not be registered.
    #[error("the segment of {bytes} bytes at {address:#x} could not be registered")]
    Register {
        /// Where the segment starts.
        address: u64,
        /// Its length.
        bytes: u64,
        /// What failed.
        source: CommError,
    },
    /// A segment could not be deregistered. It is held, so that its memory is not used for anything else.
    #[error("the segment of {bytes} bytes at {address:#x} could not be deregistered, and is held")]
    Deregister {
        /// Where the segment starts.
        address: u64,
        /// Its length.
        bytes: u64,
        /// What failed.
        source: CommError,
    },
    /// A segment was registered no more after an earlier failure.
    #[error(
        "the registrar is poisoned: {reason}. Buffers of this rank may be registered where those of other ranks are \
         not; agree on going on without registration, or make the communicators anew"
    )]
    Poisoned {
        /// The first failure.
        reason: String,
    },
    /// A segment's memory had gone before it could be held.
    #[error(transparent)]
    Released(#[from] caching_alloc::core::SegmentReleased),
    /// The allocator.
    #[error(transparent)]
    Allocator(#[from] TrackError),
}

/// Reports a failure that has nobody to return to.
pub(super) fn report(error: RegistrarError) {
    match error {
        RegistrarError::Register { source, .. } | RegistrarError::Deregister { source, .. } => {
            comm::report(&source);
        }
        _ => {}
    }
}

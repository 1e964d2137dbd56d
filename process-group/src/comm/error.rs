//! Errors of the NCCL layer.

use std::{io, path::PathBuf, time::Duration};

use nccl_sys::{Meaning, ncclResult_t};

use super::{ArgumentError, WindowRequestError};

/// The result of the calls of this module.
pub type Result<T, E = CommError> = std::result::Result<T, E>;

/// Why a call of the NCCL layer failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// NCCL could not be loaded.
    #[error("NCCL could not be loaded")]
    Load(#[from] nccl_sys::LoadError),

    /// The loaded library lacks a function or a feature.
    #[error(transparent)]
    Missing(Box<nccl_sys::Missing>),

    /// The CUDA driver failed.
    #[error(transparent)]
    Driver(Box<cuda_driver::Error>),

    /// An argument was refused before anything was launched.
    #[error(transparent)]
    Argument(#[from] ArgumentError),

    /// A window request was refused before anything was registered.
    #[error(transparent)]
    WindowRequest(#[from] WindowRequestError),

    /// NCCL returned an error.
    #[error("{call} failed on {communicator} with {meaning}: {text}{}", remark(.last))]
    Nccl {
        /// The function, by its symbol.
        call: &'static str,
        /// The communicator's name.
        communicator: String,
        /// The code it returned.
        code: ncclResult_t,
        /// The meaning of the code in the loaded release. Releases give different meanings to one number.
        meaning: Meaning,
        /// NCCL's text for the code.
        text: String,
        /// `ncclGetLastError` right after the call. NCCL keeps one text per process without a lock, so the text may
        /// concern another communicator.
        last: Option<String>,
    },

    /// NCCL returned success without writing its result: the library is not the one that it claims to be.
    #[error(
        "{call} answered success on {communicator}, but gave no {what}; is {} really NCCL {release}?",
        .path.as_ref().map_or("the table that was handed over".into(), |path| path.display().to_string())
    )]
    Unwritten {
        /// The function, by its symbol.
        call: &'static str,
        /// The communicator's name.
        communicator: String,
        /// The missing result.
        what: &'static str,
        /// The release that the library reports.
        release: nccl_sys::Version,
        /// Its file, if it comes from one.
        path: Option<PathBuf>,
    },

    /// A call took longer than its caller's deadline.
    #[error(
        "{communicator}: waited {waited:.1?} for {waiting_for}. The communicator is unusable now: abort it, on every \
         rank, and make a new one"
    )]
    DeadlineExceeded {
        /// The communicator's name.
        communicator: String,
        /// The event that did not happen.
        waiting_for: String,
        /// Duration of the wait.
        waited: Duration,
    },

    /// An earlier failure left the communicator in an unknown state.
    #[error("{call}: {communicator} is unusable since {reason}: abort it, on every rank, and make a new one")]
    Poisoned {
        /// The call that was refused.
        call: &'static str,
        /// The communicator's name.
        communicator: String,
        /// The earlier failure.
        reason: String,
    },

    /// NCCL has not been asked yet to make the communicator of a [lazy](crate::group::Builder::lazy) group.
    #[error("{call}: {communicator} is not made yet; connect its group first, on every member")]
    Unmade {
        /// The call that was refused.
        call: &'static str,
        /// The communicator's name.
        communicator: String,
    },

    /// The communicator was revoked.
    #[error(
        "{call}: {communicator} was revoked: it can be split, shrunk, destroyed or aborted, and takes no work"
    )]
    Revoked {
        /// The call that was refused.
        call: &'static str,
        /// The communicator's name.
        communicator: String,
    },

    /// The communicator is [suspended](super::Communicator::suspend).
    #[error("{call}: {communicator} is suspended; call resume first, on every rank")]
    Suspended {
        /// The call that was refused.
        call: &'static str,
        /// The communicator's name.
        communicator: String,
    },

    /// A communicator that is to be [resumed](super::Communicator::resume) is not suspended.
    #[error("{call}: {communicator} is not suspended")]
    NotSuspended {
        /// The call that was refused.
        call: &'static str,
        /// The communicator's name.
        communicator: String,
    },

    /// The communicator was [adopted](super::Communicator::adopt), and only its owner may make the call.
    #[error(
        "{call}: {communicator} was adopted; only its owner may abort, revoke, suspend, grow, shrink or \
         destroy it. Release it, and leave that to the owner"
    )]
    Adopted {
        /// The call that was refused.
        call: &'static str,
        /// The communicator's name.
        communicator: String,
    },

    /// NCCL describes a communicator that was to be [adopted](super::Communicator::adopt) differently than the caller.
    #[error("{communicator} was not adopted: NCCL says that its {what} is {found}, expected {expected}")]
    AdoptionMismatch {
        /// The communicator's name.
        communicator: String,
        /// `rank`, `size` or `device`.
        what: &'static str,
        /// The value that the caller gave.
        expected: usize,
        /// NCCL's value.
        found: i32,
    },

    /// The communicator was destroyed or aborted.
    #[error("{call}: {communicator} is gone, {how}")]
    Closed {
        /// The call that was refused.
        call: &'static str,
        /// The communicator's name.
        communicator: String,
        /// The communicator's end: destroyed, aborted, dropped or leaked.
        how: String,
    },

    /// Another call held the communicator beyond the caller's deadline.
    #[error("{call}: {communicator} was busy with {busy_with} for {waited:.1?}")]
    Busy {
        /// The call that did not get in.
        call: &'static str,
        /// The communicator's name.
        communicator: String,
        /// The call, or the open group, that held it.
        busy_with: &'static str,
        /// Duration of the wait.
        waited: Duration,
    },

    /// The call would be queued in the NCCL group that is open on this thread, which is not allowed.
    #[error("{call} was called inside an open group of this thread; finish the group first")]
    InsideGroup {
        /// The call that was refused.
        call: &'static str,
    },

    /// Two threads with open groups need each other's communicators.
    #[error(
        "{call}: {communicator} belongs to the open group of another thread, and this thread's group holds other \
         communicators; waiting could last for ever. Finish one group first, or take the communicators in one order"
    )]
    GroupConflict {
        /// The call that was refused.
        call: &'static str,
        /// The communicator that the other group holds.
        communicator: String,
    },

    /// The communicator could neither be destroyed nor aborted safely, so its memory is never freed.
    #[error(
        "{communicator} was leaked: {why}. Its memory, and what was registered with it, must not be reused"
    )]
    Leaked {
        /// The communicator's name.
        communicator: String,
        /// Why it could not be freed.
        why: String,
    },

    /// NCCL accepted the memory but registered nothing.
    #[error(
        "{communicator}: NCCL answered success to the registration of {bytes} bytes at {address:#x} and registered \
         nothing; does a file with settings (NCCL_CONF_FILE) set NCCL_LOCAL_REGISTER=0 or NCCL_P2P_USE_CUDA_MEMCPY=1?"
    )]
    NothingRegistered {
        /// The communicator's name.
        communicator: String,
        /// Start address of the memory.
        address: u64,
        /// Its length in bytes.
        bytes: usize,
    },

    /// A unique id has the wrong length.
    #[error(
        "a unique id has 128 bytes, but {found} bytes were given; did another version of the program write it?"
    )]
    UniqueIdLength {
        /// The number of bytes given.
        found: usize,
    },

    /// A communicator's configuration that the loaded release does not accept.
    #[error(transparent)]
    Config(#[from] nccl_sys::ConfigError),

    /// A setting that NCCL would not accept.
    #[error("communicator setting {setting}: {problem}")]
    Setting {
        /// Which setting.
        setting: &'static str,
        /// Description of the problem.
        problem: String,
    },

    /// The operating system did not start a thread.
    #[error("could not start the service thread of {communicator}")]
    Thread {
        /// The name of the communicator that needs the thread.
        communicator: String,
        /// The operating system's error.
        source: io::Error,
    },
}

impl From<nccl_sys::Missing> for CommError {
    fn from(missing: nccl_sys::Missing) -> Self {
        Self::Missing(Box::new(missing))
    }
}

impl From<cuda_driver::Error> for CommError {
    fn from(error: cuda_driver::Error) -> Self {
        Self::Driver(Box::new(error))
    }
}

impl From<Box<Self>> for CommError {
    #[cold]
    fn from(error: Box<Self>) -> Self {
        *error
    }
}

impl From<Box<ArgumentError>> for CommError {
    #[cold]
    fn from(error: Box<ArgumentError>) -> Self {
        Self::Argument(*error)
    }
}

impl From<Box<ArgumentError>> for Box<CommError> {
    #[cold]
    fn from(error: Box<ArgumentError>) -> Self {
        Self::new(error.into())
    }
}

impl From<cuda_driver::Error> for Box<CommError> {
    #[cold]
    fn from(error: cuda_driver::Error) -> Self {
        Self::new(error.into())
    }
}

impl CommError {
    /// Returns NCCL's code if NCCL failed.
    #[must_use]
    pub fn code(&self) -> Option<ncclResult_t> {
        match self {
            Self::Nccl { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Returns true if the error leaves the communicator in an unknown state. NCCL refuses bad arguments before it
    /// does anything, so those errors do not.
    pub(crate) fn poisons(&self) -> bool {
        match self {
            Self::Nccl { meaning, .. } => {
                !matches!(meaning, Meaning::InvalidArgument | Meaning::InvalidUsage)
            }
            Self::DeadlineExceeded { .. } | Self::Unwritten { .. } => true,
            _ => false,
        }
    }
}

fn remark(text: &Option<String>) -> String {
    text.as_ref()
        .map(|text| format!(" (NCCL's last message, perhaps of another call: {text})"))
        .unwrap_or_default()
}

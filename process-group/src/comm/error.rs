//! Errors of the NCCL layer.

use std::{io, path::PathBuf, time::Duration};

use nccl_sys::{Meaning, ncclResult_t};

use super::{ArgumentError, WindowRequestError};

/// Result of functions of this module.
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

    /// An argument was refused before any work was enqueued.
    #[error(transparent)]
    Argument(#[from] ArgumentError),

    /// A window request was refused before any window was registered.
    #[error(transparent)]
    WindowRequest(#[from] WindowRequestError),

    /// NCCL returned an error.
    #[error("{call} failed on {communicator} with {meaning}: {text}{}", remark(.last))]
    Nccl {
        /// Name of the NCCL function.
        call: &'static str,
        /// The communicator's name.
        communicator: String,
        /// The result code that NCCL returned.
        code: ncclResult_t,
        /// Meaning of the code in the loaded release. The same number can mean different errors in different releases.
        meaning: Meaning,
        /// NCCL's text for the code (`ncclGetErrorString`).
        text: String,
        /// Text of `ncclGetLastError` right after the call. NCCL keeps only one such text per process, without a lock,
        /// so the text may be about another communicator.
        last: Option<String>,
    },

    /// NCCL returned success without writing its result. The library is probably not the NCCL release that it reports.
    #[error(
        "{call} answered success on {communicator}, but gave no {what}; is {} really NCCL {release}?",
        .path.as_ref().map_or("the table that was handed over".into(), |path| path.display().to_string())
    )]
    Unwritten {
        /// Name of the NCCL function.
        call: &'static str,
        /// The communicator's name.
        communicator: String,
        /// Name of the missing result.
        what: &'static str,
        /// The release that the library reports.
        release: nccl_sys::Version,
        /// The library's file. `None` if the function table was supplied by the caller.
        path: Option<PathBuf>,
    },

    /// A call did not return by the caller's deadline.
    #[error(
        "{communicator}: waited {waited:.1?} for {waiting_for}. The communicator is unusable now: abort it, on every \
         rank, and make a new one"
    )]
    DeadlineExceeded {
        /// The communicator's name.
        communicator: String,
        /// The awaited event, which did not happen.
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
        /// Description of the earlier failure.
        reason: String,
    },

    /// The call needs a communicator that is not made yet: the communicator of a [lazy](crate::group::Builder::lazy)
    /// group that is not connected.
    #[error("{call}: {communicator} is not made yet; connect its group first, on every member")]
    Unmade {
        /// The call that was refused.
        call: &'static str,
        /// The communicator's name.
        communicator: String,
    },

    /// The communicator was [revoked](super::Communicator::revoke), and takes no further work.
    #[error(
        "{}{communicator} was revoked: it can be split, shrunk, destroyed or aborted, and takes no work",
        prefix(.call)
    )]
    Revoked {
        /// The call that was refused. Empty in the error of a process group, whose
        /// [`operation`](crate::group::GroupError::operation) is the call.
        call: &'static str,
        /// The communicator's name. `the group` in the error of a process group.
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

    /// [`resume`](super::Communicator::resume) was called on a communicator that is not suspended.
    #[error("{call}: {communicator} is not suspended")]
    NotSuspended {
        /// The call that was refused.
        call: &'static str,
        /// The communicator's name.
        communicator: String,
    },

    /// The communicator was [adopted](super::Communicator::adopt), and the call is reserved for its owner.
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

    /// The caller of [`adopt`](super::Communicator::adopt) gave another rank, size or device than NCCL reports for the
    /// communicator.
    #[error("{communicator} was not adopted: NCCL says that its {what} is {found}, expected {expected}")]
    AdoptionMismatch {
        /// The communicator's name.
        communicator: String,
        /// The value that differs: `rank`, `size` or `device`.
        what: &'static str,
        /// The value that the caller gave.
        expected: usize,
        /// The value that NCCL reports.
        found: i32,
    },

    /// The communicator has ended, or is being destroyed, aborted or released.
    #[error("{}{communicator} is gone, {how}", prefix(.call))]
    Closed {
        /// The call that was refused. Empty in the error of a process group, whose
        /// [`operation`](crate::group::GroupError::operation) is the call.
        call: &'static str,
        /// The communicator's name. `the group` in the error of a process group.
        communicator: String,
        /// How the communicator ended: destroyed, aborted, dropped, released or leaked.
        how: String,
    },

    /// Another call used the communicator until after the caller's deadline.
    #[error("{call}: {communicator} was busy with {busy_with} for {waited:.1?}")]
    Busy {
        /// The call that had to wait.
        call: &'static str,
        /// The communicator's name.
        communicator: String,
        /// The call, or the open group, that used the communicator.
        busy_with: &'static str,
        /// Duration of the wait.
        waited: Duration,
    },

    /// The calling thread has an open NCCL group, in which this call is not allowed.
    #[error("{call} was called inside an open group of this thread; finish the group first")]
    InsideGroup {
        /// The call that was refused.
        call: &'static str,
    },

    /// A thread with an open group needs a communicator that another thread's open group holds. Waiting could deadlock.
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

    /// The destruction, abort or release of the communicator failed, or did not end by the deadline. A destruction or
    /// release that goes on in the background may still succeed. Otherwise the communicator's memory is never freed.
    #[error(
        "{communicator} was leaked: {why}. Its memory, and what was registered with it, must not be reused"
    )]
    Leaked {
        /// The communicator's name.
        communicator: String,
        /// The reason why the communicator could not be freed.
        why: String,
    },

    /// NCCL accepted the memory but registered nothing.
    #[error(
        "{communicator}: NCCL answered success to the registration of {bytes} bytes at {address:#x} and registered \
         nothing; remove NCCL_LOCAL_REGISTER=0 and NCCL_P2P_USE_CUDA_MEMCPY=1 from the environment and from the file \
         with NCCL's settings (NCCL_CONF_FILE)"
    )]
    NothingRegistered {
        /// The communicator's name.
        communicator: String,
        /// Start address of the memory.
        address: u64,
        /// Length of the memory in bytes.
        bytes: usize,
    },

    /// The bytes of a unique id have the wrong length.
    #[error(
        "a unique id has 128 bytes, but {found} bytes were given; did another version of the program write it?"
    )]
    UniqueIdLength {
        /// The number of bytes given.
        found: usize,
    },

    /// A field of `ncclConfig_t` has a value that NCCL or this crate refuses.
    #[error(transparent)]
    Config(#[from] nccl_sys::ConfigError),

    /// An argument or feature outside `ncclConfig_t` is not usable, for example a split color above `i32::MAX`.
    #[error("communicator setting {setting}: {problem}")]
    Setting {
        /// Name of the argument, variable or feature.
        setting: &'static str,
        /// Description of the problem.
        problem: String,
    },

    /// The operating system did not start a thread.
    #[error("could not start the service thread of {communicator}")]
    Thread {
        /// Name of the communicator that needs the thread.
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
    /// Returns NCCL's result code if this is an error that NCCL returned.
    #[must_use]
    pub fn code(&self) -> Option<ncclResult_t> {
        match self {
            Self::Nccl { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Returns true if the error leaves the communicator in an unknown state. An argument that NCCL refuses does not,
    /// because NCCL checks arguments first.
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

/// Returns the start of an error's text: the call, if it is known.
fn prefix(call: &str) -> String {
    if call.is_empty() { String::new() } else { format!("{call}: ") }
}

fn remark(text: &Option<String>) -> String {
    text.as_ref()
        .map(|text| format!(" (NCCL's last message, perhaps of another call: {text})"))
        .unwrap_or_default()
}

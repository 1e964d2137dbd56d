//! Errors of NCCL calls: a code, and a text for `ncclGetLastError`.

use std::ffi::c_char;
use std::sync::atomic::{AtomicU8, Ordering};

use nccl_sys::ncclResult_t;

use super::bootstrap::JoinError;
use crate::sched::WaitError;

pub(crate) type Result<T = ()> = std::result::Result<T, Failure>;

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: ncclResult_t,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self { code: ncclResult_t::ncclInvalidArgument, text: text.into() }
    }

    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self { code: ncclResult_t::ncclInvalidUsage, text: text.into() }
    }

    pub(crate) fn cuda(text: impl Into<String>) -> Self {
        Self { code: ncclResult_t::ncclUnhandledCudaError, text: text.into() }
    }

    pub(crate) fn internal(text: impl Into<String>) -> Self {
        Self { code: ncclResult_t::ncclInternalError, text: text.into() }
    }

    pub(crate) fn system(text: impl Into<String>) -> Self {
        Self { code: ncclResult_t::ncclSystemError, text: text.into() }
    }

    pub(crate) fn remote(text: impl Into<String>) -> Self {
        Self { code: ncclResult_t::ncclRemoteError, text: text.into() }
    }
}

impl From<JoinError> for Failure {
    fn from(error: JoinError) -> Self {
        let text = error.to_string();
        match error {
            JoinError::Refused(_) => Self::usage(text),
            JoinError::NoRoot(_) | JoinError::System(..) => Self::system(text),
            JoinError::Lost { .. } => Self::remote(text),
        }
    }
}

/// A wait of a communicator that ended early.
#[derive(Clone, Debug)]
pub(crate) enum Interrupted {
    /// `ncclCommAbort`.
    Aborted,
    /// `ncclCommRevoke`.
    Revoked,
    /// Strict mode: this rank's device faulted, so it will never arrive.
    Faulted(usize),
    /// Strict mode: this rank has destroyed its communicator, so it will never arrive.
    Departed(usize),
    /// The world ended, or detected a deadlock.
    World(WaitError),
}

impl From<Interrupted> for Failure {
    fn from(interrupted: Interrupted) -> Self {
        match interrupted {
            Interrupted::Aborted => Self::internal("the communicator was aborted"),
            Interrupted::Revoked => Self::usage("the communicator was revoked"),
            Interrupted::Faulted(rank) => {
                Self::remote(format!("rank {rank} of the communicator will never come: its device faulted"))
            }
            Interrupted::Departed(rank) => Self::remote(format!(
                "rank {rank} of the communicator will never come: it has destroyed its communicator"
            )),
            Interrupted::World(error) => Self::system(error.to_string()),
        }
    }
}

/// The only buffer of `ncclGetLastError`, as in real NCCL: one per process, not per communicator.
static LAST: [AtomicU8; 1024] = [const { AtomicU8::new(0) }; 1024];

/// Makes `text` the last error.
pub(crate) fn set_last(text: &str) {
    let mut end = text.len().min(LAST.len() - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    for (place, byte) in LAST.iter().zip(text.as_bytes()[..end].iter().chain(std::iter::once(&0))) {
        place.store(*byte, Ordering::Relaxed);
    }
}

/// The last error as a C string that lives for ever; its text may change with the next error.
pub(crate) fn last() -> *const c_char {
    LAST.as_ptr().cast()
}

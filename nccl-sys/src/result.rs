//! The meaning of a result code, which depends on the release. For example, 8 is `ncclTimeout` since 2.30.3. In the
//! headers from 2.14 to 2.29, 8 is not a result code, but the number of result codes (`ncclNumResults`).

use std::fmt;

use crate::{Api, Version, ncclResult_t};

/// The meaning of a [`ncclResult_t`] for a release of NCCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Meaning {
    /// The call succeeded.
    Success,
    /// A call of a CUDA function failed.
    UnhandledCudaError,
    /// A call of the operating system failed.
    SystemError,
    /// An internal check of NCCL failed: NCCL has a bug, or memory was overwritten.
    InternalError,
    /// An argument has an invalid value.
    InvalidArgument,
    /// The call is not allowed here, or the ranks' calls do not fit together.
    InvalidUsage,
    /// Another rank, or the network to it, failed.
    RemoteError,
    /// The operation of a non-blocking communicator is still in progress; since 2.14.
    InProgress,
    /// The operation timed out; since 2.30.3.
    Timeout,
    /// This crate knows no meaning of the number in the release. The release does not define it, a vendor added it, or
    /// the release is newer than this crate.
    Undefined(u32),
}

/// Each code with its meaning, and the first release in which it has that meaning.
const MEANINGS: &[(ncclResult_t, Meaning, Version)] = &[
    (ncclResult_t::ncclSuccess, Meaning::Success, Version::new(2, 0, 0)),
    (ncclResult_t::ncclUnhandledCudaError, Meaning::UnhandledCudaError, Version::new(2, 0, 0)),
    (ncclResult_t::ncclSystemError, Meaning::SystemError, Version::new(2, 0, 0)),
    (ncclResult_t::ncclInternalError, Meaning::InternalError, Version::new(2, 0, 0)),
    (ncclResult_t::ncclInvalidArgument, Meaning::InvalidArgument, Version::new(2, 0, 0)),
    (ncclResult_t::ncclInvalidUsage, Meaning::InvalidUsage, Version::new(2, 0, 0)),
    (ncclResult_t::ncclRemoteError, Meaning::RemoteError, Version::new(2, 13, 4)),
    (ncclResult_t::ncclInProgress, Meaning::InProgress, Version::new(2, 14, 3)),
    (ncclResult_t::ncclTimeout, Meaning::Timeout, Version::new(2, 30, 3)),
];

impl ncclResult_t {
    /// Returns the meaning that this code has if NCCL of `release` returned it. [`Debug`](fmt::Debug) and
    /// [`name`](Self::name) use the names of the newest header instead.
    ///
    /// ```
    /// use nccl_sys::{Meaning, Version, ncclResult_t};
    /// assert_eq!(ncclResult_t(8).meaning(Version::new(2, 30, 7)), Meaning::Timeout);
    /// assert_eq!(ncclResult_t(8).meaning(Version::new(2, 28, 9)), Meaning::Undefined(8));
    /// ```
    pub fn meaning(self, release: Version) -> Meaning {
        let known = MEANINGS.iter().find(|(code, _, since)| *code == self && *since <= release);
        known.map_or(Meaning::Undefined(self.0), |(_, meaning, _)| *meaning)
    }
}

impl Api {
    /// Returns the meaning that `code` has if this library returned it.
    pub fn meaning(&self, code: ncclResult_t) -> Meaning {
        code.meaning(self.version())
    }
}

impl Meaning {
    /// Returns true for an error, that is, for every meaning except [`Success`](Self::Success) and
    /// [`InProgress`](Self::InProgress).
    pub const fn is_failure(self) -> bool {
        !matches!(self, Self::Success | Self::InProgress)
    }
}

impl fmt::Display for Meaning {
    /// Writes the C name and the number of the constant with this meaning. For [`Undefined`](Self::Undefined), writes
    /// the number and says that it is no result of the release.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, MEANINGS.iter().find(|(_, meaning, _)| meaning == self)) {
            (_, Some((code, ..))) => write!(f, "{code:?} ({})", code.0),
            (Self::Undefined(code), None) => write!(f, "{code}, which is no result of this release"),
            (known, None) => write!(f, "{known:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_means_what_its_release_says() {
        let of = |code, minor, patch| ncclResult_t(code).meaning(Version::new(2, minor, patch));
        // The first element is the number of result codes that the header of the release declares.
        for (count, minor, patch) in
            [(7, 13, 4), (8, 14, 3), (8, 21, 5), (8, 28, 9), (8, 29, 7), (9, 30, 3), (9, 32, 3)]
        {
            for code in 0..12 {
                let undefined = of(code, minor, patch) == Meaning::Undefined(code);
                assert_eq!(undefined, code >= count, "{code} in 2.{minor}.{patch}");
            }
        }
        assert!(of(8, 28, 9).is_failure() && of(8, 30, 3).is_failure());
        assert!(!of(0, 13, 4).is_failure() && !of(7, 14, 3).is_failure());
        assert!(of(7, 13, 4).is_failure());
    }

    #[test]
    fn meanings_read_well() {
        let text = |code, minor| ncclResult_t(code).meaning(Version::new(2, minor, 3)).to_string();
        assert_eq!(text(8, 30), "ncclTimeout (8)");
        assert_eq!(text(8, 28), "8, which is no result of this release");
        assert_eq!(text(5, 28), "ncclInvalidUsage (5)");
    }
}

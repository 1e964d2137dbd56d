//! Releases of NCCL.

use std::fmt;

/// A release of NCCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version {
    /// 2 for every release so far.
    pub major: u32,
    /// The middle number.
    pub minor: u32,
    /// The last number.
    pub patch: u32,
}

impl Version {
    /// `major.minor.patch`.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// The release that `ncclGetVersion` reports by `code`: 2804 is 2.8.4, 23007 is 2.30.7.
    pub const fn from_code(code: i32) -> Self {
        let code = if code < 0 { 0 } else { code as u32 };
        let scale = if code < 10_000 { 1_000 } else { 10_000 };
        Self { major: code / scale, minor: code % scale / 100, patch: code % 100 }
    }

    /// The number that `ncclGetVersion` reports for this release.
    pub const fn code(self) -> i32 {
        let scale = if self.major <= 2 && self.minor <= 8 { 1_000 } else { 10_000 };
        (self.major * scale + self.minor * 100 + self.patch) as i32
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

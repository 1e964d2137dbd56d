//! Releases of the CUDA driver API.

use std::fmt;

/// A release of the CUDA driver API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version {
    /// The first number, 12 of 12.4.
    pub major: u32,
    /// The second number, 4 of 12.4.
    pub minor: u32,
    /// The last digit of the code, 0 for every release so far.
    pub patch: u32,
}

impl Version {
    /// `major.minor`.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor, patch: 0 }
    }

    /// The release that `cuDriverGetVersion` reports by `code`: 12040 is 12.4.
    pub const fn from_code(code: i32) -> Self {
        let code = if code < 0 { 0 } else { code as u32 };
        Self { major: code / 1_000, minor: code % 1_000 / 10, patch: code % 10 }
    }

    /// The number that `cuDriverGetVersion` reports for this release.
    pub const fn code(self) -> i32 {
        (self.major * 1_000 + self.minor * 10 + self.patch) as i32
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        if self.patch != 0 { write!(f, ".{}", self.patch) } else { Ok(()) }
    }
}

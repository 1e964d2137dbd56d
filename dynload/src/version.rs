//! Releases of a library.

use std::fmt;

/// A release of a library.
///
/// Displayed as `major.minor.patch`, or as `major.minor` if the patch is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version {
    /// The first number, 2 of 2.28.7.
    pub major: u32,
    /// The second number, 28 of 2.28.7.
    pub minor: u32,
    /// The third number, 7 of 2.28.7; 0 for a library that numbers its releases by two.
    pub patch: u32,
}

impl Version {
    /// `major.minor.patch`.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        if self.patch != 0 { write!(f, ".{}", self.patch) } else { Ok(()) }
    }
}

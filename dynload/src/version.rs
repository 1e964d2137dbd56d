//! The number of a release.

use std::fmt;

/// The number of a release of a library.
///
/// Displayed as `major.minor.patch`, or as `major.minor` if the patch is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version {
    /// The first number: 2 in 2.28.7.
    pub major: u32,
    /// The second number: 28 in 2.28.7.
    pub minor: u32,
    /// The third number: 7 in 2.28.7. It is 0 for a library whose releases have two numbers.
    pub patch: u32,
}

impl Version {
    /// Returns the release `major.minor.patch`.
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

//! The requirements of a feature: the functions and the releases of the library that it needs.

use crate::library::Library;
use crate::missing::Why;
use crate::version::Version;

/// The requirements of one feature. The library must have all of `functions`. Its release must not be older than
/// [`needed`](Self::needed), and must not be in a range of `known_bad`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requirement {
    /// The name of the feature.
    pub feature: &'static str,
    /// The bit of the feature in the flags.
    pub bit: u64,
    /// The functions that the feature needs, by their C symbols.
    pub functions: &'static [&'static str],
    /// The first release with the feature, if the functions alone do not determine it.
    pub since: Option<Version>,
    /// The ranges of releases in which the feature has a known fault.
    pub known_bad: &'static [KnownBad],
}

/// A range of releases in which a feature has a known fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownBad {
    /// The first release of the range.
    pub first: Version,
    /// The first release after the range, in which the fault is fixed.
    pub mended: Version,
    /// A description of the fault.
    pub fault: &'static str,
}

impl KnownBad {
    /// Returns true if `release` is in the range.
    pub fn includes(&self, release: Version) -> bool {
        (self.first..self.mended).contains(&release)
    }
}

impl Requirement {
    /// Returns the first release that has the feature and all of its functions.
    pub fn needed(&self, library: &Library) -> Version {
        let functions = self.functions.iter().filter_map(|name| library.function(name));
        functions.map(|function| function.since).chain(self.since).max().unwrap_or_default()
    }

    /// Returns the first release, not older than `release`, in which the feature has no known fault.
    fn mended(&self, release: Version) -> Version {
        let bad = self.known_bad.iter().find(|bad| bad.includes(release));
        bad.map_or(release, |bad| self.mended(bad.mended))
    }

    /// Returns the reason why a library of `release` does not meet the requirements; `None` if it meets them. `has`
    /// takes a C symbol and returns true if the library has the function.
    pub(crate) fn fault(
        &self,
        library: &Library,
        release: Version,
        has: impl Fn(&str) -> bool,
    ) -> Option<Why> {
        if release < self.needed(library) {
            return Some(Why::TooOld);
        }
        if let Some(symbol) = self.functions.iter().find(|name| !has(name)) {
            return Some(Why::NoSymbol(symbol));
        }
        let bad = self.known_bad.iter().find(|bad| bad.includes(release))?;
        Some(Why::KnownBad { fault: bad.fault, mended: self.mended(bad.mended) })
    }
}

//! The requirements of a feature on its library.

use crate::library::Library;
use crate::missing::Why;
use crate::version::Version;

/// The requirements of one feature: all of these functions, and a release that does not do it wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requirement {
    /// The name of the feature.
    pub feature: &'static str,
    /// The bit of the feature.
    pub bit: u64,
    /// The functions, by their C symbols.
    pub functions: &'static [&'static str],
    /// The first release with the feature, if the functions alone do not tell.
    pub since: Option<Version>,
    /// The releases that do it wrong.
    pub known_bad: &'static [KnownBad],
}

/// Releases that do a feature wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownBad {
    /// The first of them.
    pub first: Version,
    /// The release after the last of them, which has the fix.
    pub mended: Version,
    /// Description of the fault.
    pub fault: &'static str,
}

impl KnownBad {
    /// Returns true if `release` is one of them.
    pub fn includes(&self, release: Version) -> bool {
        (self.first..self.mended).contains(&release)
    }
}

impl Requirement {
    /// Returns the release that first has all of it.
    pub fn needed(&self, library: &Library) -> Version {
        let functions = self.functions.iter().filter_map(|name| library.function(name));
        functions.map(|function| function.since).chain(self.since).max().unwrap_or_default()
    }

    /// Returns the first release from `release` on that is not known to do it wrong.
    fn mended(&self, release: Version) -> Version {
        let bad = self.known_bad.iter().find(|bad| bad.includes(release));
        bad.map_or(release, |bad| self.mended(bad.mended))
    }

    /// Returns why a library of `release` with these functions does not fulfil it; `None` if it does.
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

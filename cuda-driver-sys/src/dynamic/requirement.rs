//! The requirements of a feature on the library.

use crate::{Feature, Function, Table, Version, Why, feature};

/// The requirements of one feature: all of these functions, and a release that does not do it wrong.
pub(crate) struct Requirement {
    pub(crate) feature: Feature,
    pub(crate) functions: &'static [&'static str],
    /// The first release with the feature, if the functions alone do not tell.
    pub(crate) since: Option<Version>,
    pub(crate) known_bad: &'static [KnownBad],
}

/// Releases that do a feature wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
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

impl Feature {
    /// The release that first has all of it.
    pub fn since(self) -> Version {
        requirements(self).map(Requirement::needed).max().unwrap_or_default()
    }

    /// The functions that it needs, by their C symbols.
    pub fn functions(self) -> impl Iterator<Item = &'static str> {
        requirements(self).flat_map(|needs| needs.functions).copied()
    }

    /// The releases that do it wrong, and so do not have it.
    pub fn known_bad(self) -> impl Iterator<Item = &'static KnownBad> {
        requirements(self).flat_map(|needs| needs.known_bad)
    }
}

/// The requirements of each of `features`.
fn requirements(features: Feature) -> impl Iterator<Item = &'static Requirement> {
    feature::REQUIREMENTS.iter().filter(move |needs| features.contains(needs.feature))
}

/// Why a feature is missing.
pub(crate) struct Fault {
    pub(crate) feature: Feature,
    pub(crate) needed: Version,
    pub(crate) why: Why,
}

impl Requirement {
    /// The release that first has all of it.
    fn needed(&self) -> Version {
        let functions = self.functions.iter().filter_map(|name| Function::named(name));
        functions.map(|function| function.since).chain(self.since).max().unwrap_or_default()
    }

    /// The first release from `release` on that is not known to do it wrong.
    fn mended(&self, release: Version) -> Version {
        let bad = self.known_bad.iter().find(|bad| bad.includes(release));
        bad.map_or(release, |bad| self.mended(bad.mended))
    }

    fn check(&self, table: &Table, version: Version) -> Result<(), Fault> {
        let needed = self.needed();
        let absent = self.functions.iter().find(|name| table.address(name).is_none());
        let bad = self.known_bad.iter().find(|bad| bad.includes(version));
        let why = if version < needed {
            Why::TooOld
        } else if let Some(symbol) = absent {
            Why::NoSymbol(symbol)
        } else if let Some(KnownBad { fault, mended, .. }) = bad {
            Why::KnownBad { fault, mended: self.mended(*mended) }
        } else {
            return Ok(());
        };
        Err(Fault { feature: self.feature, needed, why })
    }
}

/// The features that a library with this table and release has.
pub(crate) fn available(table: &Table, version: Version) -> Feature {
    let there = feature::REQUIREMENTS.iter().filter(|needs| needs.check(table, version).is_ok());
    there.fold(Feature::empty(), |all, needs| all | needs.feature)
}

/// The first of `wanted` that is not there.
pub(crate) fn check(table: &Table, version: Version, wanted: Feature) -> Result<(), Fault> {
    requirements(wanted).try_for_each(|needs| needs.check(table, version))
}

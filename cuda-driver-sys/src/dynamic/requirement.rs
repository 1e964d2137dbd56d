//! What a feature takes of a library.

use crate::{Feature, Function, Table, Version, Why, feature};

/// What one feature takes: all of these functions, and a release that does not do it wrong.
pub(crate) struct Requirement {
    pub(crate) feature: Feature,
    pub(crate) functions: &'static [&'static str],
    /// A release that the functions alone do not tell.
    pub(crate) since: Option<Version>,
    pub(crate) known_bad: &'static [KnownBad],
}

/// Releases that do a feature wrong: from `first` to before `mended`.
#[allow(dead_code, reason = "of the driver no such release is known")]
pub(crate) struct KnownBad {
    pub(crate) first: Version,
    pub(crate) mended: Version,
    pub(crate) fault: &'static str,
}

/// Why a feature is not there.
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

    fn check(&self, table: &Table, version: Version) -> Result<(), Fault> {
        let needed = self.needed();
        let absent = self.functions.iter().find(|name| table.address(name).is_none());
        let bad = self.known_bad.iter().find(|bad| bad.first <= version && version < bad.mended);
        let why = if version < needed {
            Why::TooOld
        } else if let Some(symbol) = absent {
            Why::NoSymbol(symbol)
        } else if let Some(KnownBad { fault, mended, .. }) = bad {
            Why::KnownBad { fault, mended: *mended }
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
    let mut wanted = feature::REQUIREMENTS.iter().filter(|needs| wanted.contains(needs.feature));
    wanted.try_for_each(|needs| needs.check(table, version))
}

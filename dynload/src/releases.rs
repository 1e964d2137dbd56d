//! The functions and features that each release adds, from the library's description. No library is loaded.

use std::collections::BTreeMap;

use crate::library::Function;
use crate::table::{Features, Table};
use crate::version::Version;

/// The functions and features that one release adds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Release<F> {
    /// The release.
    pub version: Version,
    /// The functions that this release is the first to export, in the table's order.
    pub functions: Vec<&'static Function>,
    /// The features whose requirements of functions and releases this release is the first to meet. Known faults are
    /// not considered: the release may be in a range of [`Requirement::known_bad`](crate::Requirement::known_bad).
    pub features: F,
}

/// Returns every release that adds a function or a feature, the oldest first. No library is loaded. If a function is
/// older than the oldest release that the table supports, the table may date it to that release.
pub fn releases<T: Table>() -> Vec<Release<T::Feature>> {
    let mut releases: BTreeMap<Version, (Vec<_>, u64)> = BTreeMap::new();
    for function in T::LIBRARY.functions {
        releases.entry(function.since).or_default().0.push(function);
    }
    for needs in T::Feature::REQUIREMENTS {
        releases.entry(needs.needed(T::LIBRARY)).or_default().1 |= needs.bit;
    }
    let release =
        |(version, (functions, bits))| Release { version, functions, features: T::Feature::from_bits(bits) };
    releases.into_iter().map(release).collect()
}

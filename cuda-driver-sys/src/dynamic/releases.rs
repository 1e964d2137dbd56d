//! The additions of each release, from the committed table: no library is loaded.

use std::collections::BTreeMap;

use crate::{FUNCTIONS, Feature, Function, Version};

/// The additions of one release.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Release {
    /// The release.
    pub version: Version,
    /// The functions that its library is the first to have, in the table's order.
    pub functions: Vec<&'static Function>,
    /// The features that are complete from it on.
    pub features: Feature,
}

/// Returns every release that adds something, the oldest first. Items as old as the oldest release covered,
/// or older, may be listed under that release.
pub fn releases() -> Vec<Release> {
    let mut releases: BTreeMap<Version, (Vec<&'static Function>, Feature)> = BTreeMap::new();
    for function in FUNCTIONS {
        releases.entry(function.since).or_default().0.push(function);
    }
    for feature in Feature::all().iter() {
        releases.entry(feature.since()).or_default().1 |= feature;
    }
    releases
        .into_iter()
        .map(|(version, (functions, features))| Release { version, functions, features })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_stands_under_one_release() {
        let releases = releases();
        assert!(releases.is_sorted_by(|one, next| one.version < next.version));
        let functions = releases.iter().map(|release| release.functions.len()).sum::<usize>();
        assert_eq!(functions, FUNCTIONS.len());
        let mut all = Feature::empty();
        for release in &releases {
            assert!(!all.intersects(release.features));
            all |= release.features;
            for feature in release.features.iter() {
                assert_eq!(feature.since(), release.version);
            }
        }
        assert_eq!(all, Feature::all());
    }
}

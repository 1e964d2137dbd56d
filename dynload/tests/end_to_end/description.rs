//! Checks of the [`dynload::Library`] that describes a library. The tests of `nccl-sys` and `cuda-driver-sys` include
//! this file.

use dynload::{Features, Table, Version, releases};

/// Panics unless the description of the library of `T` is consistent. `summary` returns the documentation of a
/// feature. `code` converts a release to the number that the library reports for it, and `from_code` converts it
/// back.
pub(crate) fn check<T: Table>(
    summary: impl Fn(T::Feature) -> Option<&'static str>,
    code: impl Fn(Version) -> i32,
    from_code: impl Fn(i32) -> Version,
) {
    let library = T::LIBRARY;
    for name in library.required {
        assert!(library.function(name).is_some(), "{name} is required and unknown");
    }
    for needs in T::Feature::REQUIREMENTS {
        for name in needs.functions {
            assert!(library.function(name).is_some(), "{} needs {name}", needs.feature);
        }
        let (summary, since) = (summary(T::Feature::from_bits(needs.bit)), needs.needed(library));
        let summary = summary.unwrap_or_else(|| panic!("{} has no summary", needs.feature));
        assert!(summary.contains(&format!("({since}")), "{summary:?} came with {since}");
        assert!(needs.known_bad.iter().all(|bad| since <= bad.first && bad.first < bad.mended), "{needs:?}");
    }
    let mut versions: Vec<_> = library.functions.iter().map(|function| function.since).collect();
    versions.sort();
    assert!(versions.is_sorted_by_key(|version| code(*version)), "{versions:?}");
    for version in versions {
        assert_eq!(from_code(code(version)), version);
    }
    everything_is_listed_under_one_release::<T>();
}

fn everything_is_listed_under_one_release<T: Table>() {
    let releases = releases::<T>();
    assert!(releases.is_sorted_by(|one, next| one.version < next.version));
    let functions = releases.iter().map(|release| release.functions.len()).sum::<usize>();
    assert_eq!(functions, T::LIBRARY.functions.len());
    let mut all = 0;
    for release in &releases {
        assert_eq!(all & release.features.bits(), 0);
        all |= release.features.bits();
        assert!(release.features.requirements().all(|needs| needs.needed(T::LIBRARY) == release.version));
    }
    assert_eq!(all, T::Feature::REQUIREMENTS.iter().fold(0, |bits, needs| bits | needs.bit));
}

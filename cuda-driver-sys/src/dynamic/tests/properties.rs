//! Features follow from symbols and release, whatever these are.

use std::collections::HashSet;
use std::ffi::c_void;

use proptest::prelude::*;

use crate::dynamic::requirement;
use crate::{FUNCTIONS, Feature, Table, Version, Why, feature};

/// A table in which just these functions are present, none of which may be called.
fn table(present: &HashSet<&'static str>) -> Table {
    extern "C" fn nothing() {}
    // SAFETY: the table is asked for addresses only.
    unsafe {
        Table::resolve(|function| match present.contains(function.name) {
            true => nothing as *const c_void,
            false => std::ptr::null(),
        })
    }
}

/// Functions present: all but a few, so that features are now there and now not.
fn presence() -> impl Strategy<Value = HashSet<&'static str>> {
    let gates: Vec<_> = feature::REQUIREMENTS.iter().flat_map(|needs| needs.functions).copied().collect();
    proptest::collection::vec(proptest::sample::select(gates), 0..4).prop_map(|absent| {
        FUNCTIONS.iter().map(|function| function.name).filter(|name| !absent.contains(name)).collect()
    })
}

/// A release: that of some function, that of some fault, or one beside it.
fn release() -> impl Strategy<Value = Version> {
    let known = FUNCTIONS.iter().map(|function| function.since);
    let faults = feature::REQUIREMENTS.iter().flat_map(|needs| needs.known_bad);
    let known: Vec<_> = known.chain(faults.flat_map(|bad| [bad.first, bad.mended])).collect();
    (proptest::sample::select(known), 0..3_i32)
        .prop_map(|(version, step)| Version::from_code((version.code() + step - 1).max(1_000)))
}

proptest! {
    #[test]
    fn features_follow_from_symbols_and_release(present in presence(), version in release()) {
        let table = table(&present);
        let available = requirement::available(&table, version);
        for needs in feature::REQUIREMENTS {
            let new_enough = needs.functions.iter().all(|name| {
                FUNCTIONS.iter().any(|function| function.name == *name && function.since <= version)
            }) && needs.since.is_none_or(|since| since <= version);
            let symbols = needs.functions.iter().all(|name| present.contains(name));
            let bad = needs.known_bad.iter().any(|bad| bad.first <= version && version < bad.mended);
            prop_assert_eq!(available.contains(needs.feature), new_enough && symbols && !bad);
            match requirement::check(&table, version, needs.feature) {
                Ok(()) => prop_assert!(available.contains(needs.feature)),
                Err(fault) => {
                    prop_assert!(!available.contains(needs.feature));
                    prop_assert_eq!(fault.feature, needs.feature);
                    match fault.why {
                        Why::TooOld => prop_assert!(version < fault.needed),
                        Why::NoSymbol(symbol) => prop_assert!(!present.contains(symbol)),
                        Why::KnownBad { mended, .. } => {
                            prop_assert!(version < mended);
                            prop_assert!(!needs.known_bad.iter().any(|bad| bad.includes(mended)));
                        }
                    }
                }
            }
        }
        prop_assert_eq!(requirement::check(&table, version, available).is_ok(), true);
        prop_assert_eq!(
            requirement::check(&table, version, Feature::all()).is_ok(),
            available == Feature::all()
        );
    }

    #[test]
    fn a_release_survives_its_code(version in release()) {
        prop_assert_eq!(Version::from_code(version.code()), version);
    }

    #[test]
    fn later_releases_have_greater_codes(one in release(), two in release()) {
        prop_assert_eq!(one.cmp(&two), one.code().cmp(&two.code()));
    }

    #[test]
    fn addresses_are_the_tables_own(present in presence()) {
        let table = table(&present);
        for function in FUNCTIONS {
            prop_assert_eq!(table.address(function.name).is_some(), present.contains(function.name));
        }
        prop_assert_eq!(table.address("noSuchFunction"), None);
    }
}

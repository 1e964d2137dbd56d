//! Tests of features, addresses and calls on tables that the tests build. The property tests check that
//! the release and the set of present functions together determine the features, that the set determines the addresses
//! in the table, and that a call returns the function's result or its status.

use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::{CStr, c_char, c_int, c_void};

use dynload::{CallError, Features as _, Item, Version, Why};
use proptest::prelude::*;

use crate::description;
use crate::sample::{Api, FUNCTIONS, Feature, SampleResult, Table, code, from_code};

thread_local! {
    /// The release that the tables of this thread report.
    static RELEASE: Cell<c_int> = const { Cell::new(1_000) };
}

unsafe extern "C" fn version(code: *mut c_int) -> SampleResult {
    // SAFETY: the caller passes room for one integer.
    unsafe { *code = RELEASE.get() };
    SampleResult::SAMPLE_SUCCESS
}

/// Returns a library of `release` with the functions `present` and the version function. Only the version function may
/// be called.
fn api(present: &HashSet<&'static str>, release: Version) -> Api {
    extern "C" fn nothing() {}
    // SAFETY: no function of this table is called, except the version function, which is set below.
    let mut table = unsafe {
        Table::from_addresses(|function| match present.contains(function.name) {
            true => nothing as *const c_void,
            false => std::ptr::null(),
        })
    };
    table.sampleGetVersion = Some(version);
    RELEASE.set(code(release));
    // SAFETY: only the version function is called, and it keeps its declaration.
    unsafe { Api::from_parts(table) }.unwrap()
}

/// Generates the names of the functions that a library has: a random subset of the table, without the version
/// function.
fn presence() -> impl Strategy<Value = HashSet<&'static str>> {
    let names = FUNCTIONS.iter().map(|function| function.name).filter(|name| *name != "sampleGetVersion");
    let names: Vec<_> = names.collect();
    proptest::sample::subsequence(names.clone(), 0..=names.len())
        .prop_map(|names| names.into_iter().collect())
}

/// Generates a release in which a function, a feature, a fault or a fix first appears, or the release just before or
/// after it.
fn release() -> impl Strategy<Value = Version> {
    let known = FUNCTIONS.iter().map(|function| function.since);
    let known = known.chain(Feature::REQUIREMENTS.iter().filter_map(|needs| needs.since));
    let faults = Feature::REQUIREMENTS.iter().flat_map(|needs| needs.known_bad);
    let known: Vec<_> = known.chain(faults.flat_map(|bad| [bad.first, bad.mended])).collect();
    (proptest::sample::select(known), 0..3_i32)
        .prop_map(|(version, step)| from_code((code(version) + step - 1).max(1_000)))
}

proptest! {
    #[test]
    fn features_follow_from_symbols_and_release(present in presence(), version in release()) {
        let api = api(&present, version);
        prop_assert_eq!(api.version(), version);
        for needs in Feature::REQUIREMENTS {
            let feature = Feature::from_bits_retain(needs.bit);
            let new_enough = needs.functions.iter().all(|name| {
                FUNCTIONS.iter().any(|function| function.name == *name && function.since <= version)
            }) && needs.since.is_none_or(|since| since <= version);
            let symbols = needs.functions.iter().all(|name| present.contains(name));
            let bad = needs.known_bad.iter().any(|bad| bad.first <= version && version < bad.mended);
            prop_assert_eq!(api.has(feature), new_enough && symbols && !bad);
            prop_assert_eq!(api.features().contains(feature), api.has(feature));
            let Err(missing) = api.require(feature) else {
                prop_assert!(api.has(feature));
                continue;
            };
            prop_assert!(!api.has(feature));
            prop_assert_eq!((missing.item, missing.found), (Item::Feature(needs.feature), version));
            match missing.why {
                Why::TooOld => prop_assert!(version < missing.needed),
                Why::NoSymbol(symbol) => prop_assert!(!present.contains(symbol)),
                Why::KnownBad { mended, .. } => {
                    prop_assert!(version < mended);
                    prop_assert!(!needs.known_bad.iter().any(|bad| bad.includes(mended)));
                }
                _ => prop_assert!(false, "{missing}"),
            }
        }
        prop_assert!(api.require(api.features()).is_ok());
        prop_assert_eq!(api.require(Feature::all()).is_ok(), api.features() == Feature::all());
        prop_assert_eq!(api.has(Feature::all()), api.features() == Feature::all());
    }

    #[test]
    fn addresses_are_the_tables_own(present in presence()) {
        let mut table = api(&present, Version::new(1, 0, 0)).table().clone();
        for function in FUNCTIONS {
            let is_there = present.contains(function.name) || function.name == "sampleGetVersion";
            prop_assert_eq!(table.address(function.name).is_some(), is_there);
            prop_assert_eq!(table.remove(function.name), is_there);
            prop_assert_eq!(table.address(function.name), None);
        }
        prop_assert_eq!(table.address("noSuchFunction"), None);
        prop_assert!(!table.remove("noSuchFunction"));
    }

    #[test]
    fn a_call_returns_the_sum_or_the_code(one: i16, two: i16, status in 0..4_u32) {
        thread_local! { static STATUS: Cell<u32> = const { Cell::new(0) }; }
        unsafe extern "C" fn add(one: c_int, two: c_int, sum: *mut c_int) -> SampleResult {
            // SAFETY: the caller passes room for one integer.
            unsafe { *sum = one + two };
            SampleResult(STATUS.get())
        }
        let mut table = api(&HashSet::new(), Version::new(1, 4, 0)).table().clone();
        table.sampleAdd_v2 = Some(add);
        // SAFETY: the functions keep their declarations.
        let api = unsafe { Api::from_parts(table) }.unwrap();
        STATUS.set(status);
        let mut sum = 0;
        // SAFETY: `add` writes one integer, to `sum`.
        let returned = unsafe { api.add(one.into(), two.into(), &mut sum) };
        prop_assert_eq!(sum, c_int::from(one) + c_int::from(two));
        match returned {
            Ok(()) => prop_assert_eq!(status, 0),
            Err(error) => {
                prop_assert_eq!(error.code(), Some(SampleResult(status)));
                let name = ["", "SAMPLE_ERROR (1)", "SAMPLE_BUSY (2)", "3, a code without a known name"][status as usize];
                prop_assert_eq!(error.to_string(), format!("`sampleAdd_v2` returned {name}"));
            }
        }
    }
}

#[test]
fn a_function_without_a_status_returns_its_value() {
    unsafe extern "C" fn name(code: SampleResult) -> *const c_char {
        if code == SampleResult::SAMPLE_BUSY { c"busy".as_ptr() } else { std::ptr::null() }
    }
    unsafe extern "C" fn reset() {}
    let mut table = api(&HashSet::new(), Version::new(1, 4, 0)).table().clone();
    table.sampleName = Some(name);
    table.sampleReset = Some(reset);
    // SAFETY: the functions keep their declarations; the name is a constant.
    unsafe {
        let api = Api::from_parts(table).unwrap();
        assert_eq!(CStr::from_ptr(api.name(SampleResult::SAMPLE_BUSY).unwrap()), c"busy");
        api.reset().unwrap();
    }
}

#[test]
fn a_missing_function_is_not_called_and_named() {
    let api = api(&HashSet::new(), Version::new(1, 2, 3));
    // SAFETY: the table has neither function, so nothing is called.
    let (new, add) = unsafe { (api.create().unwrap_err(), api.add(1, 2, std::ptr::null_mut()).unwrap_err()) };
    assert_eq!((new.code(), add.code()), (None, None));
    let CallError::Missing(missing) = &new else { panic!("{new}") };
    assert_eq!((missing.why, missing.needed), (Why::TooOld, Version::new(2, 0, 0)));
    assert_eq!(missing.library(), "sample");
    assert_eq!(
        new.to_string(),
        "`sampleNew` needs sample 2.0 or newer; found 1.2.3 (a table that was handed over)"
    );
    let CallError::Missing(missing) = &add else { panic!("{add}") };
    assert_eq!(**missing, api.sampleAdd_v2().unwrap_err());
    assert_eq!(missing.why, Why::NoSymbol("sampleAdd_v2"));
}

/// Every call returns a `Result` by value, so a large error type would slow down the calls that succeed.
#[test]
fn a_calls_result_is_small() {
    assert!(size_of::<Result<(), CallError<SampleResult>>>() <= 4 * size_of::<usize>());
}

#[test]
fn the_description_is_consistent() {
    description::check::<Table>(Feature::summary, code, from_code);
}

#[test]
fn functions_are_dated_by_library_and_header() {
    let add = Table::function("sampleAdd_v2").unwrap();
    assert_eq!((add.base, add.since), ("sampleAdd", Version::new(1, 2, 3)));
    assert_eq!(add.declared, Some(Version::new(1, 3, 0)));
    assert_eq!(Table::function("sampleAdd"), None);
}

#[test]
fn a_release_is_displayed_without_a_patch_of_zero() {
    assert_eq!(Version::new(12, 4, 0).to_string(), "12.4");
    assert_eq!(Version::new(2, 28, 7).to_string(), "2.28.7");
}

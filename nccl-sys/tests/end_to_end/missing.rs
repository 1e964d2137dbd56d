//! Tests of the errors for missing functions and features, with tables that report chosen releases.

use std::ffi::c_int;

use nccl_sys::{
    Api, Feature, Item, Table, Version, Why, ncclComm_t, ncclConfig_t, ncclResult_t, ncclUniqueId,
    ncclWindow_t,
};

unsafe extern "C" fn version<const CODE: c_int>(version: *mut c_int) -> ncclResult_t {
    // SAFETY: the crate passes room for one integer.
    unsafe { *version = CODE };
    ncclResult_t::ncclSuccess
}

unsafe extern "C" fn init(
    _: *mut ncclComm_t,
    _: c_int,
    _: ncclUniqueId,
    _: c_int,
    _: *mut ncclConfig_t,
) -> ncclResult_t {
    ncclResult_t::ncclSuccess
}

unsafe extern "C" fn split(
    _: ncclComm_t,
    _: c_int,
    _: c_int,
    _: *mut ncclComm_t,
    _: *mut ncclConfig_t,
) -> ncclResult_t {
    ncclResult_t::ncclSuccess
}

unsafe extern "C" fn register(
    _: ncclComm_t,
    _: *mut std::ffi::c_void,
    _: usize,
    _: *mut ncclWindow_t,
    _: c_int,
) -> ncclResult_t {
    ncclResult_t::ncclSuccess
}

unsafe extern "C" fn deregister(_: ncclComm_t, _: ncclWindow_t) -> ncclResult_t {
    ncclResult_t::ncclSuccess
}

/// Returns a handle of release `CODE` whose table has the version function, and the functions for splitting and for
/// windows.
fn api<const CODE: c_int>() -> Api {
    let mut table = Table::default();
    table.ncclGetVersion = Some(version::<CODE>);
    table.ncclCommSplit = Some(split);
    table.ncclCommWindowRegister = Some(register);
    table.ncclCommWindowDeregister = Some(deregister);
    // SAFETY: the functions keep NCCL's declarations.
    unsafe { Api::from_parts(table) }.unwrap()
}

#[test]
fn a_function_that_is_there_is_answered() {
    assert_eq!(api::<22807>().ncclCommSplit(), Ok(split as _));
}

#[test]
fn an_older_release_is_too_old() {
    let missing = api::<21703>().require(Feature::SPLIT).unwrap_err();
    assert_eq!((missing.needed, missing.found), (Version::new(2, 18, 1), Version::new(2, 17, 3)));
    assert_eq!((missing.item, missing.why), (Item::Feature("SPLIT"), Why::TooOld));
    assert_eq!(
        missing.to_string(),
        "SPLIT needs NCCL 2.18.1 or newer; found 2.17.3 (a table that was handed over)"
    );
    let missing = api::<21703>().ncclCommRevoke().unwrap_err();
    assert_eq!(missing.item, Item::Function("ncclCommRevoke"));
    assert_eq!(
        missing.to_string(),
        "`ncclCommRevoke` needs NCCL 2.28.7 or newer; found 2.17.3 (a table that was handed over)"
    );
}

#[test]
fn a_release_that_lacks_its_own_symbol_says_so() {
    let missing = api::<23007>().require(Feature::REVOKE).unwrap_err();
    assert_eq!(missing.why, Why::NoSymbol("ncclCommRevoke"));
    assert_eq!(
        missing.to_string(),
        "REVOKE came with NCCL 2.28.7, but `ncclCommRevoke` is not in NCCL 2.30.7 (a table that was handed over)"
    );
}

#[test]
fn windows_of_a_release_that_corrupts_them_are_refused() {
    let missing = api::<22803>().require(Feature::WINDOWS).unwrap_err();
    assert!(matches!(missing.why, Why::KnownBad { mended: Version { minor: 28, patch: 7, .. }, .. }));
    let text = missing.to_string();
    assert!(text.starts_with("WINDOWS is not used with NCCL 2.28.3 "), "{text}");
    assert!(text.contains("corrupt") && text.ends_with("use 2.28.7 or newer"), "{text}");
    for (has, fine) in [
        (api::<22707>().has(Feature::WINDOWS), true),
        (api::<22803>().has(Feature::WINDOWS), false),
        (api::<22807>().has(Feature::WINDOWS), true),
        (api::<22605>().has(Feature::WINDOWS), false),
    ] {
        assert_eq!(has, fine);
    }
    let bad: Vec<_> = Feature::WINDOWS.known_bad().map(|bad| (bad.first, bad.mended)).collect();
    assert_eq!(bad, [(Version::new(2, 28, 3), Version::new(2, 28, 7))]);
}

#[test]
fn every_known_fault_has_its_releases_and_its_reason() {
    let features: Vec<_> =
        Feature::all().iter().filter(|feature| feature.known_bad().next().is_some()).collect();
    assert_eq!(features, [Feature::WINDOWS, Feature::SPLIT_SHARE, Feature::COPY_ENGINE]);
    for feature in features {
        for bad in feature.known_bad() {
            assert!(feature.since() <= bad.first && bad.first < bad.mended, "{feature:?}");
            assert!(bad.includes(bad.first) && !bad.includes(bad.mended));
            assert!(bad.fault.len() > 30, "{feature:?}: {}", bad.fault);
        }
    }
}

#[test]
fn what_is_advised_is_not_bad_itself() {
    // One fault of 2.28.9 is fixed in 2.30.3, but that release has another one, which is fixed in 2.31.2.
    for release in [api::<22809>(), api::<22907>(), api::<23007>()] {
        let mut table = release.table().clone();
        table.ncclCommInitRankConfig = Some(init);
        // SAFETY: the functions keep NCCL's declarations.
        let missing = unsafe { Api::from_parts(table) }.unwrap().require(Feature::COPY_ENGINE).unwrap_err();
        let Why::KnownBad { mended, .. } = missing.why else { panic!("{missing:?}") };
        assert_eq!(mended, Version::new(2, 31, 2), "{missing}");
    }
}

#[test]
fn a_feature_that_is_but_a_value_rests_on_the_release() {
    assert!(api::<22403>().has(Feature::FLOAT8) && !api::<22304>().has(Feature::FLOAT8));
    assert_eq!(Feature::FLOAT8.since(), Version::new(2, 24, 3));
    assert!(api::<22605>().require(Feature::SPLIT_SHARE).unwrap_err().to_string().contains("NVLink domain"));
    assert_eq!((Feature::SPLIT | Feature::SHRINK).since(), Version::new(2, 27, 3));
}

#[test]
fn several_features_fail_by_the_first_that_is_missing() {
    let api = api::<22707>();
    assert_eq!(api.features(), Feature::SPLIT | Feature::SPLIT_SHARE | Feature::WINDOWS | Feature::FLOAT8);
    assert!(api.require(Feature::SPLIT | Feature::WINDOWS).is_ok());
    let missing = api.require(Feature::all()).unwrap_err();
    assert_eq!(missing.item, Item::Feature("CONFIG"));
}

#[test]
fn fields_that_a_release_drops_are_reported() {
    let config = ncclConfig_t { blocking: 1, trafficClass: 3, nvlsHostMode: 0, ..ncclConfig_t::default() };
    let ignored: Vec<_> = api::<21803>().ignored(&config).iter().map(ToString::to_string).collect();
    assert_eq!(
        ignored,
        [
            "`ncclConfig_t.trafficClass` needs NCCL 2.26.2 or newer; found 2.18.3 (a table that was handed over)",
            "`ncclConfig_t.nvlsHostMode` needs NCCL 2.32.3 or newer; found 2.18.3 (a table that was handed over)",
        ]
    );
    assert!(api::<23203>().ignored(&config).is_empty());
}

#[test]
fn the_results_of_newer_releases_are_data() {
    assert_eq!(format!("{:?}", ncclResult_t::ncclRemoteError), "ncclRemoteError");
    assert_eq!(format!("{:?}", ncclResult_t(77)), "ncclResult_t(77)");
    assert_eq!(ncclResult_t(77).name(), None);
}

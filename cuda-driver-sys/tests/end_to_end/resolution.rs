//! Tests of the resolution of functions, with a fake driver. `cuGetProcAddress` is asked for the revision that the
//! table declares. Functions unknown to `cuGetProcAddress` are resolved by their symbols.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use cuda_driver_sys::{
    Api, CUdeviceptr, CUdriverProcAddressQueryResult, CUmemAllocationHandleType, CUresult, FUNCTIONS,
    Feature, LoadError, SUPERSEDED, Table, Version, VersionFault, Why, version_code,
};

thread_local! {
    /// The requests that `door` received on this thread: the name, the number of the release, and the flags.
    static ASKED: RefCell<Vec<(String, c_int, u64)>> = const { RefCell::new(Vec::new()) };
}

/// The release that the fake driver reports.
const RELEASE: Version = Version::new(12, 2, 0);

unsafe extern "C" fn version(version: *mut c_int) -> CUresult {
    // SAFETY: the crate passes room for one integer.
    unsafe { *version = version_code(RELEASE) };
    CUresult::CUDA_SUCCESS
}

unsafe extern "C" fn stub(_: *mut c_int) -> CUresult {
    CUresult::CUDA_ERROR_STUB_LIBRARY
}

unsafe extern "C" fn initialise(_: c_uint) -> CUresult {
    CUresult::CUDA_ERROR_NO_DEVICE
}

unsafe extern "C" fn exported(_: *mut CUdeviceptr, _: usize) -> CUresult {
    CUresult(1)
}

/// The address of [`exported`] for comparisons: two casts of one function may give two addresses.
static EXPORTED: unsafe extern "C" fn(*mut CUdeviceptr, usize) -> CUresult = exported;

unsafe extern "C" fn asked_for(_: *mut CUdeviceptr, _: usize) -> CUresult {
    CUresult(2)
}

/// A driver's `cuGetProcAddress_v2` that knows only `cuMemAlloc`, in the revision of release 3.2.
unsafe extern "C" fn door(
    symbol: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    flags: u64,
    _: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    // SAFETY: the crate passes a C string.
    let symbol = unsafe { CStr::from_ptr(symbol) }.to_str().unwrap();
    let known = symbol == "cuMemAlloc" && version == 3_020;
    ASKED.with_borrow_mut(|asked| asked.push((symbol.to_owned(), version, flags)));
    // SAFETY: the crate passes room for one address.
    unsafe { *address = if known { asked_for as *mut c_void } else { ptr::null_mut() } };
    if known { CUresult::CUDA_SUCCESS } else { CUresult::CUDA_ERROR_NOT_FOUND }
}

/// Returns the address of a symbol that the fake driver exports; null for any other name.
fn symbol(name: &CStr) -> *const c_void {
    match name.to_str().unwrap() {
        "cuDriverGetVersion" => version as *const c_void,
        "cuInit" | "cuGetErrorName" | "cuDeviceGetCount" | "cuMemCreate" => initialise as *const c_void,
        "cuMemAlloc_v2" => exported as *const c_void,
        _ => ptr::null(),
    }
}

fn with_door(name: &CStr) -> *const c_void {
    if name == c"cuGetProcAddress_v2" { door as *const c_void } else { symbol(name) }
}

#[test]
fn the_door_is_asked_for_the_tables_revision() {
    // SAFETY: every function that is called has the signature that the table declares.
    let api = unsafe { Api::from_loader(with_door) }.unwrap();
    let mut address = 0;
    // SAFETY: the method calls `asked_for`, which ignores its arguments.
    assert_eq!(unsafe { api.mem_alloc(&mut address, 1) }.unwrap_err().code(), Some(CUresult(2)));
    // A function that `cuGetProcAddress` does not know is resolved by symbol.
    assert!(api.cuMemCreate().is_ok());
    assert_eq!(api.version(), RELEASE);

    let asked: HashSet<_> = ASKED.take().into_iter().collect();
    for function in FUNCTIONS {
        let is_asked = function.base != "cuGetProcAddress" && function.since <= api.version();
        let query = (function.base.to_owned(), version_code(function.since), 0);
        assert_eq!(asked.contains(&query), is_asked, "{function:?}");
    }
}

unsafe extern "C" fn older_revision() -> CUresult {
    CUresult::CUDA_SUCCESS
}

/// As [`EXPORTED`].
static OLDER_REVISION: unsafe extern "C" fn() -> CUresult = older_revision;

/// A driver's `cuGetProcAddress_v2` that returns the newest revision of `RELEASE`, even for a request that names a
/// newer release.
unsafe extern "C" fn newest_door(
    symbol: *const c_char,
    address: *mut *mut c_void,
    _: c_int,
    _: u64,
    _: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    // SAFETY: the crate passes a C string.
    let symbol = unsafe { CStr::from_ptr(symbol) }.to_str().unwrap();
    let known = symbol != "cuDriverGetVersion"
        && FUNCTIONS.iter().any(|function| function.base == symbol && function.since <= RELEASE);
    // SAFETY: the crate passes room for one address.
    unsafe { *address = if known { OLDER_REVISION as *mut c_void } else { ptr::null_mut() } };
    if known { CUresult::CUDA_SUCCESS } else { CUresult::CUDA_ERROR_NOT_FOUND }
}

#[test]
fn a_revision_newer_than_the_driver_is_never_an_older_one() {
    let loader = |name: &CStr| match name.to_str().unwrap() {
        "cuGetProcAddress_v2" => newest_door as *const c_void,
        // The fake driver exports this revision, although the table dates it after `RELEASE`.
        "cuCtxSynchronize_v2" => EXPORTED as *const c_void,
        _ => symbol(name),
    };
    // SAFETY: every function that is called has the signature that the table declares.
    let api = unsafe { Api::from_loader(loader) }.unwrap();
    assert_eq!(api.version(), RELEASE);
    let newer = FUNCTIONS.iter().filter(|function| function.since > RELEASE);
    let with_older = newer
        .filter(|newer| FUNCTIONS.iter().any(|older| older.base == newer.base && older.since <= RELEASE));
    let mut count = 0;
    for function in with_older {
        let found = api.table().address(function.name);
        let expected = (function.name == "cuCtxSynchronize_v2").then_some(EXPORTED as *const c_void);
        assert_eq!(found, expected, "{function:?}");
        count += 1;
    }
    assert!(count > 10, "{count} functions have a revision newer than {RELEASE}");
    let missing = api.cuCtxCreate_v4().unwrap_err();
    assert_eq!((missing.why, missing.needed), (Why::TooOld, Version::new(12, 5, 0)));
    // For a revision that `RELEASE` has, the table holds the address that `cuGetProcAddress` returned.
    assert_eq!(api.table().address("cuCtxCreate_v3"), Some(OLDER_REVISION as *const c_void));
}

#[test]
fn without_a_door_the_symbols_serve() {
    // SAFETY: every function that is called has the signature that the table declares.
    let api = unsafe { Api::from_loader(symbol) }.unwrap();
    let mut address = 0;
    // SAFETY: the method calls `exported`, which ignores its arguments.
    let error = unsafe { api.mem_alloc(&mut address, 1) }.unwrap_err();
    assert_eq!(error.to_string(), "`cuMemAlloc_v2` returned CUDA_ERROR_INVALID_VALUE (1)");
    assert!(api.cuGetProcAddress_v2().is_err());
}

#[test]
fn what_is_missing_is_named() {
    // SAFETY: every function that is called has the signature that the table declares.
    let api = unsafe { Api::from_loader(with_door) }.unwrap();
    let missing = api.require(Feature::VIRTUAL_MEMORY).unwrap_err();
    assert!(matches!(missing.why, Why::NoSymbol("cuMemRelease")), "{missing:?}");
    let missing = api.require(Feature::FABRIC_HANDLES).unwrap_err();
    assert_eq!((missing.why, missing.needed), (Why::TooOld, Version::new(12, 3, 0)));
    let text = missing.to_string();
    assert!(text.starts_with("FABRIC_HANDLES needs CUDA driver 12.3 or newer; found 12.2 ("), "{text}");
    let text = api.cuCtxCreate_v4().unwrap_err().to_string();
    assert!(text.starts_with("`cuCtxCreate_v4` needs CUDA driver 12.5 or newer; found"), "{text}");
}

#[test]
fn a_toolkits_stub_is_called_by_its_name() {
    let loader =
        |name: &CStr| if name == c"cuDriverGetVersion" { stub as *const c_void } else { symbol(name) };
    // SAFETY: every function that is called has the signature that the table declares.
    let error = unsafe { Api::from_loader(loader) }.unwrap_err();
    let LoadError::Version { fault: VersionFault::Failed { function, status, .. }, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!((function, status), ("cuDriverGetVersion", 34));
    assert!(error.to_string().contains("stub"), "{error}");
}

#[test]
fn what_the_table_leaves_out_has_a_successor_in_every_release() {
    for (old, new) in SUPERSEDED {
        assert!(Table::function(old).is_none(), "{old}");
        let new = Table::function(new).unwrap_or_else(|| panic!("{old} is left out for {new}"));
        assert!(new.since <= Version::new(11, 7, 0), "{old} is left out for {new:?}");
    }
    assert!(SUPERSEDED.contains(&("cuMemAlloc", "cuMemAlloc_v2")));
}

#[test]
fn enumerations_are_data() {
    assert_eq!(format!("{:?}", CUresult::CUDA_ERROR_OUT_OF_MEMORY), "CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(format!("{:?}", CUresult(123_456)), "CUresult(123456)");
    let both = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        | CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
    assert_eq!(both.0, 9);
    assert!(both.contains(CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC));
    assert!(!both.contains(CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_WIN32));
    assert_eq!(format!("{both:?}"), "CUmemAllocationHandleType(9)");
}

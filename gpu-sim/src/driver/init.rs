//! Initialisation, versions, errors' names, and functions by name.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock, PoisonError};

use cuda_driver_sys::{
    CUdriverProcAddressQueryResult, CUresult, FUNCTIONS, Table, cuuint64_t, version_from_code,
};

use super::edge::text;
use crate::abi::{DriverError, DriverResult};

/// The driver release that is modelled.
pub(crate) const VERSION: c_int = 13_000;

abi! {
    early fn cuInit(machine, flags: c_uint) {
        if flags != 0 {
            return Err(DriverError::invalid(format!("cuInit with flags {flags}, which must be 0")));
        }
        machine.initialise();
    }

    early fn cuDriverGetVersion(machine, version: *mut c_int) {
        put!(version, VERSION)?;
    }

    early fn cuGetErrorName(machine, error: CUresult, out: *mut *const c_char) {
        put!(out, error.name().map_or(std::ptr::null(), |name| keep(name.to_owned())))?;
        if error.name().is_none() {
            return Err(DriverError::invalid(format!("{} is no error code", error.0)));
        }
    }

    early fn cuGetErrorString(machine, error: CUresult, out: *mut *const c_char) {
        let words = error.name().map(words);
        put!(out, words.clone().map_or(std::ptr::null(), keep))?;
        if words.is_none() {
            return Err(DriverError::invalid(format!("{} is no error code", error.0)));
        }
    }

    early fn cuGetProcAddress(machine, symbol: *const c_char, out: *mut *mut c_void, version: c_int, flags: cuuint64_t) {
        let (address, verdict) = find(&text(symbol)?, version, flags)?;
        put!(out, address)?;
        if address.is_null() {
            return Err(DriverError::new(CUresult::CUDA_ERROR_NOT_FOUND, format!("{verdict:?}")));
        }
    }

    early fn cuGetProcAddress_v2(
        machine, symbol: *const c_char, out: *mut *mut c_void, version: c_int, flags: cuuint64_t,
        status: *mut CUdriverProcAddressQueryResult,
    ) {
        let (address, verdict) = find(&text(symbol)?, version, flags)?;
        if !status.is_null() {
            put!(status, verdict)?;
        }
        put!(out, address)?;
    }
}

/// Returns "illegal address" for `CUDA_ERROR_ILLEGAL_ADDRESS`.
fn words(name: &str) -> String {
    match name {
        "CUDA_SUCCESS" => "no error".to_owned(),
        _ => name.trim_start_matches("CUDA_ERROR_").to_lowercase().replace('_', " "),
    }
}

/// Returns the text as a C string that lives for ever. Equal texts share one string.
fn keep(text: String) -> *const c_char {
    static KEPT: OnceLock<Mutex<HashMap<String, CString>>> = OnceLock::new();
    let mut kept = KEPT.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    // Names of errors hold no zero byte.
    kept.entry(text.clone()).or_insert_with(|| CString::new(text).unwrap_or_default()).as_ptr()
}

/// Returns the newest revision of `symbol` in a driver of `version`; null if there is none. Functions that are not
/// modelled are not found.
fn find(
    symbol: &str,
    version: c_int,
    flags: u64,
) -> DriverResult<(*mut c_void, CUdriverProcAddressQueryResult)> {
    if flags > 1 {
        return Err(DriverError::unsupported("functions of the per-thread default stream are not modelled"));
    }
    static TABLE: OnceLock<Table> = OnceLock::new();
    let table = TABLE.get_or_init(super::table);
    let version = version_from_code(version);
    let known = FUNCTIONS.iter().filter(|f| f.base == symbol && table.address(f.name).is_some());
    let fitting = known.clone().filter(|f| f.since <= version).max_by_key(|f| f.since);
    Ok(match (fitting.and_then(|f| table.address(f.name)), known.count()) {
        (Some(address), _) => {
            (address.cast_mut(), CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS)
        }
        (None, 0) => (null_mut(), CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND),
        (None, _) => (null_mut(), CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT),
    })
}

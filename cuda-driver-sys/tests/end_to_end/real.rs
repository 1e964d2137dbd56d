//! Tests with the machine's own driver, if it has one. They check that the driver has every function of its
//! release, except those that only the header of a later release declares; that the table holds the addresses that the
//! driver gives; and that the driver names result codes as the header does.

use std::ffi::{CStr, CString, c_void};
use std::ptr;

use cuda_driver_sys::{
    Api, CUdriverProcAddressQueryResult, CUresult, FUNCTIONS, Function, LoadError, version_code,
};

/// Loads the machine's driver. Returns `None` and prints the reason if there is none.
fn driver() -> Option<Api> {
    match Api::load() {
        Ok(api) => {
            let path = api.path().expect("a loaded driver has a file");
            println!("CUDA driver {} ({})", api.version(), path.display());
            Some(api)
        }
        Err(error @ LoadError::NotFound { .. }) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Returns the address that `cuGetProcAddress` has for a function of the table; `None` if it does not know the
/// function.
fn answered(api: &Api, function: &Function) -> Option<*const c_void> {
    let base = CString::new(function.base).unwrap();
    let mut address = ptr::null_mut();
    let status = match api.table().cuGetProcAddress_v2 {
        Some(door) => {
            let mut query = CUdriverProcAddressQueryResult::default();
            // SAFETY: a C string, and room for one address and one result of the query.
            unsafe { door(base.as_ptr(), &mut address, version_code(function.since), 0, &mut query) }
        }
        None => {
            let old = api.cuGetProcAddress().expect("every supported driver has one of the two");
            // SAFETY: a C string, and room for one address.
            unsafe { old(base.as_ptr(), &mut address, version_code(function.since), 0) }
        }
    };
    (status == CUresult::CUDA_SUCCESS && !address.is_null()).then_some(address.cast_const())
}

#[test]
fn every_function_of_the_release_is_there_and_is_the_one_named() {
    let Some(api) = driver() else { return };
    // SAFETY: the driver is loaded already.
    let library = unsafe { libloading::os::unix::Library::new(api.path().unwrap()) }.unwrap();
    let (mut faults, mut remarks, mut there) = (Vec::new(), Vec::new(), 0);
    for function in FUNCTIONS {
        let Function { name, since, declared, .. } = function;
        // SAFETY: only the address is taken.
        let symbol = unsafe { library.get::<*const c_void>(*name) };
        let exported = symbol.ok().map(|symbol| symbol.into_raw().cast_const());
        // `cuGetProcAddress` itself is resolved by its symbol, because a request for either of its revisions may
        // return the newest one.
        let door = function.base == "cuGetProcAddress";
        let due = *since <= api.version();
        // A revision newer than the driver's is not requested, because the driver could return an older one.
        let answered = match (door, due) {
            (true, _) => exported,
            (false, true) => answered(&api, function),
            (false, false) => None,
        };
        let resolved = api.table().address(name);
        there += usize::from(resolved.is_some());
        // A function may be missing if the header of the driver's release does not declare it yet: no program that is
        // built with that header can call it.
        let due_by_header = due && declared.is_none_or(|declared| declared <= api.version());
        match (answered, exported) {
            (None, None) if due_by_header => {
                faults.push(format!("{name}, of {since}: neither cuGetProcAddress nor dlsym knows it"));
            }
            (None, None) if due => {
                remarks.push(format!("{name} is absent; its header is later than {since}"))
            }
            (None, Some(_)) if due => remarks.push(format!("{name} is exported; cuGetProcAddress denies it")),
            (Some(_), None) if due => remarks.push(format!("{name} is answered; no such symbol is exported")),
            (Some(one), Some(other)) if one != other => {
                faults.push(format!("{name}: answered {one:?} for {since}, its symbol is at {other:?}"));
            }
            (None, None) => {}
            _ if !due => remarks.push(format!("{name} is there before {since}")),
            _ => {}
        }
        if resolved != answered.or(exported) {
            faults.push(format!("{name}: the table has {resolved:?}, the driver {answered:?}, {exported:?}"));
        }
    }
    println!("{there} of {} functions\n{}", FUNCTIONS.len(), remarks.join("\n"));
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), FUNCTIONS.len(), faults.join("\n"));
}

#[test]
fn results_are_called_what_the_header_calls_them() {
    let Some(api) = driver() else { return };
    let (mut faults, mut known) = (Vec::new(), 0);
    for (name, code) in CUresult::CONSTANTS {
        let mut text = ptr::null();
        // SAFETY: the function may be called at any time, and has room for one pointer.
        let named = unsafe { api.get_error_name(*code, &mut text) };
        // A code that the driver does not know was added by a newer release.
        if named.is_err() || text.is_null() {
            println!("{name} is unknown to this driver");
            continue;
        }
        known += 1;
        // SAFETY: on success a C string that lives as long as the driver.
        let said = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        if said != *name {
            faults.push(format!("{} is {name} here, {said} to the driver", code.0));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(known > 50, "the driver knows {known} of its own results");
}

#[test]
fn the_driver_can_be_called() {
    let Some(api) = driver() else { return };
    // SAFETY: `cuInit` may be called at any time.
    let code = unsafe { api.init(0) }.map_err(|error| error.code());
    assert!(matches!(code, Ok(()) | Err(Some(CUresult::CUDA_ERROR_NO_DEVICE))), "{code:?}");
}

//! The machine's own driver, where there is one: what `cuGetProcAddress` answers is what the symbol names.

use std::ffi::c_void;

use cuda_driver_sys::{Api, CUresult, FUNCTIONS, LoadError};

/// The machine's driver; `None`, with a word why, where there is none.
fn driver() -> Option<Api> {
    match Api::load() {
        Ok(api) => Some(api),
        Err(error @ LoadError::NotFound { .. }) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn every_function_of_the_release_is_there_and_is_the_one_named() {
    let Some(api) = driver() else { return };
    let path = api.path().expect("a loaded driver has a file");
    println!("CUDA driver {} ({})", api.version(), path.display());
    // SAFETY: the driver is loaded already.
    let library = unsafe { libloading::os::unix::Library::new(path) }.unwrap();
    let mut faults = Vec::new();
    for function in FUNCTIONS {
        // SAFETY: only the address is taken.
        let symbol = unsafe { library.get::<*const c_void>(function.name) };
        let exported = symbol.ok().map(|symbol| symbol.into_raw().cast_const());
        let resolved = api.table().address(function.name);
        if resolved.is_none() && function.since <= api.version() {
            faults.push(format!("{} is absent, though of {}", function.name, function.since));
        }
        if resolved.is_some() && exported.is_some() && resolved != exported {
            faults.push(format!("{} is at {resolved:?}, its symbol at {exported:?}", function.name));
        }
        if resolved.is_some() && api.version() < function.since {
            println!("{} is there before {}", function.name, function.since);
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_driver_can_be_called() {
    let Some(api) = driver() else { return };
    // SAFETY: may be called at any time.
    let status = unsafe { (api.cuInit().unwrap())(0) };
    assert!(matches!(status, CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_NO_DEVICE), "{status:?}");
}

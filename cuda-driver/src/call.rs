//! Macros and functions for calls to the driver: they check return codes, and pass file descriptors.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use cuda_driver_sys::{Api, CUresult};

use crate::driver_error::DriverError;
use crate::{Error, Result};

/// Calls a function of the driver and returns its code, or an error if the driver lacks the function.
/// Example: `unsafe { code!(api, cuCtxSynchronize()) }?`.
macro_rules! code {
    ($api:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $api.$function() {
            Ok(function) => Ok(function($($argument),*)),
            Err(missing) => Err($crate::Error::from(missing)),
        }
    };
}

/// Calls a function of the driver. Returns an error if the driver lacks the function, or the code is not
/// `CUDA_SUCCESS`.
macro_rules! call {
    ($api:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $crate::call::code!($api, $function($($argument),*)) {
            Ok(code) => $crate::call::check($api, stringify!($function), code),
            Err(missing) => Err(missing),
        }
    };
}

pub(crate) use {call, code};

#[inline]
pub(crate) fn check(api: &Api, function: &'static str, code: CUresult) -> Result<()> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(failure(api, function, code).into()) }
}

/// Checks the code of a query. Returns true for `CUDA_SUCCESS`, false for `CUDA_ERROR_NOT_READY`, and an error for
/// any other code.
pub(crate) fn ready(api: &Api, function: &'static str, code: CUresult) -> Result<bool> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(true),
        CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        code => Err(failure(api, function, code).into()),
    }
}

#[cold]
pub(crate) fn failure(api: &Api, function: &'static str, code: CUresult) -> DriverError {
    let describe = |known: bool, text: *const c_char| {
        // SAFETY: on success the driver returns a string that is valid as long as the driver is loaded.
        (known && !text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    let (mut name, mut text) = (std::ptr::null(), std::ptr::null());
    // SAFETY: both functions take any code and write one pointer, to a local that outlives the call.
    let (named, told) = unsafe {
        (code!(api, cuGetErrorName(code, &mut name)), code!(api, cuGetErrorString(code, &mut text)))
    };
    DriverError {
        function,
        code,
        name: describe(named.is_ok_and(succeeded), name).unwrap_or_else(|| "unknown code".to_owned()),
        text: describe(told.is_ok_and(succeeded), text).unwrap_or_else(|| "no description".to_owned()),
    }
}

/// Calls `import` with the number of a file descriptor, converted to a pointer as the driver's import functions
/// expect it. The driver takes descriptor 0 for a null pointer and refuses it. For descriptor 0, `import` therefore
/// gets the number of a duplicate, which is closed afterwards.
pub(crate) fn with_os_handle<T>(
    descriptor: BorrowedFd<'_>,
    import: impl FnOnce(*mut c_void) -> Result<T>,
) -> Result<T> {
    // The number of the duplicate is not 0, because 0 is in use.
    let duplicate = match descriptor.as_raw_fd() {
        0 => Some(descriptor.try_clone_to_owned().map_err(|source| Error::Descriptor { source })?),
        _ => None,
    };
    let number = duplicate.as_ref().map_or(descriptor.as_raw_fd(), |duplicate| duplicate.as_raw_fd());
    import(std::ptr::without_provenance_mut(usize::try_from(number).unwrap_or(usize::MAX)))
}

/// Calls `export` with the address of a `c_int`, to which the driver writes a file descriptor, and returns the
/// descriptor. Returns an error that names the driver's `function` if the driver reports success but writes a
/// negative number, which an `OwnedFd` cannot hold.
pub(crate) fn exported_fd(
    function: &'static str,
    export: impl FnOnce(*mut c_void) -> Result<()>,
) -> Result<OwnedFd> {
    let mut descriptor: c_int = -1;
    export((&raw mut descriptor).cast())?;
    if descriptor < 0 {
        return Err(Error::NoDescriptor { function, found: descriptor });
    }
    // SAFETY: the driver made the descriptor for this call, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn succeeded(code: CUresult) -> bool {
    code == CUresult::CUDA_SUCCESS
}

//! The part of finding and querying the library that is specific to the CUDA driver.

use std::ffi::{CStr, CString, c_void};
use std::path::PathBuf;
use std::{fs, ptr};

use crate::dynamic::library::by_name;
use crate::{CUresult, Function, Table, Version, VersionFault};

/// Name of the library in messages.
pub(crate) const LIBRARY: &str = "CUDA driver";

/// The environment variable that names the library's file.
pub const VARIABLE: &str = "CUDA_DRIVER_SYS_LIBRARY";

/// The names that are passed to the system's loader, in this order.
pub const NAMES: &[&str] = &["libcuda.so.1", "libcuda.so"];

/// Prefixes of the library's file names, without the version.
pub(crate) const FILES: &[&str] = &["libcuda.so"];

/// Advice for a host without the library.
pub(crate) const ADVICE: &str =
    "install NVIDIA's driver, or set CUDA_DRIVER_SYS_LIBRARY to its library's file";

/// Description of the packages whose folders the system's loader does not search.
pub(crate) const PACKAGES: &str = "a toolkit's package for forward compatibility";

/// The files of such packages.
pub(crate) fn packaged() -> Vec<PathBuf> {
    let toolkits = fs::read_dir("/usr/local").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<_> = toolkits.map(|folder| folder.join("compat").join(NAMES[0])).collect();
    files.sort();
    files.retain(|file| file.exists());
    files
}

/// Functions that every supported release has; the first one reports the release.
pub(crate) const REQUIRED: &[&str] = &["cuDriverGetVersion", "cuInit", "cuGetErrorName", "cuDeviceGetCount"];

/// A release's code, for tests.
#[cfg(test)]
pub(crate) const SAMPLE: i32 = 12040;

/// Resolves every function through `cuGetProcAddress`, which is asked for exactly the revision of the table's
/// signature. A function that it does not know is resolved by its symbol.
///
/// A revision that is newer than the driver is taken by symbol only. Asked for it, `cuGetProcAddress` answers the newest
/// revision that the driver has, which is an older one with another signature; a symbol names its revision.
///
/// # Safety
/// Every address that `symbol` answers must be that of the C function asked for.
pub(crate) unsafe fn resolve(symbol: &mut dyn FnMut(&CStr) -> *const c_void) -> Table {
    // SAFETY: the caller's contract; only these three are asked for.
    let entry_points = unsafe {
        Table::resolve(|function| match function.base {
            "cuGetProcAddress" | "cuDriverGetVersion" => by_name(symbol, function.name),
            _ => ptr::null(),
        })
    };
    // A driver that does not report its release is refused later, with the reason.
    // SAFETY: the version function is the driver's, by the caller's contract.
    let release = unsafe { ask_version(&entry_points) }.unwrap_or_default();
    // SAFETY: both ways return the driver's function in this revision, or null.
    unsafe {
        Table::resolve(|function| {
            // `cuGetProcAddress` itself is taken by symbol: a driver may answer its newest for either revision.
            let is_asked = function.base != "cuGetProcAddress" && function.since <= release;
            let answer = if is_asked { ask(&entry_points, function) } else { None };
            answer.unwrap_or_else(|| by_name(symbol, function.name))
        })
    }
}

/// Returns the address by `cuGetProcAddress`, with its default flags: functions that use the legacy default
/// stream.
///
/// # Safety
/// The table's `cuGetProcAddress` must be the driver's.
unsafe fn ask(entry_points: &Table, function: &Function) -> Option<*const c_void> {
    let base = CString::new(function.base).ok()?;
    let mut address = ptr::null_mut();
    let status = if let Some(get) = entry_points.cuGetProcAddress_v2 {
        // SAFETY: a C string, and room for one address; the state of the query is not asked for.
        unsafe { get(base.as_ptr(), &mut address, function.since.code(), 0, ptr::null_mut()) }
    } else {
        let get = entry_points.cuGetProcAddress?;
        // SAFETY: a C string, and room for one address.
        unsafe { get(base.as_ptr(), &mut address, function.since.code(), 0) }
    };
    (status == CUresult::CUDA_SUCCESS && !address.is_null()).then_some(address.cast_const())
}

/// Asks the library for its release.
///
/// # Safety
/// The table's version function must be the driver's.
pub(crate) unsafe fn ask_version(table: &Table) -> Result<Version, VersionFault> {
    let function = REQUIRED[0];
    let ask = table.cuDriverGetVersion.ok_or(VersionFault::Absent(function))?;
    let mut code = 0;
    // SAFETY: it writes one integer; that it is the driver's is the caller's contract.
    let status = unsafe { ask(&mut code) };
    if status != CUresult::CUDA_SUCCESS {
        return Err(VersionFault::Failed { function, status: status.0 });
    }
    if code < 1_000 {
        return Err(VersionFault::Nonsense { function, code });
    }
    Ok(Version::from_code(code))
}

/// Explains a status of the version function; empty if there is nothing to explain.
pub(crate) fn hint(status: u32) -> &'static str {
    match CUresult(status) {
        CUresult::CUDA_ERROR_STUB_LIBRARY => {
            ": it is the stub that a toolkit links against, not a driver's library"
        }
        _ => "",
    }
}

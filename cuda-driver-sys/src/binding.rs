//! The description of the CUDA driver's library for `dynload`, and the resolution of its functions through
//! `cuGetProcAddress`.

use std::ffi::{CStr, CString, c_int, c_void};
use std::path::PathBuf;
use std::{fs, ptr};

use dynload::{Function, Library, Version, VersionFault, by_name, status};

use crate::feature::Feature;
use crate::generated::{CUresult, FUNCTIONS, Table};

/// The name of the environment variable that holds the path of the library's file.
pub const VARIABLE: &str = "CUDA_DRIVER_SYS_LIBRARY";

/// The names that are passed to the system's loader (`dlopen`), in this order.
pub const NAMES: &[&str] = &["libcuda.so.1", "libcuda.so"];

/// The text that the error message appends to the code `CUDA_ERROR_STUB_LIBRARY` to explain it.
const STUB: &str = ": it is the stub that a toolkit links against, not a driver's library";

static LIBRARY: Library = Library {
    name: "CUDA driver",
    variable: VARIABLE,
    names: NAMES,
    stem: "libcuda.so",
    required: &["cuDriverGetVersion", "cuInit", "cuGetErrorName", "cuDeviceGetCount"],
    functions: FUNCTIONS,
    advice: "it comes with NVIDIA's kernel driver, not with the toolkit: install that driver, start the container \
             with the GPUs mapped in, or set CUDA_DRIVER_SYS_LIBRARY to the library's file",
    packages: "a toolkit's package for forward compatibility",
    packaged,
};

dynload::api!(
    /// The functions of the CUDA driver, with its release and its file.
    Api, Table, Feature
);

status!(CUresult, CUDA_SUCCESS);

/// The error of a call: the function is missing, or it returned an error code.
pub type CallError = dynload::CallError<CUresult>;

/// Returns the release that `cuDriverGetVersion` reports as `code`: 12040 is 12.4. Returns 0.0 for a negative code.
pub const fn version_from_code(code: c_int) -> Version {
    let code = if code < 0 { 0 } else { code as u32 };
    Version::new(code / 1_000, code % 1_000 / 10, code % 10)
}

/// Returns the number by which `cuDriverGetVersion` reports a release: 12040 for 12.4.
pub const fn version_code(version: Version) -> c_int {
    (version.major * 1_000 + version.minor * 10 + version.patch) as c_int
}

/// Returns the driver libraries in `/usr/local/*/compat`, where the packages for forward compatibility install them.
fn packaged() -> Vec<PathBuf> {
    let toolkits = fs::read_dir("/usr/local").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<_> = toolkits.map(|folder| folder.join("compat").join(NAMES[0])).collect();
    files.sort();
    files.retain(|file| file.exists());
    files
}

// SAFETY: `LIBRARY` describes the CUDA driver, and the table follows the driver's header. The driver's initialisers may
// run at any time. `resolve` and `version` call only functions of the table.
unsafe impl dynload::Table for Table {
    const LIBRARY: &'static Library = &LIBRARY;

    type Feature = Feature;

    /// Resolves the functions through `cuGetProcAddress`. A request names a function and a release, and
    /// `cuGetProcAddress` returns the newest revision up to that release. Each request names the first release with the
    /// revision that the table declares, so that the returned function has the declared signature. The
    /// revisions of `cuGetProcAddress` itself, and the functions that it does not know, are resolved by their symbols.
    ///
    /// If the driver is older than the revision, `cuGetProcAddress` is not called, because it could return an older
    /// revision with another signature. Such a function is resolved only by its symbol, because every revision has a
    /// symbol of its own.
    unsafe fn resolve(symbol: &mut dyn FnMut(&CStr) -> *const c_void) -> Self {
        // SAFETY: the caller's contract. Only `cuDriverGetVersion` and the two revisions of `cuGetProcAddress` get an
        // address.
        let entry_points = unsafe {
            Self::from_addresses(|function| match function.base {
                "cuGetProcAddress" | "cuDriverGetVersion" => by_name(symbol, function.name),
                _ => ptr::null(),
            })
        };
        // A driver that does not report its release is refused later, with the reason.
        // SAFETY: the version function is the driver's, by the caller's contract.
        let release = unsafe { dynload::Table::version(&entry_points) }.unwrap_or_default();
        // SAFETY: both `ask` and `by_name` return the driver's function in the declared revision, or no address.
        unsafe {
            Self::from_addresses(|function| {
                // A request for `cuGetProcAddress` itself does not follow the rule in the documentation above: if it
                // names the release of the first revision, the answer may be the second revision.
                let is_asked = function.base != "cuGetProcAddress" && function.since <= release;
                let answer = if is_asked { ask(&entry_points, function) } else { None };
                answer.unwrap_or_else(|| by_name(symbol, function.name))
            })
        }
    }

    unsafe fn version(&self) -> Result<Version, VersionFault> {
        let function = LIBRARY.required[0];
        let ask = self.cuDriverGetVersion.ok_or(VersionFault::Absent(function))?;
        let mut code = 0;
        // SAFETY: by the caller's contract this is the driver's function, which writes one integer.
        match unsafe { ask(&mut code) } {
            CUresult::CUDA_SUCCESS if code >= 1_000 => Ok(version_from_code(code)),
            CUresult::CUDA_SUCCESS => Err(VersionFault::Nonsense { function, code }),
            status => {
                let hint = if status == CUresult::CUDA_ERROR_STUB_LIBRARY { STUB } else { "" };
                Err(VersionFault::Failed { function, status: status.0, hint })
            }
        }
    }

    fn address(&self, name: &str) -> Option<*const c_void> {
        Self::address(self, name)
    }
}

/// Returns the address that `cuGetProcAddress` has for the function; `None` if it does not know the function, or the
/// driver has no `cuGetProcAddress`. The flags are 0, the default, which selects the variants that use the legacy
/// default stream.
///
/// # Safety
/// The table's `cuGetProcAddress` must be the driver's.
unsafe fn ask(entry_points: &Table, function: &Function) -> Option<*const c_void> {
    let (base, version) = (CString::new(function.base).ok()?, version_code(function.since));
    let mut address = ptr::null_mut();
    let status = if let Some(get) = entry_points.cuGetProcAddress_v2 {
        // SAFETY: a C string, and room for one address. The last argument, for the status of the search, may be null.
        unsafe { get(base.as_ptr(), &mut address, version, 0, ptr::null_mut()) }
    } else {
        let get = entry_points.cuGetProcAddress?;
        // SAFETY: a C string, and room for one address.
        unsafe { get(base.as_ptr(), &mut address, version, 0) }
    };
    (status == CUresult::CUDA_SUCCESS && !address.is_null()).then_some(address.cast_const())
}

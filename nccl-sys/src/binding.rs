//! The description of NCCL's library for `dynload`, which finds and loads it.

use std::ffi::{CStr, c_int, c_void};

use dynload::{Library, LoadError, Loaded, Version, VersionFault, by_name, status};

use crate::feature::Feature;
use crate::generated::{FUNCTIONS, Table, ncclResult_t};
use crate::python;

/// The name of the environment variable that holds the path of the library's file.
pub const VARIABLE: &str = "NCCL_SYS_LIBRARY";

/// The names that are passed to the system's loader (`dlopen`), in this order.
pub const NAMES: &[&str] = &["libnccl.so.2", "libnccl.so"];

static LIBRARY: Library = Library {
    name: "NCCL",
    variable: VARIABLE,
    names: NAMES,
    stem: "libnccl.so",
    required: &[
        "ncclGetVersion",
        "ncclGetErrorString",
        "ncclGetUniqueId",
        "ncclCommInitRank",
        "ncclCommDestroy",
        "ncclAllReduce",
        "ncclGroupStart",
        "ncclGroupEnd",
    ],
    functions: FUNCTIONS,
    // The text names no function of this crate, because users of programs read it too.
    advice: "install it (package libnccl2, or `pip install nvidia-nccl-cu12`), and set NCCL_SYS_LIBRARY to its \
             libnccl.so.2 if the system's loader does not find it, as in a Python environment",
    packages: "a Python environment",
    packaged: python::libraries,
};

dynload::api!(
    /// The functions of NCCL, with its release and its file.
    Api, Table, Feature
);

impl Api {
    /// Like [`Api::load`], but tries the files of [`python::libraries`] before it asks the system's loader. Loads the
    /// library from the first of these sources that applies:
    /// 1. the file that the environment variable [`VARIABLE`] names, if it is set and not empty;
    /// 2. a copy that this process has loaded already;
    /// 3. the files that [`python::libraries`] returns, in that order;
    /// 4. the file that the system's loader (`dlopen`) finds for one of the names in [`NAMES`].
    ///
    /// # Errors
    /// [`LoadError`], as for [`Api::load`].
    pub fn load_with_python() -> Result<Self, LoadError> {
        // SAFETY: the files are NCCL, as package managers installed it.
        unsafe { Loaded::load_with(python::libraries) }.map(Self)
    }
}

status!(ncclResult_t, ncclSuccess);

/// The error of a call: the function is missing, or it returned a code other than success.
///
/// [`Api::meaning`] gives the meaning of the code in the loaded release. A call on a non-blocking communicator may
/// return [`ncclInProgress`](ncclResult_t::ncclInProgress), which is an error here, like every code but success.
pub type CallError = dynload::CallError<ncclResult_t>;

/// Returns the release that `ncclGetVersion` reports as `code`: 2804 is 2.8.4, 23007 is 2.30.7. Returns 0.0 for a
/// negative code.
pub const fn version_from_code(code: c_int) -> Version {
    let code = if code < 0 { 0 } else { code as u32 };
    let scale = if code < 10_000 { 1_000 } else { 10_000 };
    Version::new(code / scale, code % scale / 100, code % 100)
}

/// Returns the number by which `ncclGetVersion` reports a release: 2804 for 2.8.4, 23007 for 2.30.7.
pub const fn version_code(version: Version) -> c_int {
    let scale = if version.major <= 2 && version.minor <= 8 { 1_000 } else { 10_000 };
    (version.major * scale + version.minor * 100 + version.patch) as c_int
}

// SAFETY: `LIBRARY` describes NCCL, and the table follows NCCL's header. NCCL's initialisers may run at any time.
// `resolve` and `version` call only functions of the table.
unsafe impl dynload::Table for Table {
    const LIBRARY: &'static Library = &LIBRARY;

    type Feature = Feature;

    unsafe fn resolve(symbol: &mut dyn FnMut(&CStr) -> *const c_void) -> Self {
        // SAFETY: the caller's contract.
        unsafe { Self::from_addresses(|function| by_name(symbol, function.name)) }
    }

    unsafe fn version(&self) -> Result<Version, VersionFault> {
        let function = LIBRARY.required[0];
        let ask = self.ncclGetVersion.ok_or(VersionFault::Absent(function))?;
        let mut code = 0;
        // SAFETY: by the caller's contract, this is NCCL's `ncclGetVersion`. It writes one integer to `code`.
        match unsafe { ask(&mut code) } {
            ncclResult_t::ncclSuccess if code >= 1_000 => Ok(version_from_code(code)),
            ncclResult_t::ncclSuccess => Err(VersionFault::Nonsense { function, code }),
            status => Err(VersionFault::Failed { function, status: status.0, hint: "" }),
        }
    }

    fn address(&self, name: &str) -> Option<*const c_void> {
        Self::address(self, name)
    }
}

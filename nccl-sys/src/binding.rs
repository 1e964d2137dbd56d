//! The part of finding and querying the library that is specific to NCCL.

use std::ffi::{CStr, c_void};

use crate::dynamic::library::by_name;
use crate::{Table, Version, VersionFault, ncclResult_t};

/// Name of the library in messages.
pub(crate) const LIBRARY: &str = "NCCL";

/// The environment variable that names the library's file.
pub const VARIABLE: &str = "NCCL_SYS_LIBRARY";

/// The names that are passed to the system's loader, in this order.
pub const NAMES: &[&str] = &["libnccl.so.2", "libnccl.so"];

/// Prefixes of the library's file names, without the version (plugins are called `libnccl-net.so` and the
/// like).
pub(crate) const FILES: &[&str] = &["libnccl.so"];

/// Advice for a host without the library.
pub(crate) const ADVICE: &str = "install it (package libnccl2, or nvidia-nccl-cu12 for Python), set NCCL_SYS_LIBRARY \
     to its file, or take a Python environment's copy with `Api::load_with_python`";

/// Description of the packages whose folders the system's loader does not search.
pub(crate) const PACKAGES: &str = "a Python environment";

pub(crate) use crate::python::libraries as packaged;

/// Functions that every supported release has; the first one reports the release.
pub(crate) const REQUIRED: &[&str] = &[
    "ncclGetVersion",
    "ncclGetErrorString",
    "ncclGetUniqueId",
    "ncclCommInitRank",
    "ncclCommDestroy",
    "ncclAllReduce",
    "ncclGroupStart",
    "ncclGroupEnd",
];

/// A release's code, for tests.
#[cfg(test)]
pub(crate) const SAMPLE: i32 = 22105;

/// Resolves every function by its symbol.
///
/// # Safety
/// Every address that `symbol` answers must be that of the C function asked for.
pub(crate) unsafe fn resolve(symbol: &mut dyn FnMut(&CStr) -> *const c_void) -> Table {
    // SAFETY: the caller's contract.
    unsafe { Table::resolve(|function| by_name(symbol, function.name)) }
}

/// Asks the library for its release.
///
/// # Safety
/// The table's version function must be NCCL's.
pub(crate) unsafe fn ask_version(table: &Table) -> Result<Version, VersionFault> {
    let function = REQUIRED[0];
    let ask = table.ncclGetVersion.ok_or(VersionFault::Absent(function))?;
    let mut code = 0;
    // SAFETY: it writes one integer; that it is NCCL's is the caller's contract.
    let status = unsafe { ask(&mut code) };
    if status != ncclResult_t::ncclSuccess {
        return Err(VersionFault::Failed { function, status: status.0 });
    }
    if code < 1_000 {
        return Err(VersionFault::Nonsense { function, code });
    }
    Ok(Version::from_code(code))
}

/// Explains a status of the version function; empty if there is nothing to explain.
pub(crate) fn hint(_status: u32) -> &'static str {
    ""
}

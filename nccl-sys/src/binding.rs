//! What is NCCL's own in finding and asking the library.

use std::ffi::{CStr, c_void};

use crate::dynamic::library::by_name;
use crate::{Table, Version, VersionFault, ncclResult_t};

/// What the library is called in messages.
pub(crate) const LIBRARY: &str = "NCCL";

/// The environment variable that names the library's file.
pub const VARIABLE: &str = "NCCL_SYS_LIBRARY";

/// The names that the system's loader is asked for, in this order.
pub const NAMES: &[&str] = &["libnccl.so.2", "libnccl.so"];

/// How files of the library are called, versions aside (plugins are called `libnccl-net.so` and the like).
pub(crate) const FILES: &[&str] = &["libnccl.so"];

/// What to do where none is found.
pub(crate) const ADVICE: &str = "install it (package libnccl2, or nvidia-nccl-cu12 for Python), set NCCL_SYS_LIBRARY \
     to its file, or take a Python environment's copy with `Api::load_with_python`";

/// Where packages put the library that the loader does not look into.
pub(crate) const PACKAGES: &str = "a Python environment";

pub(crate) use crate::python::libraries as packaged;

/// What every release has; the first tells the release.
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

/// The release, as the library says.
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

/// What a status of the version function suggests.
pub(crate) fn hint(_status: u32) -> &'static str {
    ""
}

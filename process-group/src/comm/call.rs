//! Calls functions of NCCL's function table, and converts result codes and error texts.

use std::ffi::CStr;

use nccl_sys::{Api, ncclResult_t};

use super::{CommError, Result};

/// Calls a function of NCCL's function table and converts the result code into a [`Result`].
///
/// `call!(nccl, name, ncclAllReduce(args…))`, where `name` is the communicator's name in errors. The caller wraps the
/// macro in `unsafe` and states why the arguments are valid. If the library lacks the function, the macro returns
/// `CommError::Missing` from the enclosing function or closure.
macro_rules! call {
    ($nccl:expr, $name:expr, $function:ident ( $($argument:expr),* $(,)? )) => {{
        let nccl: &$crate::comm::Nccl = $nccl;
        let code = (nccl.api().$function()?)($($argument),*);
        $crate::comm::call::check(nccl.api(), stringify!($function), $name, code)
    }};
}
pub(crate) use call;

/// Converts NCCL's result code into a [`Result`]. The error contains NCCL's text for the code and NCCL's last message.
#[inline]
pub(crate) fn check(api: &Api, call: &'static str, communicator: &str, code: ncclResult_t) -> Result<()> {
    if code == ncclResult_t::ncclSuccess { Ok(()) } else { Err(failure(api, call, communicator, code)) }
}

#[cold]
fn failure(api: &Api, call: &'static str, communicator: &str, code: ncclResult_t) -> CommError {
    let (meaning, text, last) = (api.meaning(code), text(api, code), last_error(api));
    CommError::Nccl { call, communicator: communicator.into(), code, meaning, text, last }
}

/// Returns the [`CommError::Unwritten`] of a call that returned success but did not write its result. `what` names the
/// missing result.
pub(crate) fn unwritten(api: &Api, call: &'static str, communicator: &str, what: &'static str) -> CommError {
    let (release, path) = (api.version(), api.path().map(ToOwned::to_owned));
    CommError::Unwritten { call, communicator: communicator.into(), what, release, path }
}

/// Returns NCCL's text for a code.
fn text(api: &Api, code: ncclResult_t) -> String {
    let Ok(ask) = api.ncclGetErrorString() else { return String::new() };
    // SAFETY: the only argument is a number.
    let text = unsafe { ask(code) };
    // SAFETY: NCCL returns the address of a string constant.
    unsafe { owned(text) }.unwrap_or_default()
}

/// Returns a copy of NCCL's last message in this process. Other threads may overwrite NCCL's buffer, so the text is
/// copied at once.
fn last_error(api: &Api) -> Option<String> {
    let ask = api.ncclGetLastError().ok()?;
    // SAFETY: NCCL ignores the communicator argument. Its documentation allows null, for the last message of the
    // process.
    let text = unsafe { ask(std::ptr::null_mut()) };
    // SAFETY: NCCL returns the address of its process-wide message buffer, which is always NUL-terminated.
    unsafe { owned(text) }.filter(|text| !text.is_empty())
}

/// Copies a C string, without white space at its end. Returns `None` for null.
///
/// # Safety
/// `text` is null or points to a NUL-terminated string.
unsafe fn owned(text: *const std::ffi::c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: `text` is not null, so by the caller's contract it points to a NUL-terminated string.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().trim_end().to_owned())
}

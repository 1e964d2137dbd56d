//! The one way into NCCL's table: calls, codes and texts.

use std::ffi::CStr;

use nccl_sys::{Api, ncclResult_t};

use super::{CommError, Result};

/// Calls a function of NCCL's table and turns its code into a [`Result`].
///
/// `call!(nccl, name, ncclAllReduce(args…))`, where `name` is how errors call the communicator; the caller wraps
/// it in `unsafe` and says why the arguments are good.
macro_rules! call {
    ($nccl:expr, $name:expr, $function:ident ( $($argument:expr),* $(,)? )) => {{
        let nccl: &$crate::comm::Nccl = $nccl;
        let code = (nccl.api().$function()?)($($argument),*);
        $crate::comm::call::check(nccl.api(), stringify!($function), $name, code)
    }};
}
pub(crate) use call;

/// Turns NCCL's code into a result, with what NCCL says about it at this moment.
#[inline]
pub(crate) fn check(api: &Api, call: &'static str, communicator: &str, code: ncclResult_t) -> Result<()> {
    if code == ncclResult_t::ncclSuccess { Ok(()) } else { Err(failure(api, call, communicator, code)) }
}

#[cold]
fn failure(api: &Api, call: &'static str, communicator: &str, code: ncclResult_t) -> CommError {
    let (meaning, text, last) = (api.meaning(code), text(api, code), last_error(api));
    CommError::Nccl { call, communicator: communicator.into(), code, meaning, text, last }
}

/// The error of a call that answered success without `what` it was asked for.
pub(crate) fn unwritten(api: &Api, call: &'static str, communicator: &str, what: &'static str) -> CommError {
    let (release, path) = (api.version(), api.path().map(ToOwned::to_owned));
    CommError::Unwritten { call, communicator: communicator.into(), what, release, path }
}

/// What NCCL says about a code.
fn text(api: &Api, code: ncclResult_t) -> String {
    let Ok(ask) = api.ncclGetErrorString() else { return String::new() };
    // SAFETY: takes a number.
    let text = unsafe { ask(code) };
    // SAFETY: NCCL answers a string constant.
    unsafe { owned(text) }.unwrap_or_default()
}

/// NCCL's last message in this process, copied at once: other threads overwrite it.
fn last_error(api: &Api) -> Option<String> {
    let ask = api.ncclGetLastError().ok()?;
    // SAFETY: NCCL ignores the communicator, and documents that null asks for the process.
    let text = unsafe { ask(std::ptr::null_mut()) };
    // SAFETY: NCCL answers its one buffer, which it keeps terminated.
    unsafe { owned(text) }.filter(|text| !text.is_empty())
}

/// Copies a C string.
///
/// # Safety
/// `text` is null or points to a terminated string.
unsafe fn owned(text: *const std::ffi::c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's contract.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().trim_end().to_owned())
}

//! The boundary to C: the macro that defines the ABI's functions, and access to pointers that callers pass.

use std::ffi::c_char;

use cuda_driver_sys::CUresult;

use crate::abi::{DriverError, DriverResult};
use crate::world::Machine;

/// Defines ABI functions of this module and `install`, which puts them into a table.
///
/// A body gets the machine and returns [`DriverResult`]. `early` functions may be called before `cuInit`.
macro_rules! abi {
    ($($(#[$meta:meta])* $kind:ident fn $name:ident($machine:ident $(, $argument:ident: $type:ty)* $(,)?) $body:block)*) => {
        $(
            $(#[$meta])*
            #[cfg_attr(feature = "exports", unsafe(no_mangle))]
            #[allow(non_snake_case, clippy::too_many_arguments, reason = "the C function's own signature")]
            unsafe extern "C" fn $name($($argument: $type),*) -> ::cuda_driver_sys::CUresult {
                crate::abi::call(stringify!($name), |$machine| {
                    #[allow(unused_variables, reason = "not every function looks at the machine")]
                    let $machine = $machine;
                    $(let _ = &$argument;)*
                    let early = matches!(stringify!($kind), "early");
                    let body = || -> crate::abi::DriverResult { $body; #[allow(unreachable_code, reason = "bodies may return")] Ok(()) };
                    crate::driver::edge::finish($machine, stringify!($name), early, body)
                })
            }
        )*

        /// Puts this module's functions into `table`.
        pub(super) fn install(table: &mut ::cuda_driver_sys::Table) {
            $(table.$name = Some($name);)*
        }
    };
}

/// Writes through a pointer that the caller passed; null is refused.
macro_rules! put {
    ($out:expr, $value:expr) => {
        // SAFETY: who calls an ABI function vouches for the pointers it passes, as the driver's contract says.
        unsafe { crate::driver::edge::write_to($out, $value) }
    };
}

/// Reads through a pointer that the caller passed; null is refused.
macro_rules! get {
    ($from:expr) => {
        // SAFETY: who calls an ABI function vouches for the pointers it passes, as the driver's contract says.
        unsafe { crate::driver::edge::read_from($from) }
    };
}

/// Reads `len` elements through a pointer that the caller passed; null is refused unless there are none.
macro_rules! list {
    ($from:expr, $len:expr) => {
        // SAFETY: who calls an ABI function vouches for the pointers it passes, as the driver's contract says.
        unsafe { crate::driver::edge::read_list($from, $len) }
    };
}

/// Converts a body's result into the code, and keeps the reason.
pub(crate) fn finish(
    machine: &Machine,
    name: &str,
    early: bool,
    body: impl FnOnce() -> DriverResult,
) -> CUresult {
    if !early && !machine.is_initialised() {
        return CUresult::CUDA_ERROR_NOT_INITIALIZED;
    }
    match body() {
        Ok(()) => CUresult::CUDA_SUCCESS,
        Err(DriverError { code, why }) => {
            if let Some(why) = why {
                machine.note(format!("{name}: {code:?}: {why}"));
            }
            code
        }
    }
}

/// # Safety
/// `out` is null or valid for writing a `T`.
pub(crate) unsafe fn write_to<T>(out: *mut T, value: T) -> DriverResult {
    if out.is_null() {
        return Err(DriverError::invalid("a null pointer for a result"));
    }
    // SAFETY: the caller's promise; C's structures need not be aligned as Rust wants them.
    unsafe { out.write_unaligned(value) };
    Ok(())
}

/// # Safety
/// `from` is null or valid for reading a `T`.
pub(crate) unsafe fn read_from<T: Copy>(from: *const T) -> DriverResult<T> {
    if from.is_null() {
        return Err(DriverError::invalid("a null pointer for an argument"));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { from.read_unaligned() })
}

/// # Safety
/// `from` is null or valid for reading `len` times `T`.
pub(crate) unsafe fn read_list<T: Copy>(from: *const T, len: usize) -> DriverResult<Vec<T>> {
    // SAFETY: the caller's promise.
    (0..len).map(|i| unsafe { read_from(from.wrapping_add(i)) }).collect()
}

/// The text of a C string that the caller passed.
pub(super) fn text(from: *const c_char) -> DriverResult<String> {
    if from.is_null() {
        return Err(DriverError::invalid("a null pointer for a name"));
    }
    // SAFETY: who calls an ABI function vouches for the strings it passes.
    Ok(unsafe { std::ffi::CStr::from_ptr(from) }.to_string_lossy().into_owned())
}

/// Copies `text` and its end into a caller's buffer of `len` bytes, cut to fit.
pub(super) fn put_text(out: *mut c_char, len: i32, text: &str) -> DriverResult {
    let room = usize::try_from(len).ok().and_then(|l| l.checked_sub(1));
    let room = room.ok_or_else(|| DriverError::invalid("no room for a text"))?;
    for (i, byte) in text.bytes().take(room).chain([0]).enumerate() {
        put!(out.wrapping_add(i), byte as c_char)?;
    }
    Ok(())
}

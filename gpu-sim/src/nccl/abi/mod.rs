//! NCCL's C functions: they check arguments and call the modules beside this one.
//!
//! * [`grow`]: communicators with additional ranks.
//! * [`info`]: versions, errors, questions about a communicator.
//! * [`lifecycle`]: unique ids, init, split, shrink, finalize, destroy, abort, revoke.
//! * [`operations`]: collectives, sends and receives.
//! * [`memory`]: allocation, local registration, windows.
//! * [`one_sided`]: puts, signals, waits for signals.
//! * [`suspend`]: releasing a communicator's buffers, and taking them again.
//!
//! Functions that are not modelled are absent from the table, so a program sees an older library:
//! per-call configurations, parameters, simulation of groups, encryption.

#![allow(non_snake_case, reason = "the C names")]

mod grow;
mod info;
mod lifecycle;
mod memory;
mod one_sided;
mod operations;
mod suspend;

use std::sync::Arc;

use nccl_sys::{Table, ncclResult_t, version_from_code};

use super::error::{Result, set_last};
use super::library::Library;
use crate::abi::{self, Status};
use crate::world::Machine;

impl Status for ncclResult_t {
    fn injected(code: u32) -> Self {
        Self(code)
    }

    fn no_world() -> Self {
        Self::ncclSystemError
    }

    fn panicked() -> Self {
        Self::ncclInternalError
    }
}

/// The wrapper of every function: counts it, applies injected faults, and keeps the error text for
/// `ncclGetLastError`.
fn call(name: &'static str, body: impl FnOnce(&Arc<Machine>, &Arc<Library>) -> Result) -> ncclResult_t {
    abi::call(name, |machine| match body(machine, &machine.part::<Library>()) {
        Ok(()) => ncclResult_t::ncclSuccess,
        Err(failure) => {
            let text = format!("{name}: {}", failure.text);
            set_last(&text);
            machine.note(text);
            failure.code
        }
    })
}

/// Like [`call`], for functions that a group queues: an error also marks the open group as failed.
fn queued(name: &'static str, body: impl FnOnce(&Arc<Machine>, &Arc<Library>) -> Result) -> ncclResult_t {
    call(name, |machine, library| {
        body(machine, library).inspect_err(|failure| super::group::remember(machine, failure))
    })
}

/// A caller's out parameter, to be written by another thread.
#[derive(Debug)]
struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

// SAFETY: NCCL's contract: an out parameter of a queued call stays valid, and untouched by the caller, until the
// group has ended, on whatever thread it is written; what is written are handles, which are numbers.
unsafe impl<T> Send for Out<T> {}

impl<T> Out<T> {
    /// Wraps the parameter; NULL is an invalid argument.
    fn new(pointer: *mut T, what: &str) -> Result<Self> {
        if pointer.is_null() {
            return Err(super::error::Failure::argument(format!("{what} is NULL")));
        }
        Ok(Self(pointer))
    }

    fn set(self, value: T) {
        // SAFETY: not null (checked), valid by NCCL's contract; `write` needs nothing of what is there.
        unsafe { self.0.write(value) }
    }
}

/// The modelled functions of a release.
pub(crate) fn table(release: i32) -> Table {
    let release = version_from_code(release);
    let mut table = Table::default();
    macro_rules! fill {
        ($($module:ident: $($name:ident)*;)*) => {$($(
            if Table::function(stringify!($name)).is_some_and(|known| known.since <= release) {
                table.$name = Some($module::$name);
            }
        )*)*};
    }
    fill! {
        info: ncclGetVersion ncclGetErrorString ncclGetLastError ncclCommGetAsyncError ncclCommCount
            ncclCommCuDevice ncclCommUserRank ncclCommMemStats;
        lifecycle: ncclGetUniqueId ncclCommInitRank ncclCommInitRankConfig ncclCommInitRankScalable ncclCommInitAll
            ncclCommSplit ncclCommShrink ncclCommFinalize ncclCommDestroy ncclCommAbort ncclCommRevoke
            ncclGroupStart ncclGroupEnd;
        grow: ncclCommGetUniqueId ncclCommGrow;
        operations: ncclAllReduce ncclBroadcast ncclBcast ncclAllGather ncclReduceScatter ncclReduce ncclAlltoAll
            ncclGather ncclScatter ncclSend ncclRecv ncclRedOpCreatePreMulSum ncclRedOpDestroy;
        one_sided: ncclPutSignal ncclSignal ncclWaitSignal;
        suspend: ncclCommSuspend ncclCommResume;
        memory: ncclMemAlloc ncclMemFree ncclCommRegister ncclCommDeregister ncclCommWindowRegister
            ncclCommWindowDeregister ncclWinGetUserPtr ncclGetPeerDevicePointer ncclGetLsaDevicePointer;
    }
    table
}

//! The wrapper around every ABI function of both libraries: it counts the call, applies injected faults, passes a
//! scheduling point, and lets no panic out.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cuda_driver_sys::CUresult;

use crate::fault::Fault;
use crate::memory::MemoryError;
use crate::sched::{self, WaitError, panic_text};
use crate::world::{self, Machine};

/// Builds a library's return value for the outcomes that the wrapper decides.
pub(crate) trait Status {
    /// An injected code.
    fn injected(code: u32) -> Self;
    /// No world is alive, or the calling thread may not enter it.
    fn no_world() -> Self;
    /// The call panicked.
    fn panicked() -> Self;
}

/// Runs `body` as the ABI function `name`.
pub(crate) fn call<R: Status>(name: &'static str, body: impl FnOnce(&Arc<Machine>) -> R) -> R {
    let Some(machine) = world::machine() else { return R::no_world() };
    if !machine.sched.admits_this_thread() {
        machine.misuse(format!("{name} called from another thread than the seeded world's own"));
        return R::no_world();
    }
    let framed = || {
        sched::point(name);
        match machine.faults.gate(name) {
            Some(code) => R::injected(code),
            None => body(&machine),
        }
    };
    catch_unwind(AssertUnwindSafe(framed)).unwrap_or_else(|payload| {
        machine.misuse(format!("{name} panicked: {}", panic_text(&*payload)));
        R::panicked()
    })
}

/// An error of a driver call: the code for the program, and the reason as text for the world's notes.
#[derive(Debug, Clone)]
pub(crate) struct DriverError {
    pub(crate) code: CUresult,
    pub(crate) why: Option<String>,
}

/// Result of a driver call.
pub(crate) type DriverResult<T = ()> = Result<T, DriverError>;

impl DriverError {
    pub(crate) fn new(code: CUresult, why: impl Into<String>) -> Self {
        Self { code, why: Some(why.into()) }
    }

    pub(crate) fn invalid(why: impl Into<String>) -> Self {
        Self::new(CUresult::CUDA_ERROR_INVALID_VALUE, why)
    }

    pub(crate) fn unsupported(why: impl Into<String>) -> Self {
        Self::new(CUresult::CUDA_ERROR_NOT_SUPPORTED, why)
    }
}

/// Codes that need no explanation (not ready, no context).
impl From<CUresult> for DriverError {
    fn from(code: CUresult) -> Self {
        Self { code, why: None }
    }
}

impl From<MemoryError> for DriverError {
    fn from(error: MemoryError) -> Self {
        let code = match error {
            MemoryError::OutOfMemory { .. } => CUresult::CUDA_ERROR_OUT_OF_MEMORY,
            MemoryError::Invalid(_) => CUresult::CUDA_ERROR_INVALID_VALUE,
            MemoryError::NotPermitted(_) => CUresult::CUDA_ERROR_INVALID_CONTEXT,
            MemoryError::Unsupported(_) => CUresult::CUDA_ERROR_NOT_SUPPORTED,
            // The code that the driver returns for any other descriptor.
            MemoryError::NotOurs(_) => CUresult::CUDA_ERROR_UNKNOWN,
            MemoryError::AlreadyRegistered(_) => CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
            MemoryError::NotRegistered(_) => CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
            MemoryError::Host { .. } => CUresult::CUDA_ERROR_OPERATING_SYSTEM,
        };
        Self::new(code, error.to_string())
    }
}

impl From<WaitError> for DriverError {
    fn from(error: WaitError) -> Self {
        let code = match error {
            WaitError::Stopped { .. } => CUresult::CUDA_ERROR_DEINITIALIZED,
            _ => CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
        };
        Self::new(code, error.to_string())
    }
}

impl From<&Fault> for DriverError {
    fn from(fault: &Fault) -> Self {
        let code = match fault {
            Fault::Unmapped { .. } | Fault::AccessDenied { .. } => CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            Fault::Misaligned { .. } => CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
            Fault::Wait(WaitError::Stopped { .. }) => CUresult::CUDA_ERROR_DEINITIALIZED,
            Fault::Wait(_) => CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
            Fault::Trap(_) => CUresult::CUDA_ERROR_ASSERT,
            Fault::Unloaded { .. } | Fault::Panic(_) | Fault::Host { .. } => {
                CUresult::CUDA_ERROR_LAUNCH_FAILED
            }
        };
        Self::new(code, fault.to_string())
    }
}

impl Status for CUresult {
    fn injected(code: u32) -> Self {
        Self(code)
    }

    fn no_world() -> Self {
        Self::CUDA_ERROR_DEINITIALIZED
    }

    fn panicked() -> Self {
        Self::CUDA_ERROR_UNKNOWN
    }
}

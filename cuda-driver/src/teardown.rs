//! Reports failures in `Drop`, which cannot return them. Ignoring such a failure would hide a leak.

use std::io::Write as _;
use std::sync::{Arc, PoisonError, RwLock};

use cuda_driver_sys::CUresult;

use crate::unwind::ignore_panic;
use crate::{Error, Result};

type Hook = Arc<dyn Fn(&Error) + Send + Sync>;

static HOOK: RwLock<Option<Hook>> = RwLock::new(None);

/// Sets the function that receives the failures in a `Drop` of this crate, for the whole process. Replaces the former
/// function. Without a hook, each failure is written to standard error as one line.
///
/// The hook runs on the thread that drops the object. If a `Drop` fails, the resource of the object may be leaked. A
/// panic inside the hook is ignored. Some failures are not reported; the [crate documentation](crate#invariants) lists
/// them. Among them are all failures after the driver has shut down at the end of the process: its shutdown has
/// already released all objects.
pub fn set_drop_error_hook(hook: impl Fn(&Error) + Send + Sync + 'static) {
    let former = HOOK.write().unwrap_or_else(PoisonError::into_inner).replace(Arc::new(hook));
    // The lock is not held here, because the former hook may own an object whose drop fails. Reporting that failure
    // takes the lock.
    drop(former);
}

/// Reports a failure in a `Drop` to the hook, or to standard error if there is none. Ignores
/// `CUDA_ERROR_DEINITIALIZED`, because the driver has then shut down.
pub(crate) fn report(result: Result<()>) {
    let Err(error) = result else { return };
    if error.code() == Some(CUresult::CUDA_ERROR_DEINITIALIZED) {
        return;
    }
    let hook = HOOK.read().unwrap_or_else(PoisonError::into_inner).clone();
    ignore_panic(|| match hook {
        Some(hook) => hook(&error),
        None => {
            let _ = writeln!(std::io::stderr(), "cuda-driver: while dropping: {error}");
        }
    });
}

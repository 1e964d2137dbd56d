//! Reporting of failures in `Drop`, which cannot return them: ignoring them would hide leaks.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock};

use cuda_driver_sys::CUresult;

use crate::{Error, Result};

type Hook = Arc<dyn Fn(&Error) + Send + Sync>;

static HOOK: RwLock<Option<Hook>> = RwLock::new(None);

/// Sends every failure met by a `Drop` of this crate, in this process, to `hook` instead of the default, which
/// writes one line to standard error.
///
/// The hook runs on the thread that drops; a panic inside it is swallowed. The object's resource may be
/// leaked after such a failure. A driver that has already shut down (at the end of the process) is no
/// failure: its objects are gone with it.
pub fn set_drop_error_hook(hook: impl Fn(&Error) + Send + Sync + 'static) {
    *HOOK.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(hook));
}

/// Reports the failure of a `Drop`.
pub(crate) fn report(result: Result<()>) {
    let Err(error) = result else { return };
    if error.code() == Some(CUresult::CUDA_ERROR_DEINITIALIZED) {
        return;
    }
    let hook = HOOK.read().unwrap_or_else(PoisonError::into_inner).clone();
    let _ = catch_unwind(AssertUnwindSafe(|| match hook {
        Some(hook) => hook(&error),
        None => {
            let _ = writeln!(std::io::stderr(), "cuda-driver: while dropping: {error}");
        }
    }));
}

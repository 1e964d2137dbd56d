//! Panics of functions that users pass.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `function`. Catches a panic of `function` and discards the payload. The panic hook has already run.
pub(crate) fn ignore_panic(function: impl FnOnce()) {
    let Err(payload) = catch_unwind(AssertUnwindSafe(function)) else { return };
    // Dropping the payload may panic too, and so may dropping the payload of that panic. The second payload is leaked.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(payload);
    }
}

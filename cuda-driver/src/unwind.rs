//! Panics of functions that users pass.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `function`. A panic in it ends here; the panic hook has printed its message.
pub(crate) fn ignore_panic(function: impl FnOnce()) {
    let Err(payload) = catch_unwind(AssertUnwindSafe(function)) else { return };
    // Dropping the payload may panic too, and so may dropping the payload of that panic. The second payload is leaked.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(payload);
    }
}

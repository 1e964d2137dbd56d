//! Whether the calling thread has an open NCCL group.

use std::cell::Cell;

use super::{CommError, Result};

thread_local! {
    /// Every call reads it.
    static OPEN: Cell<bool> = const { Cell::new(false) };
}

/// Records that this thread has, or no longer has, an open group.
pub(super) fn set(open: bool) {
    OPEN.set(open);
}

/// Returns true while this thread has an open group.
#[inline]
pub(crate) fn is_open() -> bool {
    OPEN.get()
}

/// Fails for a call that must not be queued in a group.
#[inline]
pub(crate) fn refuse_inside(call: &'static str) -> Result<()> {
    if is_open() { Err(CommError::InsideGroup { call }) } else { Ok(()) }
}

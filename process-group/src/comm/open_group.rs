//! Whether the calling thread has an open NCCL group.

use std::cell::Cell;

use super::{CommError, Result};

thread_local! {
    /// True while this thread has an open NCCL group. Every call reads this value.
    static OPEN: Cell<bool> = const { Cell::new(false) };
}

/// Records whether this thread has an open NCCL group.
pub(super) fn set(open: bool) {
    OPEN.set(open);
}

/// Returns true while this thread has an open group.
#[inline]
pub(crate) fn is_open() -> bool {
    OPEN.get()
}

/// Fails if this thread has an open NCCL group, because `call` must not be queued in a group.
#[inline]
pub(crate) fn refuse_inside(call: &'static str) -> Result<()> {
    if is_open() { Err(CommError::InsideGroup { call }) } else { Ok(()) }
}

//! Freeing of pinned memory with an outcome.

use std::mem;

use super::PinnedMemory;
use crate::Result;
use crate::call::call;
use crate::graph::RelaxedCapture;

impl PinnedMemory {
    /// Frees the memory, as dropping does, and returns the outcome. Waits for the device. Memory is leaked if the
    /// call fails.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemFreeHost`, also for what earlier asynchronous work did
    /// wrong.
    #[doc(alias = "cuMemFreeHost")]
    pub fn free(mut self) -> Result<()> {
        // Dropping an empty one frees nothing.
        if mem::take(&mut self.bytes) == 0 {
            return Ok(());
        }
        // Freeing is not part of an open capture, and must not invalidate it.
        let _relaxed = RelaxedCapture::enter(self.context.driver());
        let _current = self.context.enter()?;
        // SAFETY: made by `cuMemHostAlloc` and used by nobody after this, as `self` is consumed.
        unsafe { call!(self.context.api(), cuMemFreeHost(self.start.as_ptr().cast())) }
    }
}

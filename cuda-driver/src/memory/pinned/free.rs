//! A method that frees pinned memory and returns the outcome.

use std::mem;

use super::PinnedMemory;
use crate::Result;
use crate::call::call;
use crate::graph::RelaxedCapture;

impl PinnedMemory {
    /// Frees the memory, as dropping it does, and returns the outcome. May wait for the device. If the call fails, the
    /// memory is leaked.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) from `cuMemFreeHost`, also for errors of earlier asynchronous work.
    #[doc(alias = "cuMemFreeHost")]
    pub fn free(mut self) -> Result<()> {
        // `take` sets the size to 0, so that dropping `self` at the end does not free the memory again.
        if mem::take(&mut self.bytes) == 0 {
            return Ok(());
        }
        // Freeing does not take part in an open capture and must not invalidate it.
        let _relaxed = RelaxedCapture::enter(self.context.driver());
        let _current = self.context.enter()?;
        // SAFETY: `cuMemHostAlloc` returned the address. `self` is consumed, so safe code cannot use the memory any
        // more. Enqueued work does not use it either, as the callers of the `unsafe` calls that enqueued the work
        // promised.
        unsafe { call!(self.context.api(), cuMemFreeHost(self.start.as_ptr().cast())) }
    }
}

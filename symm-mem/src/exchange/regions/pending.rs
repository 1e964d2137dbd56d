//! An enqueued transfer between [regions](super::Regions).

use std::sync::{Arc, OnceLock};

use cuda_driver::{Event, graph::RelaxedCapture};

use super::super::{Fault, TransferError};

/// An enqueued transfer between regions. This handle does not keep the regions allocated. Dropping it does not cancel
/// the transfer.
#[derive(Debug)]
#[must_use = "the transfer may not have ended yet"]
pub struct PendingTransfer {
    /// This event is recorded after the transfer. `None` if the transfer was captured into a graph.
    done: Option<Arc<Event>>,
    fault: Arc<OnceLock<Fault>>,
}

impl PendingTransfer {
    pub(super) fn new(done: Option<Arc<Event>>, fault: Arc<OnceLock<Fault>>) -> Self {
        Self { done, fault }
    }

    /// Returns whether the copies, and the notification if there is one, have ended. Does not block.
    ///
    /// # Errors
    /// [`TransferError::Fault`] if the transfers with the same peer have failed, for example because the copies did not
    /// end by their deadline. [`TransferError::Captured`] if the transfer was captured into a graph: each launch of the
    /// graph repeats it, so it has no single end. [`TransferError::Driver`] if the driver fails.
    pub fn is_done(&self) -> Result<bool, TransferError> {
        let done = self.done.as_ref().ok_or(TransferError::Captured { asked: "is_done" })?;
        // Without this guard, the query would invalidate another thread's capture in global mode.
        let _relaxed = RelaxedCapture::enter(done.context().driver());
        let is_done = done.query()?;
        self.fault.get().map_or(Ok(is_done), |fault| Err(fault.clone().into()))
    }
}

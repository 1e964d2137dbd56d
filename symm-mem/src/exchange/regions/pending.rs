//! A transfer between regions that was enqueued.

use std::sync::{Arc, OnceLock};

use cuda_driver::{Event, graph::RelaxedCapture};

use super::super::{Fault, TransferError};

/// A transfer between regions that was enqueued. Holds no memory; dropping it has no effect on the transfer.
#[derive(Debug)]
#[must_use = "the transfer may not have ended yet"]
pub struct PendingTransfer {
    /// `None` if it was captured into a graph.
    done: Option<Arc<Event>>,
    fault: Arc<OnceLock<Fault>>,
}

impl PendingTransfer {
    pub(super) fn new(done: Option<Arc<Event>>, fault: Arc<OnceLock<Fault>>) -> Self {
        Self { done, fault }
    }

    /// Returns whether the copies have ended. Does not block.
    ///
    /// # Errors
    /// [`TransferError::Fault`] if the transfers with this peer have failed, for example because the copies did not
    /// end by their deadline. [`TransferError::Captured`] if the transfer was captured into a graph: each launch of the
    /// graph repeats it, so it has no single end. [`TransferError::Driver`] if the query of the event fails.
    pub fn is_done(&self) -> Result<bool, TransferError> {
        let done = self.done.as_ref().ok_or(TransferError::Captured { asked: "is_done" })?;
        // A query would invalidate the capture of another thread in global mode.
        let _relaxed = RelaxedCapture::enter(done.context().driver());
        let is_done = done.query()?;
        self.fault.get().map_or(Ok(is_done), |fault| Err(fault.clone().into()))
    }
}

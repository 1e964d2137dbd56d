//! Asynchronous errors, and their causes.
//!
//! A communicator's error may be caused by members that made different calls. The members' hashes show that,
//! so they are compared before this rank is blamed.

use std::{sync::Arc, time::Duration};

use bootstrap::runtime::{self, Instant};
use nccl_sys::ncclResult_t;

use super::{
    GroupError, Result,
    health::{Doubt, GroupHealth},
};
use crate::{
    comm::CommError,
    store::Deadline,
    watch::{COMPARISON, Trouble},
};

/// Returns true for an error of NCCL. A closed communicator, or one that is still being initialised, has not failed.
fn is_failure(error: &CommError) -> bool {
    matches!(error, CommError::Nccl { code, .. } if *code != ncclResult_t::ncclInProgress)
}

impl GroupHealth {
    /// Checks the communicators for asynchronous errors. An error ends the group on all members a moment later.
    ///
    /// # Errors
    /// The reason why the group has ended, otherwise the error of a communicator.
    pub(super) fn check_background(&self) -> Result<()> {
        let found = self.async_error();
        match &found {
            // This error comes from the member that has left. Work that is done was done before.
            Err(CommError::Nccl { code: ncclResult_t::ncclRemoteError, .. }) if self.was_left() => {
                return Ok(());
            }
            Err(error) if is_failure(error) => self.doubt(error),
            _ => {}
        }
        self.explain(found.map_err(GroupError::from))
    }

    /// Checks that work whose event has passed is really done. Failed work passes its event too.
    ///
    /// # Errors
    /// Those of [`check_background`](Self::check_background).
    pub(super) fn check_done(&self) -> Result<()> {
        let checked = self.check_background();
        // The check was made before the communicators were aborted. They cannot be asked any more.
        if self.settled.get() == Some(&true) {
            return Ok(());
        }
        checked
    }

    fn doubt(&self, error: &CommError) {
        let mut is_new = false;
        self.doubt.get_or_init(|| {
            is_new = true;
            Doubt { since: Instant::now(), reason: error.to_string() }
        });
        if is_new {
            self.signal.compare(&self.ranks);
        }
    }

    /// Time for comparing the members' hashes before this rank is blamed.
    fn comparison(&self) -> Duration {
        let suspected = self.monitor().is_some_and(|monitor| monitor.is_suspected());
        self.heartbeat * COMPARISON[usize::from(suspected)]
    }

    /// Called by the watchdog. Ends the group with the error, unless the members' calls turn out to differ.
    pub(super) fn resolve(self: &Arc<Self>, now: Instant) {
        if let Some(doubt) = self.doubt.get()
            && now.saturating_duration_since(doubt.since) >= self.comparison()
        {
            self.fail(doubt.reason.clone());
        }
    }

    /// Returns the cause of an error. Waits until the deadline for the cause to be known.
    pub(super) fn conclude(&self, error: GroupError, deadline: Deadline) -> GroupError {
        if self.doubt.get().is_some() {
            while !self.is_over() && !deadline.expired() {
                runtime::sleep(Duration::from_millis(1));
            }
        }
        self.reason(error)
    }

    /// Ends the group on all members because the driver failed to report the state of work.
    pub(super) fn driver_failed(self: &Arc<Self>, error: &cuda_driver::Error) {
        if !self.is_over() && self.monitor().is_some() {
            self.fail(error.to_string());
        }
    }

    /// Ends the group on all members with this reason, after a failure here that leaves it unusable. Does not block.
    pub(crate) fn fail(self: &Arc<Self>, reason: String) {
        self.fail_for(self.rank(), reason);
    }

    /// [`fail`](Self::fail) because of a failure of `rank` of the job, which all members know.
    pub(super) fn fail_for(self: &Arc<Self>, rank: usize, reason: String) {
        let group = self.monitor().map(|monitor| monitor.id().to_owned());
        let is_made = group.is_some();
        let trouble = Trouble::Failed { group: group.unwrap_or_default(), rank, reason };
        // The members of a group that is not made yet do not know its id.
        if is_made {
            self.signal.tell(trouble.clone());
        }
        self.trouble(trouble);
    }
}

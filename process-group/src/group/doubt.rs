//! Asynchronous errors of communicators, and their causes.
//!
//! A communicator's error may be caused by members that made different calls. Each member keeps a rolling hash of its
//! calls. The hashes are compared before the error is attributed to this rank.

use std::{sync::Arc, time::Duration};

use bootstrap::runtime::{self, Instant};
use nccl_sys::ncclResult_t;

use super::{
    GroupErrorKind, KindResult,
    health::{Doubt, GroupHealth},
};
use crate::{
    comm::CommError,
    store::Deadline,
    watch::{COMPARISON, Trouble},
};

/// Returns true for an error of NCCL. Returns false if the communicator is closed or is still being initialised,
/// because it has not failed.
fn is_failure(error: &CommError) -> bool {
    matches!(error, CommError::Nccl { code, .. } if *code != ncclResult_t::ncclInProgress)
}

impl GroupHealth {
    /// Checks the communicators for asynchronous errors. An error ends the group on all members, after the members'
    /// calls were compared.
    ///
    /// # Errors
    /// An error of a communicator. If the group is over, the reason why it ended replaces that error.
    pub(super) fn check_background(&self) -> KindResult<()> {
        let found = self.async_error();
        match &found {
            // The remote error is a consequence of the member's leaving. Work that had completed by then is valid.
            Err(CommError::Nccl { code: ncclResult_t::ncclRemoteError, .. }) if self.was_left() => {
                return Ok(());
            }
            Err(error) if is_failure(error) => self.doubt(error),
            _ => {}
        }
        self.explain(found.map_err(GroupErrorKind::from))
    }

    /// Checks that work whose completion event has passed is really done. The event passes after failed work too.
    ///
    /// # Errors
    /// Those of [`check_background`](Self::check_background) and [`check_work`](Self::check_work).
    pub(super) fn check_done(&self) -> KindResult<()> {
        let checked = self.check_background();
        // `settle` found all work done and free of errors before it aborted the communicators. An aborted communicator
        // cannot be queried.
        if self.settled.get() == Some(&true) {
            return Ok(());
        }
        checked?;
        // A member may have left since the caller's check. `check_background` has then ignored the remote error.
        self.check_work()
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

    /// Returns how long the members' hashes are compared before an error is attributed to this rank.
    fn comparison(&self) -> Duration {
        let suspected = self.monitor().is_some_and(|monitor| monitor.is_suspected());
        self.heartbeat * COMPARISON[usize::from(suspected)]
    }

    /// Called by the watchdog. Ends the group with the pending error once the comparison time has passed. If the
    /// members' calls differ, the comparison has already ended the group by then, and the reason is the difference.
    pub(super) fn resolve(self: &Arc<Self>, now: Instant) {
        if let Some(doubt) = self.doubt.get()
            && now.saturating_duration_since(doubt.since) >= self.comparison()
        {
            self.fail(doubt.reason.clone());
        }
    }

    /// Starts a comparison of the members' call histories, which ends the group if they differ. Waits until the group
    /// is over, for at most `COMPARISON[1]` heartbeat periods.
    pub(super) fn await_comparison(&self) {
        self.signal.compare(&self.ranks);
        self.hear_why(self.heartbeat * COMPARISON[1]);
    }

    /// Returns the cause of an error. If a communicator's error is pending, blocks until the group is over, at most
    /// until `deadline`.
    pub(super) fn conclude(&self, error: GroupErrorKind, deadline: Deadline) -> GroupErrorKind {
        if self.doubt.get().is_some() {
            while !self.is_over() && !deadline.expired() {
                runtime::sleep(Duration::from_millis(1));
            }
        }
        self.reason(error)
    }

    /// Ends the group on all members because a driver call for the state of work failed. Does nothing if the group is
    /// over or not made yet.
    pub(super) fn driver_failed(self: &Arc<Self>, error: &cuda_driver::Error) {
        if !self.is_over() && self.monitor().is_some() {
            self.fail(error.to_string());
        }
    }

    /// Ends the group on all members with this reason, after a failure on this rank that makes the group unusable. Does
    /// not block.
    pub(crate) fn fail(self: &Arc<Self>, reason: String) {
        self.fail_for(self.rank(), reason);
    }

    /// Like [`fail`](Self::fail), but attributes the failure to `rank` of the job. All members must pass the same rank.
    pub(super) fn fail_for(self: &Arc<Self>, rank: usize, reason: String) {
        let group = self.monitor().map(|monitor| monitor.id().to_owned());
        let is_made = group.is_some();
        let trouble = Trouble::Failed { group: group.unwrap_or_default(), rank, reason };
        // While a group is being made, its members do not know its id, so they cannot be notified.
        if is_made {
            self.signal.tell(trouble.clone());
        }
        self.trouble(trouble);
    }
}

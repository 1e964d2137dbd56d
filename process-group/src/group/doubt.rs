//! Errors that show in the background, and what they come of.
//!
//! An error of a communicator may come of members that have called different things. Their hashes tell, so they are
//! compared before this rank is blamed.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use nccl_sys::ncclResult_t;

use super::{GroupError, Result, vigil::Vigil};
use crate::{
    comm::CommError,
    store::Deadline,
    watch::{COMPARISON, Trouble},
};

/// An error of a communicator, until it is known what it comes of.
pub(super) struct Doubt {
    since: Instant,
    reason: String,
}

/// Whether the background has failed. Who closed a communicator knows; one in the making is not done.
fn is_failure(error: &CommError) -> bool {
    matches!(error, CommError::Nccl { code, .. } if *code != ncclResult_t::ncclInProgress)
}

impl Vigil {
    /// What the communicators say of the background: what failed there ends the group on all members, a moment later.
    ///
    /// # Errors
    /// What has ended the group; what failed.
    pub(super) fn check_background(&self) -> Result<()> {
        let found = self.async_error();
        match &found {
            // The member that has left: what is done was done before.
            Err(CommError::Nccl { code: ncclResult_t::ncclRemoteError, .. }) if self.was_left() => {
                return Ok(());
            }
            Err(error) if is_failure(error) => self.doubt(error),
            _ => {}
        }
        self.explain(found.map_err(GroupError::from))
    }

    /// What looks done is done: nothing has failed in the background, which looks done too.
    ///
    /// # Errors
    /// Those of [`check_background`](Self::check_background).
    pub(super) fn check_done(&self) -> Result<()> {
        let checked = self.check_background();
        // It was looked at before the communicators were aborted, of which there is nothing to ask any more.
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
            self.bell.compare(&self.ranks);
        }
    }

    /// How long the members' hashes are compared before this rank is blamed.
    fn comparison(&self) -> Duration {
        let suspected = self.duty().is_some_and(|duty| duty.is_suspected());
        self.heartbeat * COMPARISON[usize::from(suspected)]
    }

    /// A look of the watchdog: ends the group with what failed, unless the members' calls turn out to differ.
    pub(super) fn resolve(self: &Arc<Self>, now: Instant) {
        if let Some(doubt) = self.doubt.get()
            && now.saturating_duration_since(doubt.since) >= self.comparison()
        {
            self.fail(doubt.reason.clone());
        }
    }

    /// What an error means, once it is known what it comes of: waits for that, until the deadline.
    pub(super) fn conclude(&self, error: GroupError, deadline: Deadline) -> GroupError {
        if self.doubt.get().is_some() {
            while !self.is_over() && !deadline.expired() {
                thread::sleep(Duration::from_millis(1));
            }
        }
        self.reason(error)
    }

    /// The driver does not say what has become of work: the group is over on all members, with this reason.
    pub(super) fn driver_failed(self: &Arc<Self>, error: &cuda_driver::Error) {
        if !self.is_over() && self.duty().is_some() {
            self.fail(error.to_string());
        }
    }

    /// Something has failed here that leaves the group useless: it ends on all members, with this reason. Waits for
    /// nobody.
    pub(crate) fn fail(self: &Arc<Self>, reason: String) {
        let group = self.duty().map_or(String::new(), |duty| duty.id().to_owned());
        let trouble = Trouble::Failed { group, rank: self.rank(), reason };
        self.bell.tell(trouble.clone());
        self.trouble(trouble);
    }
}

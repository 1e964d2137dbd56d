//! Unblocks a member of a [commit](crate::SymmetricPool::commit) whose registration of windows can no longer succeed.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use bootstrap::agreement::{Decision, Failure, read_verdict};
use process_group::{
    comm::AbortHandle,
    group::HealthHandle,
    store::{Deadline, StoreError},
};

use crate::{
    agreement::{CommitProtocol, Poison, Rejection},
    domain::Domain,
    lock::lock,
    membership::group::ABORT_PATIENCE,
};

/// The time limit of each store request of a [`VerdictWatch`]'s thread. After each request that timed out, the thread
/// checks whether the [`VerdictWatch`] was dropped, and ends if so.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A thread that waits until the store has the verdict on the registration. After its registration, each member posts
/// the outcome. The verdict is the members' agreed judgement of the outcomes. The thread aborts the communicator in two
/// cases: the verdict says that the group is [poisoned](Poison), or a failure of the [agreement](bootstrap::agreement)
/// is stored in place of the verdict. Without the abort, the registration of this member might never return. Dropping
/// this value makes the thread end, but does not wait for its end.
pub(super) struct VerdictWatch {
    /// The handle that aborts the communicator. It is shared with the thread, which has no other reference to the
    /// communicator. The drop of the [`VerdictWatch`] removes the handle, so that a thread that still waits for the
    /// store does not keep the resources of the communicator.
    abort: Arc<Mutex<Option<AbortHandle>>>,
}

impl VerdictWatch {
    /// Watches for a verdict under `verdict_key` until `deadline`. The thread's action depends on the stored value:
    /// - [`Failure::Unreadable`] (a member's outcome cannot be decoded): it aborts at once.
    /// - Another failure of the agreement, or the verdict [`Poison::MembersLost`]: members are lost. The thread waits
    ///   until `health` has a reason for the end of the group, for at most two heartbeat intervals and not past
    ///   `deadline`, and then aborts. The health monitor keeps only the first reason. Without the wait, the first
    ///   reason would be the abort, and the group's error would not name the lost members.
    /// - Another verdict that poisons the group: it aborts at once.
    /// - Any other verdict, or a value that cannot be decoded: it ends without an abort.
    ///
    /// If the system cannot start a thread, or if the store fails, nothing watches. A registration that cannot succeed
    /// then ends only at its deadline.
    pub(super) fn begin(
        domain: Domain,
        abort: AbortHandle,
        health: Option<HealthHandle>,
        verdict_key: String,
        deadline: Deadline,
    ) -> Self {
        let abort = Arc::new(Mutex::new(Some(abort)));
        let shared = abort.clone();
        let watch = move || {
            // The registration may be over before this thread runs.
            while lock(&shared).is_some() {
                match domain.store().get(&verdict_key, deadline.at_most(POLL_INTERVAL)) {
                    Ok(stored) => {
                        let is_lost = match read_verdict::<CommitProtocol>(&stored) {
                            Some(Err(failure)) => !matches!(failure, Failure::Unreadable { .. }),
                            Some(Ok(Decision::Refused { refusal: Rejection::Poisoned(poison) })) => {
                                matches!(poison, Poison::MembersLost { .. })
                            }
                            _ => return,
                        };
                        if let (true, Some(health)) = (is_lost, &health) {
                            health.await_end(deadline);
                        }
                        let abort = lock(&shared).take();
                        if let Some(abort) = abort {
                            // The error is not needed: later calls on the communicator return errors in any case.
                            let _ = abort.abort(Deadline::after(ABORT_PATIENCE));
                        }
                        return;
                    }
                    Err(StoreError::Timeout { .. }) if !deadline.expired() => {}
                    Err(_) => return,
                }
            }
        };
        let _ = thread::Builder::new().name("symm-mem-watch".to_owned()).spawn(watch);
        Self { abort }
    }
}

impl Drop for VerdictWatch {
    fn drop(&mut self) {
        let abort = lock(&self.abort).take();
        // Unlock first, because the drop of the handle may free resources of the communicator.
        drop(abort);
    }
}

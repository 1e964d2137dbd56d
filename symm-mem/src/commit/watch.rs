//! Unblocks a member if its registration can no longer succeed.

use std::{
    sync::{Arc, Mutex, PoisonError},
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
};

/// The time that the abort of a poisoned group may take to free its resources.
pub(super) const ABORT_PATIENCE: Duration = Duration::from_secs(2);
/// The interval at which the thread polls. It may run that much longer than its watch.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A thread that aborts a communicator if the members' verdict on the registration is stored and says that the group is
/// dead. The registration of this member may then never return. Dropping this value ends the thread.
pub(super) struct Watch {
    /// The thread holds no communicator of its own, so that dropping the owner frees the resources of the
    /// communicator.
    abort: Arc<Mutex<Option<AbortHandle>>>,
}

impl Watch {
    /// Watches for a verdict under `verdict_key` until `deadline`. If the system cannot start a thread, there is no
    /// watch; a failing registration then only takes longer. If the verdict says that members are lost, the thread
    /// first waits, for at most two heartbeat intervals, until `health` reports that the group has ended and why: after
    /// the abort, the reason would not be reported.
    pub(super) fn begin(
        domain: Domain,
        abort: AbortHandle,
        health: Option<HealthHandle>,
        verdict_key: String,
        deadline: Deadline,
    ) -> Self {
        let abort = Arc::new(Mutex::new(Some(abort)));
        let slot = abort.clone();
        let watch = move || {
            // The registration may be over before this thread runs.
            while !is_over(&slot) {
                match domain.store().get(&verdict_key, deadline.at_most(POLL_INTERVAL)) {
                    Ok(stands) => {
                        let is_lost = match read_verdict::<CommitProtocol>(&stands) {
                            Some(Err(failure)) => !matches!(failure, Failure::Unreadable { .. }),
                            Some(Ok(Decision::Refused { refusal: Rejection::Poisoned { poison } })) => {
                                matches!(poison, Poison::MembersLost { .. })
                            }
                            _ => return,
                        };
                        if let (true, Some(health)) = (is_lost, &health) {
                            health.await_end(deadline);
                        }
                        if let Some(abort) = take(&slot) {
                            // The communicator leaks resources that it cannot free, and reports that when it is used.
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

impl Drop for Watch {
    fn drop(&mut self) {
        drop(take(&self.abort));
    }
}

fn take(slot: &Mutex<Option<AbortHandle>>) -> Option<AbortHandle> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn is_over(slot: &Mutex<Option<AbortHandle>>) -> bool {
    slot.lock().unwrap_or_else(PoisonError::into_inner).is_none()
}

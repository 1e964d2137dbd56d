//! Frees a member that is blocked in a registration which cannot succeed any more.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use process_group::{
    comm::AbortHandle,
    store::{Deadline, StoreError},
};

use super::ABORT_PATIENCE;
use crate::{agreement::Verdict, domain::Domain};

/// How long the thread of a watch that has ended may linger.
const GLANCE: Duration = Duration::from_secs(1);

/// A thread that aborts a communicator once the members' verdict is that the group is dead. Ends with this value.
pub(super) struct Watch {
    /// The thread holds no communicator by itself: what a communicator keeps goes when its owner lets go.
    abort: Arc<Mutex<Option<AbortHandle>>>,
}

impl Watch {
    /// Watches for a verdict under `verdict_key` until `deadline`. Without a thread, if the system gives none: that
    /// costs time when a registration fails, no more.
    pub(super) fn begin(domain: Domain, abort: AbortHandle, verdict_key: String, deadline: Deadline) -> Self {
        let abort = Arc::new(Mutex::new(Some(abort)));
        let slot = abort.clone();
        let watch = move || {
            loop {
                match domain.store().get(&verdict_key, deadline.at_most(GLANCE)) {
                    Ok(stands) => {
                        let dead = matches!(Verdict::decode(&stands), Ok(Verdict::Poison { .. }));
                        if let Some(abort) = take(&slot).filter(|_| dead) {
                            // What cannot be freed is leaked by the communicator, which says so when it is used.
                            let _ = abort.abort(Deadline::after(ABORT_PATIENCE));
                        }
                        return;
                    }
                    Err(StoreError::Timeout { .. }) if !deadline.expired() && !is_over(&slot) => {}
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

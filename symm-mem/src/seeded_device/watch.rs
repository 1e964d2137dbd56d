//! Shared state of a rank's actors, and its watch actor.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::simulation::is_dead;

use super::{
    library::{Group, Job},
    network::{Connection, Network},
    queue::Queue,
};

/// State that the actors of a rank share.
#[derive(Default)]
pub(super) struct Queues {
    pub(super) jobs: Queue<Job>,
    pub(super) watches: Queue<Watch>,
    groups: Mutex<Vec<Arc<Group>>>,
}

impl Queues {
    /// The rank's groups.
    pub(super) fn groups(&self) -> MutexGuard<'_, Vec<Arc<Group>>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request to the rank's watch actor.
pub(super) enum Watch {
    /// Wait for the verdict under `key` until `until`, a time of the scheduler's clock. Then abort the group if the
    /// verdict says that the group is dead and `over` is not set. `over` is set once the rank stops waiting for the
    /// registration.
    Verdict { group: Arc<Group>, key: String, until: Duration, over: Arc<AtomicBool> },
    /// Abort this rank's groups that contain the lost rank with this number.
    Lost(u32),
}

/// Runs the rank's watch actor.
pub(super) fn watch(network: Arc<Network>, queues: &Queues) {
    let mut store = Connection::open(network);
    while let Some(watch) = queues.watches.take("something to watch", None) {
        match watch {
            Watch::Verdict { group, key, until, over } => {
                if store.get(key, until).is_some_and(|stands| is_dead(&stands)) && !over.load(Relaxed) {
                    group.abort();
                }
            }
            Watch::Lost(rank) => {
                let groups = queues.groups().clone();
                groups.iter().filter(|group| group.members.contains(&rank)).for_each(|group| group.abort());
            }
        }
    }
}

/// Closes the queues when the rank ends, also by a panic.
pub(super) struct Leave(pub(super) Arc<Queues>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.jobs.close();
        self.0.watches.close();
    }
}

//! What becomes of a group when one of its ranks is lost.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    thread,
};

use super::{GroupError, Result};
use crate::{
    comm::{AbortHandle, PATIENCE},
    peers::{Listener, Loss, Peers},
    record::Recorder,
    store::{Deadline, PrefixStore, give_up},
};

/// Waits for losses among a group's ranks. With the first, everything that waits in the group ends: the communicator is
/// aborted, and meetings that are open have failed.
pub(super) struct Vigil {
    name: Arc<str>,
    /// The ranks of the job that are members.
    ranks: Vec<usize>,
    store: PrefixStore,
    communicator: AbortHandle,
    recorder: Arc<Recorder>,
    lost: OnceLock<(usize, Loss)>,
    /// Where this rank waits for the others.
    meetings: Mutex<Vec<String>>,
    /// Told of losses as long as the vigil lasts.
    listener: OnceLock<Arc<Listener>>,
}

impl Vigil {
    pub(super) fn begin(
        name: &Arc<str>,
        ranks: Vec<usize>,
        store: &PrefixStore,
        communicator: AbortHandle,
        recorder: &Arc<Recorder>,
        peers: &Peers,
    ) -> Arc<Self> {
        let vigil = Arc::new(Self {
            name: name.clone(),
            ranks,
            store: store.clone(),
            communicator,
            recorder: recorder.clone(),
            lost: OnceLock::new(),
            meetings: Mutex::default(),
            listener: OnceLock::new(),
        });
        let weak: Weak<Self> = Arc::downgrade(&vigil);
        let listener: Arc<Listener> = Arc::new(move |rank, loss| {
            if let Some(vigil) = weak.upgrade() {
                vigil.lose(rank, loss);
            }
        });
        peers.tell(vigil.listener.get_or_init(|| listener));
        vigil
    }

    /// The group goes on only if none of its ranks is lost.
    ///
    /// # Errors
    /// [`GroupError::Lost`].
    #[inline]
    pub(super) fn check(&self) -> Result<()> {
        match self.lost.get() {
            None => Ok(()),
            Some(lost) => Err(self.error(*lost)),
        }
    }

    /// What an error means: after a loss, whatever else failed did so for that.
    pub(super) fn explain<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.lost.get().map_or(error, |lost| self.error(*lost)))
    }

    #[cold]
    fn error(&self, (rank, loss): (usize, Loss)) -> GroupError {
        GroupError::Lost { group: self.name.to_string(), rank, loss }
    }

    /// Runs `meet`, a wait for the members at `name`, which ends with a loss.
    pub(super) fn attend<T>(&self, name: &str, meet: impl FnOnce() -> Result<T>) -> Result<T> {
        let _open = Open::new(self, name);
        // Between the two: who is lost before finds no meeting to end.
        self.check()?;
        self.explain(meet())
    }

    fn meetings(&self) -> MutexGuard<'_, Vec<String>> {
        self.meetings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// On a thread of the watch, which is not held up.
    fn lose(self: Arc<Self>, rank: usize, loss: Loss) {
        let Some(place) = self.ranks.iter().position(|member| *member == rank) else { return };
        if self.lost.set((rank, loss)).is_err() {
            return;
        }
        // Who cannot have a thread is aborted here: that the watch waits is better than that the group does.
        let vigil = self.clone();
        let end = move || {
            let _ = vigil.communicator.abort(Deadline::after(PATIENCE));
        };
        if thread::Builder::new().name("abort".into()).spawn(end).is_err() {
            let _ = self.communicator.abort(Deadline::after(PATIENCE));
        }
        let farewell = move || {
            let open = self.meetings().clone();
            for name in open {
                // A store that cannot be reached ends the waits by itself.
                let _ = give_up(&self.store, &name, place);
            }
            self.recorder.trouble();
        };
        let _ = thread::Builder::new().name("farewell".into()).spawn(farewell);
    }
}

impl fmt::Debug for Vigil {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vigil").field("group", &self.name).field("lost", &self.lost).finish_non_exhaustive()
    }
}

/// A meeting that this rank waits at.
struct Open<'a> {
    vigil: &'a Vigil,
    name: &'a str,
}

impl<'a> Open<'a> {
    fn new(vigil: &'a Vigil, name: &'a str) -> Self {
        vigil.meetings().push(name.to_owned());
        Self { vigil, name }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let mut meetings = self.vigil.meetings();
        if let Some(at) = meetings.iter().position(|name| name == self.name) {
            meetings.swap_remove(at);
        }
    }
}

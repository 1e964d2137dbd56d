//! Wake-up signals between ranks, through the store. A thread of each rank waits for the rank's own key. Another rank
//! sets this key after it has written a heartbeat, or an entry of the trouble log, that the rank must read at once.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bootstrap::runtime::{self, Event, JoinHandle};

use crate::store::{Deadline, PrefixStore, Result, Store, StoreError};

/// The longest single wait for the key.
const WAIT: Duration = Duration::from_secs(10);
/// Pause after a failed store request.
const PAUSE: Duration = Duration::from_millis(500);
/// Maximum number of keys per request.
const BATCH: usize = 256;

fn key(rank: usize) -> String {
    format!("wake/{rank}")
}

/// Wakes these ranks: sets their keys in the store, so that they perform an exchange at once. They then read everything
/// that was written before this call.
pub(crate) fn wake(store: &PrefixStore, ranks: impl IntoIterator<Item = usize>) -> Result<()> {
    let keys: Vec<_> = ranks.into_iter().map(key).collect();
    keys.chunks(BATCH).try_for_each(|keys| {
        store.multi_set(&keys.iter().map(|key| (key.as_str(), &b"1"[..])).collect::<Vec<_>>())
    })
}

/// The request to end a wake thread.
struct End {
    has_come: AtomicBool,
    /// Notified after `has_come` is set.
    changed: Event,
}

/// Handle of the thread that waits for this rank's key. Dropping the handle ends the thread, and waits for its end
/// unless the store fails.
pub(super) struct WakeThread {
    store: PrefixStore,
    key: String,
    end: Arc<End>,
    thread: Option<JoinHandle<()>>,
}

impl WakeThread {
    /// Starts the thread. It calls `woken` after another rank has woken this one. One call may stand for several
    /// wake-ups.
    ///
    /// # Errors
    /// The I/O error, if the operating system did not start a thread.
    pub(super) fn start(
        store: &PrefixStore,
        rank: usize,
        woken: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let end = End { has_come: AtomicBool::new(false), changed: Event::new("the end of a watch") };
        let (key, end) = (key(rank), Arc::new(end));
        let thread = {
            let (store, key, end) = (store.clone(), key.clone(), end.clone());
            runtime::spawn("watch-wake", move || {
                loop {
                    let seen = end.changed.count();
                    if end.has_come.load(Ordering::Acquire) {
                        break;
                    }
                    match store.wait(&[&key], Deadline::after(WAIT)).and_then(|()| store.delete(&key)) {
                        // The key is deleted before this rank reads the entries. An entry that is written
                        // too late for that read sets the key again, so no entry is missed.
                        Ok(_) => woken(),
                        Err(StoreError::Timeout { .. }) => {}
                        Err(_) => _ = runtime::wait(&end.changed, seen, PAUSE),
                    }
                }
            })?
        };
        Ok(Self { store: store.clone(), key, end, thread: Some(thread) })
    }
}

impl Drop for WakeThread {
    fn drop(&mut self) {
        self.end.has_come.store(true, Ordering::Release);
        self.end.changed.notify_all();
        let Some(thread) = self.thread.take() else { return };
        // Setting the key ends the thread's wait. If the store fails, the thread is not joined, because its current
        // request may last long. It ends after that request.
        if self.store.set(&self.key, b"1").is_ok() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::store::HashStore;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_rank_is_woken_each_time_and_its_thread_ends_with_it() {
        let store = PrefixStore::new("wake", Arc::new(HashStore::new()));
        let (say, woken) = mpsc::channel();
        let thread = WakeThread::start(&store, 600, move || say.send(()).unwrap()).unwrap();
        for _ in 0..3 {
            wake(&store, 0..601).unwrap();
            woken.recv_timeout(LONG).unwrap();
        }
        drop(thread);
        // The sender is gone with the thread.
        while woken.recv_timeout(LONG).is_ok() {}
        assert_eq!(woken.recv_timeout(LONG), Err(mpsc::RecvTimeoutError::Disconnected));
    }
}

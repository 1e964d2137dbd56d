//! Wake-up signals through the store. Each rank waits for its own key. Other ranks set that key after they
//! have written entries that the rank must read.

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

/// Wakes these ranks, which then read the entries that were written before this call.
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

/// Handle of the thread that waits for this rank's key. The thread ends when this handle is dropped.
pub(super) struct WakeThread {
    store: PrefixStore,
    key: String,
    end: Arc<End>,
    thread: Option<JoinHandle<()>>,
}

impl WakeThread {
    /// Starts a thread that calls `woken` each time another rank wakes this one.
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
        // If the store does not answer, the thread ends when its current wait ends.
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

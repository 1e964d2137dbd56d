//! The store of a rank, which a fault makes silent or lets fail.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering::SeqCst},
    },
    time::Duration,
};

use bootstrap::runtime::{self, Event};
use process_group::store::{Deadline, HashStore, Store, StoreError};

use super::plan::Random;

type Result<T> = std::result::Result<T, StoreError>;

/// How the store answers a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Answers {
    Always,
    /// Calls block, and fail after a minute: the process of the rank is gone, or its host is cut off.
    Never,
    /// Calls fail.
    WithErrors,
}

/// The store of one rank. Every call takes up to a millisecond.
pub(super) struct RankStore {
    inner: HashStore,
    answers: AtomicU8,
    changed: Event,
    random: Mutex<Random>,
}

impl RankStore {
    pub(super) fn new(inner: &HashStore, random: Random) -> Arc<Self> {
        Arc::new(Self {
            inner: inner.clone(),
            answers: AtomicU8::new(Answers::Always as u8),
            changed: Event::new("an answer of a store that is silent"),
            random: Mutex::new(random),
        })
    }

    pub(super) fn set(&self, answers: Answers) {
        self.answers.store(answers as u8, SeqCst);
        self.changed.notify_all();
    }

    fn ready(&self) -> Result<()> {
        let deadline = Deadline::after(Duration::from_secs(60));
        loop {
            let seen = self.changed.count();
            let answers = self.answers.load(SeqCst);
            if answers == Answers::Always as u8 {
                return Ok(());
            }
            let is_blocked = answers == Answers::Never as u8 && !deadline.expired();
            if !is_blocked || !runtime::wait(&self.changed, seen, deadline.remaining()) {
                return Err(StoreError::HostDied {
                    address: "a test".into(),
                    operation: "a call".into(),
                    source: Arc::new(io::ErrorKind::ConnectionReset.into()),
                });
            }
        }
    }

    fn call<T>(&self, call: impl FnOnce(&HashStore) -> Result<T>) -> Result<T> {
        self.ready()?;
        let time = self.random.lock().unwrap().below(1000);
        runtime::sleep(Duration::from_micros(time));
        let result = call(&self.inner);
        self.ready()?;
        result
    }
}

impl Store for RankStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.call(|store| store.set(key, value))
    }

    fn get(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        self.call(|store| store.get(key, deadline))
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        self.call(|store| store.check(keys))
    }

    fn wait(&self, keys: &[&str], deadline: Deadline) -> Result<()> {
        self.call(|store| store.wait(keys, deadline))
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        self.call(|store| store.add(key, delta))
    }

    fn compare_set(&self, key: &str, expected: &[u8], new: &[u8]) -> Result<Vec<u8>> {
        self.call(|store| store.compare_set(key, expected, new))
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        self.call(|store| store.append(key, value))
    }

    fn multi_get(&self, keys: &[&str], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        self.call(|store| store.multi_get(keys, deadline))
    }

    fn multi_set(&self, entries: &[(&str, &[u8])]) -> Result<()> {
        self.call(|store| store.multi_set(entries))
    }

    fn delete(&self, key: &str) -> Result<bool> {
        self.call(|store| store.delete(key))
    }

    fn num_keys(&self) -> Result<u64> {
        self.call(HashStore::num_keys)
    }

    fn list_keys(&self) -> Result<Vec<String>> {
        self.call(HashStore::list_keys)
    }

    fn queue_push(&self, key: &str, value: &[u8]) -> Result<()> {
        self.call(|store| store.queue_push(key, value))
    }

    fn queue_pop(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        self.call(|store| store.queue_pop(key, deadline))
    }

    fn queue_try_pop(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.call(|store| store.queue_try_pop(key))
    }

    fn queue_len(&self, key: &str) -> Result<u64> {
        self.call(|store| store.queue_len(key))
    }
}

//! A store that calls a test's hook.

use std::sync::Arc;

use process_group::store::{self, Deadline, HashStore, Store};

/// A rank's store that calls a test's hook before each operation, with the operation's name and its first
/// key.
pub(crate) struct Hooked<F> {
    store: Arc<HashStore>,
    before: F,
}

impl<F: Fn(&'static str, &str) -> store::Result<()>> Hooked<F> {
    pub(crate) fn new(store: &Arc<HashStore>, before: F) -> Self {
        Self { store: store.clone(), before }
    }

    fn ask(&self, call: &'static str, keys: &[&str]) -> store::Result<&HashStore> {
        (self.before)(call, keys.first().copied().unwrap_or_default())?;
        Ok(&self.store)
    }
}

impl<F: Fn(&'static str, &str) -> store::Result<()> + Send + Sync> Store for Hooked<F> {
    fn set(&self, key: &str, value: &[u8]) -> store::Result<()> {
        self.ask("set", &[key])?.set(key, value)
    }
    fn get(&self, key: &str, deadline: Deadline) -> store::Result<Vec<u8>> {
        self.ask("get", &[key])?.get(key, deadline)
    }
    fn check(&self, keys: &[&str]) -> store::Result<bool> {
        self.ask("check", keys)?.check(keys)
    }
    fn wait(&self, keys: &[&str], deadline: Deadline) -> store::Result<()> {
        self.ask("wait", keys)?.wait(keys, deadline)
    }
    fn add(&self, key: &str, delta: i64) -> store::Result<i64> {
        self.ask("add", &[key])?.add(key, delta)
    }
    fn compare_set(&self, key: &str, expected: &[u8], new: &[u8]) -> store::Result<Vec<u8>> {
        self.ask("compare_set", &[key])?.compare_set(key, expected, new)
    }
    fn append(&self, key: &str, value: &[u8]) -> store::Result<()> {
        self.ask("append", &[key])?.append(key, value)
    }
    fn multi_get(&self, keys: &[&str], deadline: Deadline) -> store::Result<Vec<Vec<u8>>> {
        self.ask("multi_get", keys)?.multi_get(keys, deadline)
    }
    fn multi_set(&self, entries: &[(&str, &[u8])]) -> store::Result<()> {
        self.ask("multi_set", &entries.iter().map(|(key, _)| *key).collect::<Vec<_>>())?.multi_set(entries)
    }
    fn delete(&self, key: &str) -> store::Result<bool> {
        self.ask("delete", &[key])?.delete(key)
    }
    fn num_keys(&self) -> store::Result<u64> {
        self.ask("num_keys", &[])?.num_keys()
    }
    fn list_keys(&self) -> store::Result<Vec<String>> {
        self.ask("list_keys", &[])?.list_keys()
    }
    fn queue_push(&self, key: &str, value: &[u8]) -> store::Result<()> {
        self.ask("queue_push", &[key])?.queue_push(key, value)
    }
    fn queue_pop(&self, key: &str, deadline: Deadline) -> store::Result<Vec<u8>> {
        self.ask("queue_pop", &[key])?.queue_pop(key, deadline)
    }
    fn queue_try_pop(&self, key: &str) -> store::Result<Option<Vec<u8>>> {
        self.ask("queue_try_pop", &[key])?.queue_try_pop(key)
    }
    fn queue_len(&self, key: &str) -> store::Result<u64> {
        self.ask("queue_len", &[key])?.queue_len(key)
    }
}

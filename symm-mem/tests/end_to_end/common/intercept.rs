//! A store whose calls a test can fail, delay or change.

use process_group::store::{Deadline, Result, Store};

/// The calls that a meeting makes to agree on something.
pub(crate) const MEETING_CALLS: [&str; 6] = ["set", "get", "check", "add", "compare_set", "multi_get"];

/// Changes to the calls of a store. Each method changes nothing unless it is implemented.
pub(crate) trait Intercept<S>: Send + Sync {
    /// Runs before a call, with its name and its first key. Its error is returned in place of the call.
    fn before(&self, _inner: &S, _call: &'static str, _key: &str) -> Result<()> {
        Ok(())
    }

    /// Returns the bytes to store for `value`.
    fn write(&self, value: &[u8]) -> Vec<u8> {
        value.to_vec()
    }

    /// Returns the value for stored bytes.
    fn read(&self, value: Vec<u8>) -> Vec<u8> {
        value
    }
}

/// The store `inner`, with every call changed by `intercept`.
pub(crate) struct Intercepted<S, I> {
    pub(crate) inner: S,
    pub(crate) intercept: I,
}

impl<S: Store, I: Intercept<S>> Intercepted<S, I> {
    fn enter(&self, call: &'static str, keys: &[&str]) -> Result<&S> {
        self.intercept.before(&self.inner, call, keys.first().copied().unwrap_or_default())?;
        Ok(&self.inner)
    }
}

impl<S: Store, I: Intercept<S>> Store for Intercepted<S, I> {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.enter("set", &[key])?.set(key, &self.intercept.write(value))
    }
    fn get(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        self.enter("get", &[key])?.get(key, deadline).map(|value| self.intercept.read(value))
    }
    fn check(&self, keys: &[&str]) -> Result<bool> {
        self.enter("check", keys)?.check(keys)
    }
    fn wait(&self, keys: &[&str], deadline: Deadline) -> Result<()> {
        self.enter("wait", keys)?.wait(keys, deadline)
    }
    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        self.enter("add", &[key])?.add(key, delta)
    }
    fn compare_set(&self, key: &str, expected: &[u8], new: &[u8]) -> Result<Vec<u8>> {
        let inner = self.enter("compare_set", &[key])?;
        inner.compare_set(key, expected, &self.intercept.write(new)).map(|value| self.intercept.read(value))
    }
    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        self.enter("append", &[key])?.append(key, value)
    }
    fn multi_get(&self, keys: &[&str], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        let values = self.enter("multi_get", keys)?.multi_get(keys, deadline)?;
        Ok(values.into_iter().map(|value| self.intercept.read(value)).collect())
    }
    fn multi_set(&self, entries: &[(&str, &[u8])]) -> Result<()> {
        let keys: Vec<_> = entries.iter().map(|(key, _)| *key).collect();
        self.enter("multi_set", &keys)?.multi_set(entries)
    }
    fn delete(&self, key: &str) -> Result<bool> {
        self.enter("delete", &[key])?.delete(key)
    }
    fn num_keys(&self) -> Result<u64> {
        self.enter("num_keys", &[])?.num_keys()
    }
    fn list_keys(&self) -> Result<Vec<String>> {
        self.enter("list_keys", &[])?.list_keys()
    }
    fn queue_push(&self, key: &str, value: &[u8]) -> Result<()> {
        self.enter("queue_push", &[key])?.queue_push(key, value)
    }
    fn queue_pop(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        self.enter("queue_pop", &[key])?.queue_pop(key, deadline)
    }
    fn queue_try_pop(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.enter("queue_try_pop", &[key])?.queue_try_pop(key)
    }
    fn queue_len(&self, key: &str) -> Result<u64> {
        self.enter("queue_len", &[key])?.queue_len(key)
    }
}

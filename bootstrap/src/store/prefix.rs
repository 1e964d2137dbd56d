//! A namespace inside another store.

use std::sync::Arc;

use super::{Deadline, Result, Store};

/// A store whose keys and queues lie in another store, with a prefix and `/` before each name. PyTorch's `PrefixStore`
/// uses the same names. The other store may be a `PrefixStore` too.
///
/// ```
/// use bootstrap::store::{Deadline, HashStore, PrefixStore, Store};
/// use std::sync::Arc;
///
/// # fn main() -> Result<(), bootstrap::store::StoreError> {
/// let shared = Arc::new(HashStore::new());
/// let group = PrefixStore::new("tp/3", shared.clone());
/// group.set("id", b"7")?;
/// assert_eq!(shared.get("tp/3/id", Deadline::now())?, b"7");
/// assert_eq!(group.list_keys()?, ["id"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PrefixStore {
    /// The prefix, with the `/`.
    prefix: String,
    store: Arc<dyn Store>,
}

impl PrefixStore {
    /// Returns a store of the keys and queues in `store` whose names begin with `prefix` and `/`.
    pub fn new(prefix: &str, store: Arc<dyn Store>) -> Self {
        Self { prefix: format!("{prefix}/"), store }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn keys(&self, keys: &[&str]) -> Vec<String> {
        keys.iter().map(|key| self.key(key)).collect()
    }
}

impl std::fmt::Debug for PrefixStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PrefixStore").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

fn borrowed(keys: &[String]) -> Vec<&str> {
    keys.iter().map(String::as_str).collect()
}

impl Store for PrefixStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.store.set(&self.key(key), value)
    }

    fn get(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        self.store.get(&self.key(key), deadline)
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        self.store.check(&borrowed(&self.keys(keys)))
    }

    fn wait(&self, keys: &[&str], deadline: Deadline) -> Result<()> {
        self.store.wait(&borrowed(&self.keys(keys)), deadline)
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        self.store.add(&self.key(key), delta)
    }

    fn compare_set(&self, key: &str, expected: &[u8], new: &[u8]) -> Result<Vec<u8>> {
        self.store.compare_set(&self.key(key), expected, new)
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        self.store.append(&self.key(key), value)
    }

    fn multi_get(&self, keys: &[&str], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        self.store.multi_get(&borrowed(&self.keys(keys)), deadline)
    }

    fn multi_set(&self, entries: &[(&str, &[u8])]) -> Result<()> {
        let keys: Vec<_> = entries.iter().map(|(key, _)| self.key(key)).collect();
        let entries: Vec<_> =
            keys.iter().zip(entries).map(|(key, (_, value))| (key.as_str(), *value)).collect();
        self.store.multi_set(&entries)
    }

    fn delete(&self, key: &str) -> Result<bool> {
        self.store.delete(&self.key(key))
    }

    /// Counts the keys under the prefix, by listing all keys of the other store. (PyTorch's `PrefixStore` counts all of
    /// them.)
    fn num_keys(&self) -> Result<u64> {
        Ok(self.list_keys()?.len() as u64)
    }

    fn list_keys(&self) -> Result<Vec<String>> {
        let keys = self.store.list_keys()?.into_iter().filter(|key| key.starts_with(&self.prefix));
        Ok(keys.map(|mut key| key.split_off(self.prefix.len())).collect())
    }

    fn queue_push(&self, key: &str, value: &[u8]) -> Result<()> {
        self.store.queue_push(&self.key(key), value)
    }

    fn queue_pop(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        self.store.queue_pop(&self.key(key), deadline)
    }

    fn queue_try_pop(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.store.queue_try_pop(&self.key(key))
    }

    fn queue_len(&self, key: &str) -> Result<u64> {
        self.store.queue_len(&self.key(key))
    }
}

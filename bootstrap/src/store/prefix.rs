//! A namespace inside another store.

use std::sync::Arc;

use super::{
    Deadline, Result, Store, StoreError,
    machine::{Reply, Request},
};

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

    fn add_prefix(&self, key: &mut Vec<u8>) {
        key.splice(..0, self.prefix.bytes());
    }

    /// Returns the names of the keys under the prefix, without the prefix.
    fn keys(&self) -> Result<Vec<Vec<u8>>> {
        let keys = self.store.list_keys()?.into_iter();
        Ok(keys.filter_map(|key| Some(key.strip_prefix(&self.prefix)?.into())).collect())
    }
}

impl std::fmt::Debug for PrefixStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PrefixStore").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Store for PrefixStore {
    fn call(&self, mut request: Request) -> Result<Option<Reply>> {
        match request {
            Request::ListKeys => Ok(Some(Reply::Keys(self.keys()?))),
            // Counts only the keys under the prefix. PyTorch's `PrefixStore` counts all keys of the other store.
            Request::NumKeys => Ok(Some(Reply::Integer(self.keys()?.len() as i64))),
            _ => {
                request.for_each_key(|key| self.add_prefix(key));
                self.store.call(request)
            }
        }
    }

    fn call_when_there(
        &self,
        mut keys: Vec<Vec<u8>>,
        mut request: Option<Request>,
        deadline: Deadline,
    ) -> Result<Option<Reply>> {
        keys.iter_mut().for_each(|key| self.add_prefix(key));
        // The other store would list or count all of its keys, including those without the prefix.
        if let Some(request @ (Request::ListKeys | Request::NumKeys)) = request {
            self.store.call_when_there(keys, None, deadline)?;
            return self.call(request);
        }
        request.iter_mut().for_each(|request| request.for_each_key(|key| self.add_prefix(key)));
        self.store.call_when_there(keys, request, deadline)
    }

    fn unexpected(&self, operation: &'static str, reply: Option<Reply>) -> StoreError {
        self.store.unexpected(operation, reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::HashStore;

    #[test]
    fn a_request_about_all_keys_that_waits_for_a_key_sees_only_the_prefix() {
        let shared = Arc::new(HashStore::new());
        shared.set("other", b"").unwrap();
        let store = PrefixStore::new("own", shared);
        store.set("key", b"").unwrap();
        let ask =
            |request| store.call_when_there(vec![b"key".into()], Some(request), Deadline::now()).unwrap();
        let (keys, number) = (ask(Request::ListKeys), ask(Request::NumKeys));
        assert!(matches!(&keys, Some(Reply::Keys(keys)) if keys[..] == [b"key"]), "{keys:?}");
        assert!(matches!(number, Some(Reply::Integer(1))), "{number:?}");
    }
}
